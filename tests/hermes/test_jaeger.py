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

pytestmark = pytest.mark.hermes

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
    shown = {span["operationName"].partition(" ")[0]: span for span in jaeger.trace(first)}
    assert {
        "bdh.turn", "bdh.gate", "bdh.route", "bdh.rewrite", "chat", "retrieval", "bdh.context",
        "bdh.write", "bdh.deliver",
    } <= set(shown)  # fmt: skip
    # Across processes: the worker's delivery is a child of the agent's write.
    parents = [one["spanID"] for one in shown["bdh.deliver"]["references"]]
    assert parents == [shown["bdh.write"]["spanID"]]
    assert shown["bdh.deliver"]["resource"]["bdh.role"] == "worker"
