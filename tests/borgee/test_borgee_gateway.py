"""The real gateway: Hermes in a process of its own, a local model, a local Borgee server."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bdh_otel.reader import SpanReader, StoredSpan
from tests.support.borgee import Gateway, Model, make_home, running_gateway
from tests.support.bpp_server import BppServer

pytestmark = [pytest.mark.hermes, pytest.mark.timeout(240)]

ENVIRONMENT = {
    # No graph is needed: what counts here is that the turn's spans are in the message's trace.
    "BDH_API_URL": "http://127.0.0.1:9",
    "BDH_WORKER": "off",
    "BDH_REWRITE_ENABLED": "false",
}


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    found = Model()
    yield found
    found.close()


@pytest.fixture(scope="module")
def borgee() -> Iterator[BppServer]:
    with BppServer() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(
    tmp_path_factory: pytest.TempPathFactory, model: Model, borgee: BppServer
) -> Iterator[Gateway]:
    home = make_home(tmp_path_factory.mktemp("gateway") / "h", borgee.url, model_url=model.url)
    with running_gateway(home, borgee, **ENVIRONMENT) as running:
        yield running


def completed(gateway: Gateway, text: str) -> None:
    gateway.wait(lambda: gateway.statuses(text) == ["completed"])


def spans(gateway: Gateway) -> list[StoredSpan]:
    with contextlib.closing(SpanReader(gateway.home / "bdh-bridge" / "spans.sqlite3")) as reader:
        return reader.after(0, limit=100_000)


def test_a_conversation_in_a_channel_and_in_private(
    gateway: Gateway, model: Model, borgee: BppServer
) -> None:
    context = {"guild_id": "guild-77", "top_level_channel_id": "talk", "task_id": "task-5"}
    borgee.push("good morning", channel_id="talk", conversation_context=context)
    completed(gateway, "good morning")
    [first] = [text for text in model.asked if "good morning" in text]
    assert "[Ada] good morning" in first
    borgee.push("hello from Bob", channel_id="talk", author_id="user-2", author_name="Bob")
    borgee.push("just between us", channel_id="dm-1", channel_type="dm")
    completed(gateway, "hello from Bob")
    completed(gateway, "just between us")
    assert "Answer to: good morning" in borgee.contents("talk")
    assert "Answer to: hello from Bob" in borgee.contents("talk")
    assert "Answer to: just between us" in borgee.contents("dm-1")
    assert any("[Bob] hello from Bob" in text for text in model.asked)
    # A preview was sent and edited to its final form.
    assert any(text == "Answer to: good morning" for _, text in borgee.edits)
    # The real ids reached the model, and the tools that use them.
    at = next(n for n, text in enumerate(model.systems) if "guild_id: guild-77" in text)
    assert "task_id: task-5" in model.systems[at]
    assert {"borgee_list_zones", "borgee_channel_create"} <= model.offered[at]
    assert "borgee_channel_delete" not in model.offered[at]
    # The second message of the channel was told in the same session.
    keys = [row["session_key"] for row in gateway.rows("SELECT session_key FROM receipts")]
    assert set(keys) == {"agent:main:borgee:channel:talk", "agent:main:borgee:dm:dm-1"}


def test_one_trace_from_the_message_to_the_bridge_and_back(
    gateway: Gateway, model: Model, borgee: BppServer
) -> None:
    borgee.push("follow this message", channel_id="traced")
    completed(gateway, "follow this message")
    [row] = gateway.rows(
        "SELECT traceparent FROM receipts WHERE source_body = 'follow this message'"
    )
    trace_id = row["traceparent"].split("-")[1]

    def mine() -> list[StoredSpan]:
        return [span for span in spans(gateway) if span.trace_id == trace_id]

    wanted = {"borgee.receive", "borgee.claim", "borgee.dispatch", "borgee.send", "bdh.turn"}
    gateway.wait(lambda: wanted <= {span.name for span in mine()})
    by_name = {span.name: span for span in mine()}
    receive, dispatch = by_name["borgee.receive"], by_name["borgee.dispatch"]
    assert receive.parent_id is None
    assert by_name["borgee.claim"].parent_id == receive.span_id
    assert dispatch.parent_id == receive.span_id
    # Hermes ran the turn in a pool thread: the context went with it.
    assert by_name["bdh.turn"].parent_id == dispatch.span_id
    assert dispatch.attributes["bdh.borgee.outcome"] == "turn_ran"
    assert any(span.name.startswith("bdh.gate") for span in mine())


def test_the_model_uses_a_tool_of_the_workspace(
    gateway: Gateway, model: Model, borgee: BppServer
) -> None:
    model.tools["which zones"] = ("borgee_list_zones", {"guild_id": "guild-77", "limit": 2})
    borgee.push("which zones are there", channel_id="tools")
    completed(gateway, "which zones")
    assert any('"zone-01"' in result for result in model.results)
    assert borgee.asked("list_zones")[-1].payload == {"guild_id": "guild-77", "limit": 2}


def test_stop_during_a_long_turn(gateway: Gateway, model: Model, borgee: BppServer) -> None:
    gate = model.hold("very long work")
    borgee.push("do some very long work", channel_id="stops")
    gateway.wait(lambda: model.times("very long work"))
    borgee.push("and then this", channel_id="stops")
    borgee.push("/status", channel_id="stops", message_id="status-1")
    completed(gateway, "/status")
    assert gateway.statuses("and then this") == ["pending"]
    borgee.push("/stop", channel_id="stops")
    completed(gateway, "/stop")
    gateway.wait(lambda: gateway.statuses("very long work")[0] in ("completed", "failed"))
    [row] = gateway.rows("SELECT outcome FROM receipts WHERE source_body LIKE '%very long work'")
    assert row["outcome"] == "stopped"
    # The next turn's history holds the stopped message: the model must not wait for it again.
    gate.set()
    completed(gateway, "and then this")
    assert any("topped" in text for text in borgee.contents("stops"))


def test_a_clarify_question_is_answered_during_its_turn(
    gateway: Gateway, model: Model, borgee: BppServer
) -> None:
    model.tools["paint it"] = (
        "clarify",
        {"question": "Which colour shall it be?", "choices": ["red", "blue"]},
    )
    borgee.push("paint it", channel_id="asks")
    borgee.wait_for_post("Which colour shall it be?", 60)
    borgee.push("2", channel_id="asks")
    completed(gateway, "2")
    completed(gateway, "paint it")
    assert any("blue" in result for result in model.results)
    [row] = gateway.rows("SELECT dispatch_class, outcome FROM receipts WHERE source_body = '2'")
    assert (row["dispatch_class"], row["outcome"]) == ("control", "answered")


def test_a_plain_no_answers_an_approval_during_its_turn(
    gateway: Gateway, model: Model, borgee: BppServer, tmp_path: Path
) -> None:
    model.tools["clean up"] = ("terminal", {"command": f"rm -rf {tmp_path}/keep"})
    (tmp_path / "keep").mkdir()
    borgee.push("clean up", channel_id="approves")
    borgee.wait(lambda: any("/approve" in text for text in borgee.contents("approves")), 60)
    borgee.push("no", channel_id="approves")
    completed(gateway, "no")
    completed(gateway, "clean up")
    assert (tmp_path / "keep").is_dir()
    [row] = gateway.rows("SELECT dispatch_class, outcome FROM receipts WHERE source_body = 'no'")
    assert (row["dispatch_class"], row["outcome"]) == ("control", "answered")


def test_the_servers_stop_reaches_the_turn(
    gateway: Gateway, model: Model, borgee: BppServer
) -> None:
    gate = model.hold("endless counting")
    borgee.push("start endless counting", channel_id="server-stop")
    gateway.wait(lambda: model.times("endless counting"))
    answer = borgee.request({"action": "stop_turn", "channel_id": "server-stop"})
    assert answer["data"] == {"aborted": True}
    gateway.wait(lambda: gateway.statuses("endless counting")[0] in ("completed", "failed"))
    gate.set()


def test_killed_in_the_middle_of_turns_and_started_again(
    gateway: Gateway, model: Model, borgee: BppServer
) -> None:
    """The last test of the shared gateway: it is killed, restarted, and then ended in order."""
    model.hold("unfinished business")
    borgee.push("unfinished business", channel_id="killed")
    gateway.wait(lambda: model.times("unfinished business") == 1)
    borgee.push("behind it", channel_id="killed")
    gateway.wait(lambda: gateway.statuses("behind it") == ["pending"])
    gateway.kill()

    early = borgee.connections
    gateway.start()
    borgee.wait(lambda: borgee.connections > early, 90)
    # Hermes is still starting: it would put this into memory and answer nothing.
    borgee.push("while you wake up", channel_id="other")
    completed(gateway, "while you wake up")
    assert model.times("while you wake up") == 1
    assert "Answer to: while you wake up" in borgee.contents("other")
    assert gateway.statuses("unfinished business") == ["quarantined"]
    assert gateway.statuses("behind it") == ["pending"]
    time.sleep(1)
    assert model.times("unfinished business") == 1  # neither the inbox nor Hermes ran it again
    # Hermes made up no turn in conversations that were in use, but had nothing under way.
    assert model.times("gateway interruption") == 0

    [row] = gateway.rows(
        "SELECT ingest_seq FROM receipts WHERE source_body = 'unfinished business'"
    )
    refused = command(gateway, "requeue", str(row["ingest_seq"]))
    assert refused.returncode == 2
    assert "may repeat" in refused.stderr
    model._gates.clear()
    ran = command(gateway, "requeue", str(row["ingest_seq"]), "--may-repeat-effects")
    assert ran.returncode == 0, ran.stderr
    assert "no gateway is running" not in ran.stdout
    completed(gateway, "unfinished business")
    completed(gateway, "behind it")
    assert model.times("unfinished business") == 2

    # An ordinary end in the middle of a turn: Hermes interrupts it, so its fate is open.
    model.hold("cut short")
    borgee.push("this will be cut short", channel_id="last")
    gateway.wait(lambda: model.times("cut short"))
    gateway.stop()
    assert gateway.statuses("cut short") == ["in_doubt"]
    assert not list((gateway.home / "state").rglob("*borgee*.lock"))
    assert [row["ended_at"] for row in gateway.rows("SELECT * FROM gaps")][-1] is None


def command(gateway: Gateway, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bdh_bridge.cli", "borgee", "inbox", *arguments],
        env=gateway.environ,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
