"""What may not leave the machine does not: marked secrets go through every path of the bridge,
and then are looked for in the bytes that real receivers got, over HTTP and gRPC.

That the search finds anything at all is made sure of: every mark of what the store keeps is in
the store, and content is on the wire once the operator has asked for it twice.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bdh_bridge.cli import main
from bdh_bridge.synthesis import Synthesiser
from bdh_bridge.transcripts import Transcripts, WrittenTurn
from bdh_bridge.worker.housekeeping import export_duties
from bdh_otel.reader import SpanReader
from tests.support import faulty_graph as behave
from tests.support import model_server as ms
from tests.support.faulty_graph import FaultyGraph
from tests.support.otlp_receiver import GrpcReceiver, HttpReceiver
from tests.telemetry.stage import Stage

pytestmark = pytest.mark.timeout(300)

#: Never in a store, never in a log, never on the wire.
SECRETS = {
    "token of the graph": "MARK-graph-token",
    "key of the rewrite endpoint": "MARK-rewrite-key",
    "key of OpenRouter": "MARK-openrouter-key",
    "key of Ollama": "MARK-ollama-key",
    "key of another endpoint": "MARK-endpoint-key",
    "password in the endpoint's URL": "MARK-url-password",
    "key in the endpoint's query": "MARK-url-query",
}
#: Text of people and of their notes: in the store, on the wire only if asked for twice.
CONTENT = {
    "the user's message": "MARK-message",
    "the assistant's answer": "MARK-answer",
    "query made by the router": "MARK-routed-query",
    "note title": "MARK-note-title",
    "matched term": "MARK-matched-term",
    "argument of a tool": "MARK-tool-argument",
    "result of a tool": "MARK-tool-result",
    "topic of a session": "MARK-session-topic",
}
#: In the store for the operator, never on the wire.
LOCAL = {
    "blacklist rule": "MARK-rul[e]",
    "sender": "MARK-sender",
    "error body of the graph": "MARK-graph-error",
    "error body of a provider": "MARK-provider-error",
    "error body of a delivery": "MARK-delivery-error",
}
#: Not even kept in the span store.
ELSEWHERE = {
    "message of the history": "MARK-history",
    "text of a note": "MARK-note-text",
    "the graph's own words": "MARK-graph-response",
    "prompt of a scheduled job": "MARK-job-prompt",
    "summary of a session": "MARK-session-summary",
    "path of the prompt file": "MARK-prompt-file",
    "path of the home": "MARK-home",
    "text of the router's prompt": "MARK-prompt-text",
}
MARKS = {**SECRETS, **CONTENT, **LOCAL, **ELSEWHERE}

QUESTION = "Why did MARK-message need the new protocol for the flood gauges?"
ANSWER = "Because MARK-answer loses a reading when two gauges answer at once. " * 5
GRAPH = {
    "response": "MARK-graph-response says so",
    "activated_notes": [
        {"id": "n", "title": "MARK-note-title", "score": 0.9, "excerpt": "MARK-note-text"}
    ],
    "routing": {
        "vector_top_score": 0.8, "hybrid_top_score": 0.8, "bm25_top_score": 1.0,
        "bm25_query_term_count": 3, "bm25_matched_term_count": 3, "hybrid_enabled": True,
        "bm25_matched_terms": ["MARK-matched-term"],
    },
    "new_concepts": [{"id": "c", "title": "MARK-tool-result", "source_notes": []}],
}  # fmt: skip
ROUTE = {
    "schema_version": 2,
    "should_retrieve": True,
    "store_candidate": True,
    "query": "MARK-routed-query of the flood gauges",
    "search_query": "MARK-routed-query gauges",
    "sub_queries": [],
}


def live(home: Path, graph: FaultyGraph, server: ms.ModelServer, **variables: str) -> Stage:
    """A few days of a home, in a few seconds."""
    prompt = home.parent / "MARK-prompt-file.md"
    prompt.write_text("MARK-prompt-text: decide about {message}")
    stage = Stage(
        home,
        graph.url,
        jobs=lambda job: "MARK-job-prompt [BDH:ALLOW-CRON]",
        BDH_API_TOKEN=SECRETS["token of the graph"],
        BDH_QUERY_REWRITE_ENABLED="true",
        BDH_REWRITE_CHAIN="openrouter,local",
        BDH_REWRITE_API_KEY=SECRETS["key of the rewrite endpoint"],
        OPENROUTER_API_KEY=SECRETS["key of OpenRouter"],
        OLLAMA_API_KEY=SECRETS["key of Ollama"],
        BDH_REWRITE_OPENROUTER_URL=server.url,
        BDH_REWRITE_LOCAL_URL=server.url,
        BDH_REWRITE_PROMPT_FILE=str(prompt),
        BDH_SESSION_SYNTH_ENABLED="true",
        **variables,
    )
    turns(stage, graph, server)
    failures(stage, graph, server)
    session(stage, graph, server)
    assert stage.bridge.tracer.flush(10)
    return stage


def turns(stage: Stage, graph: FaultyGraph, server: ms.ModelServer) -> None:
    history = [{"role": "user", "content": "MARK-history was said before"}]
    stage.turn(QUESTION, ANSWER, sender="MARK-sender", platform="telegram", history=history)
    stage.turn(QUESTION, ANSWER, session="cron_j_20260102_030405", platform="cron")
    stage.loaded.paths.blacklist.write_text("re:MARK-rul[e]\n")
    stage.turn("Why is MARK-rule in this message?", ANSWER)
    stage.bridge.tools.bdh_query({"query": "MARK-tool-argument"}, session_id="t")
    stage.bridge.tools.bdh_stats({"vault_id": "MARK-tool-argument"}, session_id="t")


def failures(stage: Stage, graph: FaultyGraph, server: ms.ModelServer) -> None:
    error = {"error": "MARK-graph-error in a body"}
    for status in (500, 401):
        graph.behave = behave.answers(status, error)
        stage.turn(QUESTION, ANSWER)
        stage.bridge.tools.bdh_query({"query": "MARK-tool-argument"}, session_id="t")
        stage.bridge.state.record_success(f"graph:{graph.url}")
    graph.behave = behave.answers(200, b"MARK-graph-error is no JSON")
    stage.turn(QUESTION, ANSWER)
    stage.bridge.state.record_success(f"graph:{graph.url}")
    # Deliveries, of all that has been queued.
    graph.behave = behave.answers(422, {"error": "MARK-delivery-error in a body"})
    stage.deliver()
    graph.behave = behave.answers(200, GRAPH)
    refusal = b'{"error": {"message": "MARK-provider-error"}}'
    for reply in (
        ms.body(refusal, 500),
        ms.body(refusal, 401),
        ms.answer("MARK-provider-error is no JSON"),
        ms.answer({**ROUTE, "should_retrieve": "MARK-provider-error"}),
    ):
        server.reply = reply
        stage.turn(QUESTION, ANSWER)
        for breaker in stage.bridge.state.breakers():
            stage.bridge.state.record_success(breaker.key)
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(stage.bridge.graph, "query", _fails)
        stage.bridge.tools.bdh_query({"query": "MARK-tool-argument"}, session_id="t")
    server.reply = ms.answer(ROUTE)
    stage.deliver()


def _fails(*_: Any, **__: Any) -> None:
    raise RuntimeError("MARK-graph-error in an exception")


def session(stage: Stage, graph: FaultyGraph, server: ms.ModelServer) -> None:
    transcripts = Transcripts(stage.loaded.paths.sessions)
    for number in range(3):
        transcripts.add(
            WrittenTurn(QUESTION, ANSWER, ""), session_id="whole", write_id=f"w-{number}",
            platform="cli", destination=graph.url, vault_id="",
        )  # fmt: skip
    transcripts.mark_ended("whole", "finalize")
    server.reply = ms.answer(
        {"durable": True, "topic": "MARK-session-topic", "summary": "MARK-session-summary."}
    )
    bridge = stage.bridge
    synthesiser = Synthesiser(
        stage.loaded.settings, bridge.state, bridge.tracer, stage.outbox, transcripts
    )
    while transcripts.next_due(3) is not None:
        synthesiser.step()


@dataclass
class Outside:
    """All that left: the bytes that each receiver got, the JSON lines, and the log."""

    wire: dict[str, bytes] = field(default_factory=dict)
    store: bytes = b""
    log: str = ""
    spans: int = 0


def leave(tmp: Path, caplog: pytest.LogCaptureFixture, **variables: str) -> Outside:
    out = Outside()
    home = tmp / "MARK-home" / "hermes"
    home.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        http = stack.enter_context(contextlib.closing(HttpReceiver()))
        grpc = stack.enter_context(contextlib.closing(GrpcReceiver()))
        graph = stack.enter_context(FaultyGraph(behave.answers(200, GRAPH)))
        server = stack.enter_context(ms.ModelServer(ms.answer(ROUTE)))
        standard = http.url.replace("http://", "http://user:MARK-url-password@")
        targets = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"{standard}/?key=MARK-url-query",
            "BDH_OTEL_ENDPOINTS": f"other=grpc://127.0.0.1:{grpc.port}",
            "BDH_OTEL_ENDPOINT_OTHER_HEADERS": f"api-key={SECRETS['key of another endpoint']}",
        }
        with (
            caplog.at_level(logging.DEBUG, "bdh_bridge"),
            caplog.at_level(logging.DEBUG, "bdh_otel"),
        ):
            stage = stack.enter_context(live(home, graph, server, **targets, **variables))
            duties = export_duties(stage.loaded)
            deadline = time.monotonic() + 60
            while sum(duty.run() for duty in duties):
                assert time.monotonic() < deadline
        with contextlib.closing(SpanReader(stage.loaded.paths.spans)) as reader:
            out.spans = reader.status().spans
        for receiver in (http, grpc):  # what was cut short may come twice
            assert len({span.span_id for span in receiver.spans}) == out.spans
            assert receiver.accepted_metrics
        out.wire = {
            "OTLP over HTTP": b"".join(http.raw),
            "OTLP over gRPC": b"".join(grpc.raw),
            "metrics over HTTP": b"".join(http.raw_metrics),
            "metrics over gRPC": b"".join(grpc.raw_metrics),
            "JSON lines": json_lines(home, tmp, variables),
        }
        out.store = dump(stage.loaded.paths.spans)
    out.log = "\n".join(
        record.getMessage() + (record.exc_text or "")
        for record in caplog.records
        if record.name.startswith(("bdh_bridge", "bdh_otel"))
    )
    return out


def json_lines(home: Path, tmp: Path, variables: dict[str, str]) -> bytes:
    target = tmp / "spans.jsonl"
    with pytest.MonkeyPatch.context() as environment:
        for name in list(os.environ):
            if name.startswith(("BDH_", "OTEL_")):
                environment.delenv(name)
        for name, value in variables.items():
            environment.setenv(name, value)
        arguments = ["--home", str(home), "spans", "export", "--output", str(target)]
        environment.setattr("sys.argv", ["bdh-bridge", *arguments])
        assert main() == 0
    assert target.stat().st_mode & 0o077 == 0
    return target.read_bytes()


def dump(path: Path) -> bytes:
    """Everything that the store holds."""
    with contextlib.closing(sqlite3.connect(path)) as store:
        return "\n".join(store.iterdump()).encode()


def found_in(data: bytes, marks: dict[str, str]) -> list[str]:
    return [what for what, mark in marks.items() if mark.encode() in data]


def test_nothing_private_leaves_the_machine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = leave(tmp_path, caplog)
    assert out.spans > 80
    for where, data in out.wire.items():
        assert len(data) > 1_000, where
        assert found_in(data, MARKS) == [], where
    assert found_in(out.store, {**CONTENT, **LOCAL}) == [*CONTENT, *LOCAL], "marked in vain"
    assert found_in(out.store, SECRETS) == []
    logged = {**SECRETS, **CONTENT, **LOCAL, **ELSEWHERE}
    for allowed in ("path of the home", "path of the prompt file"):
        del logged[allowed]  # a log of this machine may say which file it means
    assert found_in(out.log.encode(), logged) == []


def test_content_leaves_if_it_is_asked_for_twice_and_nothing_else_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = {
        "BDH_OTEL_EXPORT_CONTENT": "true",
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true",
    }
    out = leave(tmp_path, caplog, **asked)
    for where, data in out.wire.items():
        expected = [] if where.startswith("metrics") else list(CONTENT)
        assert found_in(data, CONTENT) == expected, where
        # The model was told what the graph said of its failure: that is a tool's result, too.
        told = ["error body of the graph"] if expected else []
        assert found_in(data, {**SECRETS, **LOCAL}) == told, where


def test_a_store_without_content_holds_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = leave(tmp_path, caplog, BDH_OTEL_CONTENT="off")
    assert found_in(out.store, {**SECRETS, **CONTENT}) == []
