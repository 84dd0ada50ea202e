"""A conversation of the real host, told by the worker to the real Jaeger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bdh_bridge import __version__
from bdh_bridge.paths import BridgePaths
from bdh_otel import attributes as attr
from tests.otel.test_otel_backends import assert_same
from tests.support import model_server as ms
from tests.support.hermes import Host, InProcess, attributes
from tests.support.jaeger import Jaeger, running_jaeger
from tests.support.worker_end import end_worker

pytestmark = [pytest.mark.hermes, pytest.mark.timeout(300)]

ROUTE = {
    "schema_version": 2,
    "should_retrieve": True,
    "store_candidate": True,
    "query": "What does the durable outbox do when the agent crashes?",
    "search_query": "durable SQLite outbox crash of the agent",
    "sub_queries": ["retry policy backoff jitter"],
}


@pytest.fixture
def jaeger(tmp_path: Path) -> Iterator[Jaeger]:
    with running_jaeger(tmp_path) as running:
        yield running


@pytest.fixture
def host(host: Host, jaeger: Jaeger) -> Iterator[Host]:
    with ms.ModelServer(ms.answer(ROUTE)) as router:
        host.environ |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": jaeger.http,
            "BDH_QUERY_REWRITE_ENABLED": "true",
            "BDH_REWRITE_CHAIN": "openrouter,local",
            "BDH_REWRITE_LOCAL_URL": router.url,
        }
        yield host
        end_worker(BridgePaths(host.home))


def test_jaeger_shows_the_conversation(hermes: InProcess, host: Host, jaeger: Jaeger) -> None:
    agent = hermes.agent("s-1")
    result = hermes.say(agent, "What does the outbox do when the agent crashes?")
    hermes.say(agent, "grazie!", conversation_history=result["messages"])
    hermes.say(hermes.agent("s-2"), "Ask the graph about tracing")

    def settled(spans: list[Any]) -> bool:
        turns = attributes(spans, "bdh.turn")
        queued = [one for one in turns if one.get(attr.TURN_WRITE_OUTCOME) == "queued"]
        return len(turns) == 3 and len(attributes(spans, "bdh.deliver")) == len(queued) > 0

    spans = host.wait_for(settled)
    for trace_id in {span.trace_id for span in spans}:
        stored = [span for span in spans if span.trace_id == trace_id]
        found = jaeger.wait_for(trace_id, len(stored))
        assert_same(found, stored)
        roles = {span["resource"]["bdh.role"] for span in found}
        assert roles <= {"agent", "worker"}
        for span in found:
            assert span["resource"]["service.version"] == __version__
            assert span["resource"]["bdh.hermes.profile"]
            if span["resource"]["bdh.role"] == "agent":
                assert span["resource"]["bdh.hermes.version"]
    (first,) = {span.trace_id for span in spans if span.name == "bdh.deliver"} & {
        span.trace_id for span in spans if span.name == "bdh.rewrite"
    } - {span.trace_id for span in spans if span.name.startswith("execute_tool")}
    spans_there = jaeger.trace(first)
    print(drawn(spans_there))
    shown = {span["operationName"].partition(" ")[0]: span for span in spans_there}
    assert {
        "bdh.turn", "bdh.gate", "bdh.route", "bdh.rewrite", "chat", "retrieval", "bdh.context",
        "bdh.write", "bdh.deliver",
    } <= set(shown)  # fmt: skip
    # Across processes: the worker's delivery is a child of the agent's write.
    parents = [one["spanID"] for one in shown["bdh.deliver"]["references"]]
    assert parents == [shown["bdh.write"]["spanID"]]
    assert shown["bdh.deliver"]["resource"]["bdh.role"] == "worker"


def drawn(spans: list[dict[str, Any]], parent: str | None = None, depth: int = 0) -> str:
    """A trace as the query API tells it, for whoever runs this with ``-s``."""
    lines = []
    for span in sorted(spans, key=lambda one: one["startTime"]):
        parents = [one["spanID"] for one in span["references"] if one["refType"] == "CHILD_OF"]
        if parents == ([parent] if parent else []):
            told = ("bdh.gate.decision", "bdh.gate.reason", "bdh.hop.outcome", "bdh.turn.route")
            said = " ".join(str(span["tags"][name]) for name in told if name in span["tags"])
            role = span["resource"]["bdh.role"]
            lines.append(
                f"{'  ' * depth}{span['operationName']}  {said}  {span['duration']} us  ({role})"
            )
            below = drawn(spans, span["spanID"], depth + 1)
            lines += [below] if below else []
    return "\n".join(lines)
