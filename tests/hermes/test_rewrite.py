"""Classification and rewrite in real turns of the host: read and write follow their own flags."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bdh_bridge.text import CONTEXT_OPENING
from bdh_otel import attributes as attr
from bdh_otel.reader import StoredSpan
from tests.support import model_server as ms
from tests.support.hermes import Host, InProcess, attributes, in_process

pytestmark = pytest.mark.hermes

QUESTION = "And what does the outbox do in that case?"
ROUTE = {
    "schema_version": 2,
    "should_retrieve": True,
    "store_candidate": True,
    "query": "What does the durable outbox do when the agent crashes?",
    "search_query": "durable SQLite outbox crash of the agent",
    "sub_queries": ["retry policy backoff jitter"],
}


@pytest.fixture
def router() -> Iterator[ms.ModelServer]:
    with ms.ModelServer(ms.answer(ROUTE)) as server:
        yield server


@pytest.fixture
def host(host: Host, router: ms.ModelServer) -> Host:
    host.environ |= {
        "BDH_QUERY_REWRITE_ENABLED": "true",
        "BDH_REWRITE_CHAIN": "local",
        "BDH_REWRITE_LOCAL_URL": router.url,
        "BDH_WORKER": "off",
    }
    return host


def decided(router: ms.ModelServer, **changes: Any) -> None:
    router.reply = ms.answer({**ROUTE, **changes})


def root_of(spans: list[StoredSpan]) -> StoredSpan:
    (root,) = [span for span in spans if span.name == "bdh.turn"]
    return root


def test_the_rewritten_query_reaches_the_graph(
    hermes: InProcess, host: Host, router: ms.ModelServer
) -> None:
    history = [
        {"role": "user", "content": "We talked about crashes of the agent."},
        {"role": "assistant", "content": "Yes, the agent may crash at any time."},
    ]
    hermes.say(hermes.agent("s-1"), QUESTION, conversation_history=history)
    spans = host.spans()
    asked = [span[attr.RETRIEVAL_QUERY] for span in attributes(spans, "retrieval")]
    assert asked == [ROUTE["search_query"], "retry policy backoff jitter"]
    sent = host.model.requests()[-1].user_message
    assert sent.startswith(QUESTION), "the message itself is not changed"
    assert "Durable Outbox" in sent.split(CONTEXT_OPENING)[1]
    (request,) = router.requests
    assert "We talked about crashes" in request.body["messages"][1]["content"]
    (write,) = attributes(spans, "bdh.write")
    assert write[attr.WRITE_QUERY] == ROUTE["query"], "never the search text"
    (hop,) = [span for span in spans if span.name.startswith("chat ")]
    (rewrite,) = [span for span in spans if span.name == "bdh.rewrite"]
    assert hop.attributes[attr.HOP_OUTCOME] == "ok"
    assert rewrite.attributes[attr.REWRITE_VARIANTS] == 2
    assert len({span.trace_id for span in spans}) == 1
    assert root_of(spans).attributes[attr.TURN_ROUTE] == "retrieve_and_store"


def test_a_skip_skips_the_read_and_storing_goes_its_own_way(
    hermes: InProcess, host: Host, router: ms.ModelServer
) -> None:
    decided(router, should_retrieve=False)
    hermes.say(hermes.agent("s-1"), QUESTION)
    spans = host.spans()
    assert attributes(spans, "retrieval") == []
    assert CONTEXT_OPENING not in host.model.requests()[-1].user_message
    assert len(attributes(spans, "bdh.write")) == 1
    root = root_of(spans).attributes
    assert root[attr.TURN_READ_OUTCOME] == "router_no_retrieve"
    assert root[attr.TURN_ROUTE] == "store_only"


def test_a_turn_not_worth_storing_is_read_and_not_written(
    hermes: InProcess, host: Host, router: ms.ModelServer
) -> None:
    decided(router, store_candidate=False)
    hermes.say(hermes.agent("s-1"), QUESTION)
    spans = host.spans()
    assert CONTEXT_OPENING in host.model.requests()[-1].user_message
    assert attributes(spans, "bdh.write") == []
    root = root_of(spans).attributes
    assert root[attr.TURN_WRITE_OUTCOME] == "router_no_store"
    assert root[attr.TURN_ROUTE] == "retrieve_only"


def test_neither_leaves_the_conversation_untouched(
    hermes: InProcess, host: Host, router: ms.ModelServer
) -> None:
    decided(router, should_retrieve=False, store_candidate=False)
    hermes.say(hermes.agent("s-1"), QUESTION)
    spans = host.spans()
    assert attributes(spans, "retrieval") == attributes(spans, "bdh.write") == []
    assert host.model.requests()[-1].user_message == QUESTION
    assert root_of(spans).attributes[attr.TURN_ROUTE] == "skip"


def test_an_unusable_answer_falls_back_to_the_mechanical_gate(
    hermes: InProcess, host: Host, router: ms.ModelServer
) -> None:
    decided(router, should_retrieve="false")
    hermes.say(hermes.agent("s-1"), QUESTION)
    spans = host.spans()
    (retrieval,) = attributes(spans, "retrieval")
    assert retrieval[attr.RETRIEVAL_QUERY] == QUESTION
    assert attributes(spans, "bdh.rewrite")[0][attr.REWRITE_FALLBACK] is True
    assert attributes(spans, "bdh.route")[0][attr.ROUTE_ROUTER] == "fallback"
    assert len(attributes(spans, "bdh.write")) == 1


TOTAL = 3.0


def test_four_dead_providers_cost_one_turn_the_bound_and_later_ones_nearly_nothing(
    host: Host, router: ms.ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    router.reply = ms.hang()
    host.environ |= {
        "BDH_REWRITE_CHAIN": "ollama,nous,openrouter,local",
        "BDH_REWRITE_API_URL": router.url,
        "BDH_REWRITE_NOUS_URL": router.url,
        "BDH_REWRITE_OPENROUTER_URL": router.url,
        "OPENROUTER_API_KEY": "k",
        "BDH_REWRITE_TIMEOUT": "1",
        "BDH_REWRITE_TOTAL_TIMEOUT": str(TOTAL),
    }
    # The login alone is not the host's own: there is no account here.
    monkeypatch.setattr(
        "hermes_cli.auth.resolve_nous_runtime_credentials",
        lambda timeout_seconds: {"api_key": "k", "base_url": router.url},
    )
    with in_process(host) as hermes:
        for number in range(5):
            question = "What does the outbox do when the agent crashes?"
            hermes.say(hermes.agent(f"s-{number}"), question)
    spans = host.spans()
    first, *later = [
        (span.end_ns - span.start_ns) / 1e9
        for span in spans
        if span.name == "bdh.rewrite" and span.end_ns is not None
    ]
    # The true bound is the outcomes' business below: a noisy machine only adds to the times.
    assert first >= TOTAL - 0.5
    assert first < TOTAL + 10
    assert len(later) == 4
    assert max(later) < first / 2
    walks: dict[str, list[Any]] = {}
    for span in spans:
        if attr.HOP_OUTCOME in span.attributes and not span.attributes.get(attr.HOP_ASIDE):
            outcomes = walks.setdefault(str(span.attributes[attr.CONVERSATION_ID]), [])
            outcomes.append(span.attributes[attr.HOP_OUTCOME])
    assert walks["s-0"] == ["timeout", "timeout", "timeout", "out_of_time"]
    assert all(walks[f"s-{number}"] == ["circuit_open"] * 4 for number in range(1, 5))
    assert all(CONTEXT_OPENING in request.user_message for request in host.model.requests())
