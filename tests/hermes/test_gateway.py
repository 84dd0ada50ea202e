"""The plugin in a running gateway: many chats in one process, on reused threads."""

from __future__ import annotations

import concurrent.futures
import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bdh_bridge.text import CONTEXT_OPENING
from bdh_otel import attributes as attr
from tests.support.hermes import Host, attributes, write_config
from tests.support.http_peer import answering, json_response, peer

pytestmark = [pytest.mark.hermes, pytest.mark.slow]

KEY = "k" * 24
OUTBOX = "What does the outbox do when the agent crashes?"
BACKUP = "How often is the backup of the database made?"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Gateway:
    def __init__(self, host: Host) -> None:
        port = free_port()
        # In the file: a gateway of several profiles does not look into the environment.
        with (host.home / ".env").open("a") as file:
            file.write("API_SERVER_ENABLED=true\nAPI_SERVER_HOST=127.0.0.1\n")
            file.write(f"API_SERVER_PORT={port}\nAPI_SERVER_KEY={KEY}\n")
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=120, trust_env=False
        )
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hermes_cli.main", "gateway", "run"],
            env=host.environment(),
            cwd=host.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(httpx.TransportError):
                if self.client.get("/health").status_code == 200:
                    return
            assert self.process.poll() is None, host.log()
            assert time.monotonic() < deadline, host.log()
            time.sleep(0.1)

    def say(self, session: str, message: str, *, profile: str = "") -> str:
        headers = {"Authorization": f"Bearer {KEY}"}
        if session:
            headers["X-Hermes-Session-Id"] = session
        body = {"model": "fake", "messages": [{"role": "user", "content": message}]}
        prefix = f"/p/{profile}" if profile else ""
        answer = self.client.post(f"{prefix}/v1/chat/completions", json=body, headers=headers)
        answer.raise_for_status()
        text: str = answer.json()["choices"][0]["message"]["content"]
        return text

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.client.close()


@pytest.fixture
def gateway(host: Host) -> Iterator[Gateway]:
    running = Gateway(host)
    yield running
    running.stop()


def test_many_chats_at_once_keep_apart_and_all_are_delivered(gateway: Gateway, host: Host) -> None:
    asked = {f"chat-{number}": OUTBOX if number % 2 else BACKUP for number in range(8)}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda item: gateway.say(*item), asked.items()))

    spans = host.wait_for(lambda spans: len(attributes(spans, "bdh.deliver")) >= 8, seconds=60)
    roots = [span for span in spans if span.name == "bdh.turn"]
    assert {root.session for root in roots} == set(asked)
    for root in roots:
        mine = [span for span in spans if span.trace_id == root.trace_id]
        message = asked[str(root.session)]
        assert {span.session for span in mine} == {root.session}
        assert {a[attr.WRITE_QUERY] for a in attributes(mine, "bdh.write")} == {message}
        assert {a[attr.RETRIEVAL_QUERY] for a in attributes(mine, "retrieval")} == {message}
        assert root.attributes[attr.TURN_CLOSE_REASON] == "end_of_turn"
    for request in host.model.requests():
        if CONTEXT_OPENING in request.user_message:
            given = request.user_message.split(CONTEXT_OPENING)[1]
            wanted = "Outbox" if request.user_message.startswith(OUTBOX) else "Backup"
            assert wanted.lower() in given.lower()


def test_two_callers_whose_session_id_is_derived_alike_both_get_written(
    gateway: Gateway, host: Host
) -> None:
    """Without a session header the host derives the id from the first message."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: gateway.say("", OUTBOX), range(2)))
    spans = host.wait_for(lambda spans: len(attributes(spans, "bdh.deliver")) >= 2, seconds=60)
    roots = [span for span in spans if span.name == "bdh.turn"]
    assert len(roots) == 2
    assert {root.attributes[attr.TURN_CLOSE_REASON] for root in roots} == {"end_of_turn"}


def test_a_killed_gateway_loses_no_accepted_write_and_its_turns_are_closed(
    gateway: Gateway, host: Host, graph: Any
) -> None:
    gateway.say("chat", OUTBOX)
    gateway.process.kill()
    gateway.process.wait(10)
    spans = host.wait_for(lambda spans: attributes(spans, "bdh.deliver"), seconds=60)
    assert attributes(spans, "bdh.deliver")[0][attr.DELIVERY_OUTCOME] == "delivered"
    assert all(span.end_ns is not None for span in spans)


def test_profiles_of_one_gateway_have_a_bridge_each(host: Host, tmp_path: Path) -> None:
    note = {"id": "n", "title": "Note of the other profile", "score": 0.9}
    with peer(answering(json_response({"activated_notes": [note]}))) as other_graph:
        write_config(host.home, host.model.base_url, gateway={"multiplex_profiles": True})
        # The token comes from the first profile's file, as the host puts it in its environment.
        (host.home / ".env").write_text("BDH_API_TOKEN=of-the-first-profile\n")
        other = Host(host.home / "profiles" / "other", host.model)
        write_config(other.home, host.model.base_url)
        (other.home / ".env").write_text(f"BDH_API_URL={other_graph.url}\n")
        link = tmp_path / "link"  # one home under two names
        link.symlink_to(host.home)
        gateway = Gateway(Host(link, host.model, host.environ))
        try:
            gateway.say("chat-other", OUTBOX, profile="other")
            sent = host.model.requests()[-1].user_message
            assert "Note of the other profile" in sent
            gateway.say("chat-own", OUTBOX)
            sent = host.model.requests()[-1].user_message
            assert "Durable Outbox" in sent
            assert "other profile" not in sent
            theirs = other.wait_for(lambda spans: attributes(spans, "bdh.deliver"))
            ours = host.wait_for(lambda spans: attributes(spans, "bdh.deliver"))
        finally:
            gateway.stop()
        assert {span.session for span in theirs if span.name == "bdh.turn"} == {"chat-other"}
        assert {span.session for span in ours if span.name == "bdh.turn"} == {"chat-own"}
        assert b"of-the-first-profile" not in b"".join(other_graph.requests)
