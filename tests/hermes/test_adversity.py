"""The plugin in the real host's agent loop when the world is unkind to it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bdh_bridge.demo.model_server import ScriptedAnswer
from bdh_bridge.text import CONTEXT_OPENING
from bdh_otel import attributes as attr
from tests.support.hermes import Host, InProcess, attributes, in_process, write_config
from tests.support.http_peer import answering, json_response, peer
from tests.support.waiting import eventually

pytestmark = pytest.mark.hermes

QUESTION = "What does the outbox do when the agent crashes?"


def roots(host: Host) -> list[Any]:
    return [span for span in host.spans() if span.name == "bdh.turn"]


@pytest.fixture
def broken_model() -> Iterator[str]:
    """The URL of a provider that refuses every key."""

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            payload = json.dumps({"error": {"message": "bad key"}}).encode()
            self.send_response(401)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_POST

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    server.server_close()


def test_a_turn_that_another_provider_saves_is_written_and_its_trace_says_so(
    hermes: InProcess, host: Host, broken_model: str
) -> None:
    second = {
        "provider": "custom",
        "model": "second",
        "base_url": host.model.base_url,
        "api_key": "sk-2",
    }
    agent = hermes.agent("s-1", base_url=broken_model, fallback_model=second)
    hermes.say(agent, QUESTION)
    spans = host.spans()
    first, other = roots(host)
    assert first.attributes[attr.TURN_CLOSE_REASON] == "api_error"
    assert first.failed
    assert other.parent_id == first.span_id
    assert other.attributes[attr.TURN_CLOSE_REASON] == "end_of_turn"
    assert other.attributes[attr.TURN_ROUTE] == "retrieve_and_store"
    assert not other.failed
    (write,) = [span for span in spans if span.name == "bdh.write"]
    assert write.parent_id == other.span_id
    assert len({span.trace_id for span in spans}) == 1
    assert len(hermes.bridge.turns) == 0


def test_plugins_that_are_discovered_again_in_mid_turn_lose_no_write(
    hermes: InProcess, host: Host
) -> None:
    from hermes_cli.plugins import discover_plugins

    before = hermes.bridge
    answer = host.model.answer

    def discover(body: dict[str, Any]) -> dict[str, Any]:
        if hermes.bridge is before:
            discover_plugins(force=True)
        return answer(body)

    host.model.answer = discover  # type: ignore[method-assign]
    hermes.say(hermes.agent("s-1"), QUESTION)
    assert hermes.bridge is not before
    spans = host.wait_for(
        lambda spans: any(attr.TURN_CLOSE_REASON in a for a in attributes(spans, "bdh.turn"))
    )
    (root,) = [span for span in spans if span.name == "bdh.turn"]
    assert root.attributes[attr.TURN_ROUTE] == "retrieve_and_store"
    assert root.attributes[attr.TURN_CLOSE_REASON] == "end_of_turn"
    assert len(hermes.bridge.turns) == 0

    def threads() -> int:
        return sum(thread.name == "bdh-spans" for thread in threading.enumerate())

    before_more = threads()
    for number in range(3):
        hermes.say(hermes.agent(f"more-{number}"), "grazie")
        discover_plugins(force=True)
    eventually(lambda: threads() <= before_more)


def test_profiles_in_one_process_keep_to_their_own_graphs_tokens_and_stores(
    hermes: InProcess, host: Host, tmp_path: Path
) -> None:
    """As a gateway does that serves several: the home is a context variable of the turn."""
    from hermes_constants import reset_hermes_home_override, set_hermes_home_override

    hermes.bridge  # noqa: B018 (the process's own profile is there first)
    note = {"id": "n", "title": "Note of the other profile", "score": 0.9}
    with peer(answering(json_response({"activated_notes": [note]}))) as other_graph:
        home = tmp_path / "profiles" / "other"
        write_config(home, host.model.base_url)
        (home / ".env").write_text(f"BDH_API_URL={other_graph.url}\n")
        os.environ["BDH_API_TOKEN"] = "of-the-first-profile"
        token = set_hermes_home_override(str(home))
        try:
            hermes.say(hermes.agent("s-other"), QUESTION)
            other = hermes.bridge
        finally:
            reset_hermes_home_override(token)
        assert "Note of the other profile" in host.model.requests()[-1].user_message
        # Its own worker delivers, too, and inherits as little.
        eventually(lambda: b"assistant_response" in b"".join(other_graph.requests))
        assert b"of-the-first-profile" not in b"".join(other_graph.requests)
    assert other is not hermes.bridge
    assert other.loaded.paths.hermes_home == home
    assert host.spans() == []
    assert not host.paths.outbox.exists()
    hermes.say(hermes.agent("s-own"), QUESTION)
    assert "Durable Outbox" in host.model.requests()[-1].user_message
    assert {span.session for span in host.spans()} == {"s-own"}
    other.close()


def test_a_profile_that_does_not_enable_the_bridge_passes_untouched(
    hermes: InProcess, host: Host, tmp_path: Path
) -> None:
    from hermes_constants import reset_hermes_home_override, set_hermes_home_override

    home = tmp_path / "profiles" / "plain"
    write_config(home, host.model.base_url, plugins={"enabled": []})
    token = set_hermes_home_override(str(home))
    try:
        agent = hermes.agent("s-1")
        agent.run_conversation(QUESTION)
        agent.run_conversation("Ask the graph about tracing")
        (result,) = host.model.requests()[-1].tool_results
    finally:
        reset_hermes_home_override(token)
    assert CONTEXT_OPENING not in host.model.requests()[0].user_message
    assert json.loads(result)["error"] == "disabled"
    assert not (home / "bdh-bridge").exists()
    assert host.spans() == []


DELEGATE = (
    ScriptedAnswer(
        "delegate it",
        "I have asked a sub-agent. " + "It will look. " * 20,
        tool="delegate_task",
        arguments='{"goal": "look up tracing", "toolsets": ["bdh"]}',
    ),
    ScriptedAnswer("look up tracing", "Found.", tool="bdh_query", arguments='{"query": "tracing"}'),
)


@pytest.mark.parametrize(
    ("session", "platform", "sender", "outcome", "learns"),
    [
        ("cron_nosuchjob_20260101_030000", "cron", "", "ok", False),
        ("s-owner", "telegram", "1", "ok", True),
        ("s-friend", "telegram", "2", "ok", False),
        ("s-stranger", "telegram", "3", "not_permitted", None),
        ("s-terminal", "cli", "", "ok", True),
    ],
)
def test_a_sub_agent_may_do_what_the_turn_that_delegated_may(
    host: Host, session: str, platform: str, sender: str, outcome: str, learns: bool | None
) -> None:
    host.model.answers = DELEGATE
    host.environ["BDH_WORKER"] = "off"
    if platform != "cron":
        host.environ |= {
            "BDH_READ_SENDERS": "telegram:1,telegram:2",
            "BDH_WRITE_SENDERS": "telegram:1",
        }
    with in_process(host) as hermes:
        tools = ["bdh", "delegation"]
        agent = hermes.agent(session, platform=platform, user_id=sender, enabled_toolsets=tools)
        hermes.say(agent, "Please delegate it")
        spans = host.wait_for(lambda spans: attributes(spans, "execute_tool bdh_query"))
    (tool,) = [span for span in spans if span.name == "execute_tool bdh_query"]
    assert tool.session != session
    assert tool.attributes[attr.TOOL_OUTCOME] == outcome
    asked = [
        span.attributes[attr.RETRIEVAL_LEARN]
        for span in spans
        if span.parent_id == tool.span_id and span.name == "retrieval"
    ]
    assert asked == ([] if learns is None else [learns])
