"""The adapter between a real server and a handler: intake, evidence, lanes, leaving."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bdh_otel import database
from hermes_borgee import inbox, intake, live
from hermes_borgee.receipts import Outcome, Status
from hermes_borgee.remediation import Refused
from tests.support.borgee import until
from tests.support.borgee_adapter import FAST, Bench, running
from tests.support.bpp_server import AGENT_ID, BppServer, Denied


@pytest.fixture(autouse=True)
def own_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(home))
    monkeypatch.setenv("HERMES_GATEWAY_LOCK_DIR", str(home / "locks"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))


@pytest.fixture
async def bench(home: Path) -> AsyncIterator[Bench]:
    async with running(home) as found:
        yield found


# ── Intake ──────────────────────────────────────────────────────────────────────────────────


async def test_a_message_is_answered_in_its_channel(bench: Bench, server: BppServer) -> None:
    context = {"guild_id": "g-7", "top_level_channel_id": "chan-1", "task_id": "t-3"}
    server.push("hello", conversation_context=context)
    receipt = await bench.until_state("hello", "completed")
    assert receipt.outcome == Outcome.TURN_RAN
    assert receipt.session_key == "agent:main:borgee:channel:chan-1"
    assert server.contents("chan-1") == ["Answer to: hello"]
    [event] = bench.events
    assert event.source.user_name == "Ada"
    assert event.source.chat_type == "channel"
    # What the model gets: real ids for its tools.
    assert "guild_id: g-7" in event.channel_prompt
    assert "task_id: t-3" in event.channel_prompt
    assert "thread_id" not in event.channel_prompt


async def test_a_direct_message_and_a_channel_have_sessions_of_their_own(
    bench: Bench, server: BppServer
) -> None:
    server.push("to you", channel_id="d1", channel_type="dm")
    server.push("from Ada", author_id="u1", author_name="Ada")
    server.push("from Bob", author_id="u2", author_name="Bob")
    await bench.until_state("from Bob", "completed")
    await bench.until_state("to you", "completed")
    keys = [receipt.session_key for receipt in await bench.receipts()]
    channel = "agent:main:borgee:channel:chan-1"
    assert keys == ["agent:main:borgee:dm:d1", channel, channel]
    assert [e.source.user_name for e in bench.events if e.source.chat_id == "chan-1"] == [
        "Ada",
        "Bob",
    ]


async def test_the_receipt_is_committed_before_the_delivery_is_checkpointed(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    desk = bench.adapter._desk
    assert desk is not None
    commit = desk.commit

    async def committed(receipt: Any) -> int | None:
        number = await commit(receipt)
        order.append("commit")
        return number

    checkpoint = intake.Intake._checkpoint

    async def checkpointed(self: Any, delivery: Any) -> None:
        order.append("checkpoint")
        await checkpoint(self, delivery)

    monkeypatch.setattr(desk, "commit", committed)
    monkeypatch.setattr(intake.Intake, "_checkpoint", checkpointed)
    server.push("hello")
    await bench.until_state("hello", "completed")
    assert order == ["commit", "checkpoint"]


async def test_a_checkpoint_that_comes_too_late_is_no_error(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = bench.adapter._desk
    assert desk is not None
    commit = desk.commit

    async def slow(receipt: Any) -> int | None:
        number = await commit(receipt)
        if receipt.source_body == "stale":
            await asyncio.to_thread(server.drop, 1012)
            link = bench.adapter.link
            assert link is not None
            await until(lambda: server.connections == 2 and link.online)
        return number

    monkeypatch.setattr(desk, "commit", slow)
    server.push("stale")
    await bench.until_state("stale", "completed")
    server.push("next")
    await bench.until_state("next", "completed")
    assert bench.seen == ["stale", "next"]
    assert bench.fatal == []


async def test_a_message_delivered_twice_runs_once_whatever_its_author_is_called(
    bench: Bench, server: BppServer
) -> None:
    frame = server.message("once")
    server.send(frame)
    server.send({**frame, "author_name": "Ada Lovelace"})
    server.push("last")
    await bench.until_state("last", "completed")
    assert bench.seen == ["once", "last"]


async def test_the_agents_own_messages_come_back_unanswered(
    bench: Bench, server: BppServer
) -> None:
    server.echo = True
    server.push("hello")
    await bench.until_state("hello", "completed")
    own = next(iter(server.posted))
    server.push("renamed echo", message_id=own, author_id="someone")  # told by its id alone
    server.push("mine", author_id=AGENT_ID)
    server.push("last")
    await bench.until_state("last", "completed")
    assert [text for text, _, _ in await bench.states()] == ["hello", "last"]


async def test_edits_deletions_and_reactions_are_kept_but_start_nothing(
    bench: Bench, server: BppServer
) -> None:
    server.push("changed", kind="edited", message_id="m1")
    server.push("", kind="deleted", message_id="m1")
    server.push(
        "", kind="reaction", message_id="m1", emoji="👍", reactor_id="u", reaction_added=True
    )
    server.push("   ", message_id="m2")
    server.push("last", kind="mention")
    await bench.until_state("last", "completed")
    states = [(r.kind, r.status.value) for r in await bench.receipts()]
    assert states[:4] == [
        ("edited", "ignored"),
        ("deleted", "ignored"),
        ("reaction", "ignored"),
        ("message", "ignored"),
    ]
    assert bench.seen == ["last"]


@pytest.mark.parametrize("fault", ["classification", "no id"])
async def test_a_poison_event_is_quarantined_and_intake_goes_on(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    if fault == "classification":
        real = bench.adapter.host.classify

        def classify(text: str, *rest: Any) -> Any:
            if text == "poison":
                raise KeyError("a fault in the host")
            return real(text, *rest)

        monkeypatch.setattr(bench.adapter.host, "classify", classify)
        server.push("poison", channel_id="c2")
    else:
        server.push("poison", channel_id="c2", message_id="")
    server.push("behind it", channel_id="c2")
    server.push("elsewhere")
    await bench.until_state("elsewhere", "completed")
    receipt = await bench.until_state("poison", "quarantined")
    assert receipt.outcome == Outcome.POISON
    assert receipt.error
    assert (await bench.until_state("behind it", "pending")).attempt == 0
    await bench.adapter.remediate_receipt(receipt.ingest_seq, "discard")
    await bench.until_state("behind it", "completed")


async def test_while_the_inbox_cannot_be_written_the_message_is_held_back(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "COMMIT_PAUSES", (0.05,))
    desk = bench.adapter._desk
    assert desk is not None
    commit, failures = desk.commit, 3

    async def failing(receipt: Any) -> int | None:
        nonlocal failures
        if failures:
            failures -= 1
            raise database.StoreUnavailable(desk.path, "disk full", "free some disk space")
        return await commit(receipt)

    monkeypatch.setattr(desk, "commit", failing)
    server.push("first")
    server.push("second")
    await bench.until_state("second", "completed")
    assert bench.seen == ["first", "second"]


# ── Evidence ────────────────────────────────────────────────────────────────────────────────


async def test_a_handler_that_raises_fails_its_receipt_at_once(
    bench: Bench, server: BppServer
) -> None:
    bench.errors["boom"] = RuntimeError("the handler broke")
    server.push("boom")
    receipt = await bench.until_state("boom", "failed")
    assert receipt.outcome == Outcome.HANDLER_ERROR
    assert "the handler broke" in receipt.error
    server.push("after")
    await bench.until_state("after", "completed")


async def test_a_control_that_raises_fails_at_once_and_suspends_nothing(
    bench: Bench, server: BppServer
) -> None:
    key = bench.make_session()
    gate = bench.hold("long")
    server.push("long")
    await bench.until_seen("long")
    bench.errors["/status"] = RuntimeError("swallowed by the host")
    server.push("/status")
    receipt = await bench.until_state("/status", "failed")
    assert receipt.outcome == Outcome.HANDLER_ERROR
    assert not bench.store._entries[key].suspended
    gate.set()
    await bench.until_state("long", "completed")


async def test_a_message_that_cannot_be_handed_over_fails_and_holds_nobody_up(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    event_of = bench.adapter.event_of

    def broken(receipt: Any) -> Any:
        if receipt.source_body == "unfit":
            raise ValueError("no event can be made of this")
        return event_of(receipt)

    monkeypatch.setattr(bench.adapter, "event_of", broken)
    server.push("unfit")
    server.push("from the far future", created_at=10**18)
    await bench.until_state("from the far future", "completed")
    assert (await bench.until_state("unfit", "failed")).outcome == Outcome.HANDLER_ERROR


@pytest.mark.parametrize("operation", ["claim", "begin", "finish"])
async def test_an_inbox_that_cannot_be_written_for_a_while_costs_time_only(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    from hermes_borgee import dispatch, scheduler

    monkeypatch.setattr(dispatch, "STORE_PAUSE", 0.05)
    monkeypatch.setattr(scheduler, "STORE_PAUSE", 0.05)
    desk, work = bench.adapter._desk, bench.adapter._scheduler._work
    owner, name = (work, "_claim") if operation == "claim" else (desk, operation)
    real, failures = getattr(owner, name), 2

    async def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise database.StoreUnavailable(desk.path, "disk full", "free some disk space")
        return await real(*args, **kwargs)

    monkeypatch.setattr(owner, name, failing)
    server.push("patient")
    server.push("next")
    await bench.until_state("next", "completed")
    assert bench.seen == ["patient", "next"]
    assert server.contents() == ["Answer to: patient", "Answer to: next"]


async def test_a_message_that_hermes_offers_twice_runs_once(
    bench: Bench, server: BppServer
) -> None:
    gate = bench.hold("once")
    server.push("once")
    await bench.until_seen("once")
    assert await bench.adapter._on_message(bench.events[0]) is None
    gate.set()
    await bench.until_state("once", "completed")
    assert bench.seen == ["once"]
    assert await bench.adapter._on_message(bench.events[0]) is None  # and after its end


async def test_completed_needs_evidence_that_a_turn_ran(bench: Bench, server: BppServer) -> None:
    bench.calls_model = False
    bench.answer = lambda _: None  # as when a plugin drops the message
    server.push("dropped")
    receipt = await bench.until_state("dropped", "failed")
    assert receipt.outcome == Outcome.NO_TURN


async def test_while_hermes_starts_nothing_is_handed_over(home: Path, server: BppServer) -> None:
    bench = Bench(home)
    bench.runner._startup_restore_in_progress = True
    assert await bench.adapter.connect()
    server.push("early")
    receipt = await bench.until_state("early", "pending")
    await asyncio.sleep(0.3)
    assert bench.seen == []
    bench.runner.adapters[bench.adapter.platform] = bench.adapter
    await asyncio.sleep(0.2)
    assert (await bench.until_state("early", "pending")).attempt == receipt.attempt == 0
    bench.runner._startup_restore_in_progress = False
    await bench.until_state("early", "completed")
    await bench.stop()


async def test_a_gate_that_closes_between_claim_and_start_gives_the_message_back(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = bench.adapter._desk
    assert desk is not None
    begin = desk.begin

    async def closing(receipt: Any) -> bool:
        began = await begin(receipt)
        bench.runner._draining = True
        return began

    monkeypatch.setattr(desk, "begin", closing)
    server.push("late")
    await until(lambda: bench.runner._draining)
    receipt = await bench.until_state("late", "pending")
    assert bench.seen == []
    assert receipt.attempt == 1
    monkeypatch.setattr(desk, "begin", begin)
    bench.runner._draining = False
    await bench.until_state("late", "completed")
    assert bench.seen == ["late"]


async def test_a_turn_that_hermes_made_up_itself_is_waited_for(
    bench: Bench, server: BppServer
) -> None:
    from gateway.platforms.base import MessageEvent

    gate = bench.hold("synthetic")
    source = bench.adapter.build_source(chat_id="chan-1", chat_type="channel", user_id="x")
    await bench.adapter.handle_message(MessageEvent(text="synthetic", source=source, internal=True))
    await bench.until_seen("synthetic")
    server.push("real")
    await bench.until_state("real", "pending")
    await asyncio.sleep(0.3)
    assert bench.seen == ["synthetic"]
    assert bench.adapter._pending_messages == {}
    gate.set()
    await bench.until_state("real", "completed")
    assert bench.seen == ["synthetic", "real"]


async def test_a_message_that_finds_the_session_taken_stays_out_of_hermes_queue(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is taken in the moment between the look at it and the handing over."""
    from gateway.platforms.base import MessageEvent

    gate = bench.hold("synthetic")
    hand_over = bench.adapter.hand_over
    source = bench.adapter.build_source(chat_id="chan-1", chat_type="channel", user_id="x")

    async def overtaken(event: Any) -> None:
        if not bench.seen:
            await hand_over(MessageEvent(text="synthetic", source=source, internal=True))
            await bench.until_seen("synthetic")
        await hand_over(event)

    monkeypatch.setattr(bench.adapter, "hand_over", overtaken)
    server.push("real")
    await bench.until_seen("synthetic")
    receipt = await bench.until_state("real", "pending")
    assert receipt.attempt == 1
    assert bench.adapter._pending_messages == {}
    gate.set()
    await bench.until_state("real", "completed")
    assert bench.seen == ["synthetic", "real"]


async def test_a_turn_of_the_runner_under_another_adapter_is_waited_for(
    bench: Bench, server: BppServer
) -> None:
    key = "agent:main:borgee:channel:chan-1"
    bench.runner._running_agents[key] = object()
    server.push("waits")
    await bench.until_state("waits", "pending")
    await asyncio.sleep(0.3)
    assert bench.seen == []
    bench.runner._running_agents.clear()
    await bench.until_state("waits", "completed")


async def test_a_reply_that_cannot_be_sent_is_told(bench: Bench, server: BppServer) -> None:
    server.answers["send_message"] = lambda _: Denied("message.send")
    server.push("hello")
    receipt = await bench.until_state("hello", "failed")
    assert receipt.outcome == Outcome.UNDELIVERED
    assert len(server.asked("send_message")) == 1  # no second try in another form


async def test_a_reply_waits_for_the_connection_to_come_back(
    bench: Bench, server: BppServer
) -> None:
    gate = bench.hold("patience")
    server.push("patience")
    await bench.until_seen("patience")
    server.status = 503
    server.drop(1002)
    await until(lambda: not bench.adapter.is_connected)
    gate.set()
    await asyncio.sleep(0.2)
    assert server.contents() == []
    server.status = None
    await bench.until_state("patience", "completed")
    assert server.contents() == ["Answer to: patience"]


# ── Lanes ───────────────────────────────────────────────────────────────────────────────────


async def test_commands_pass_a_running_turn_and_stop_ends_it(
    bench: Bench, server: BppServer
) -> None:
    bench.hold("long")
    server.push("long")
    await bench.until_seen("long")
    server.push("waits")
    server.push("/status")
    await bench.until_state("/status", "completed")
    assert "waits" not in bench.seen
    server.push("/stop")
    await bench.until_state("/stop", "completed")
    receipt = await bench.until_state("long", "completed")
    assert receipt.outcome == Outcome.STOPPED
    await bench.until_state("waits", "completed")


async def test_a_command_in_an_idle_session_waits_for_its_place(
    bench: Bench, server: BppServer
) -> None:
    bench.runner._draining = True
    for text in ("one", "/status", "two"):
        server.push(text)
    await bench.until_state("two", "pending")
    bench.runner._draining = False
    await bench.until_state("two", "completed")
    assert bench.seen == ["one", "/status", "two"]


async def test_queue_keeps_its_payload_for_the_time_after(bench: Bench, server: BppServer) -> None:
    gate = bench.hold("long")
    server.push("long")
    await bench.until_seen("long")
    server.push("/queue do this later")
    server.push("/q and this")
    server.push("/queue")
    usage = await bench.until_state("/queue", "completed")
    assert usage.dispatch_class == "control"  # the host answers how to use it
    later = await bench.until_state("/queue do this later", "pending")
    assert (later.effective_body, later.forced_queue) == ("do this later", True)
    gate.set()
    await bench.until_state("/q and this", "completed")
    assert bench.seen == ["long", "/queue", "do this later", "and this"]


async def test_the_answer_to_a_clarify_question_reaches_it(bench: Bench, server: BppServer) -> None:
    from tools import clarify_gateway

    key = bench.make_session()
    gate = bench.hold("long")
    server.push("long")
    await bench.until_seen("long")
    clarify_gateway.register("clarify-1", key, "Which one?", ["red", "blue"])
    try:
        server.push("blue")
        receipt = await bench.until_state("blue", "completed")
        assert receipt.dispatch_class == "control"
    finally:
        clarify_gateway.clear_session(key)
    assert bench.seen == ["long", "blue"]
    gate.set()


async def test_a_plain_yes_reaches_the_approval_that_waits_for_it(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tools import approval

    key = bench.make_session()
    gate = bench.hold("long")
    answered: list[str] = []

    async def host_busy(event: Any, session_key: str) -> bool:
        answered.append(event.text)
        approval._gateway_queues.pop(session_key, None)
        return True

    bench.on_busy = host_busy
    server.push("long")
    await bench.until_seen("long")
    monkeypatch.setitem(approval._gateway_queues, key, [object()])
    server.push("what is that?")  # no answer: waits its turn
    server.push("yes")
    receipt = await bench.until_state("yes", "completed")
    assert receipt.outcome == Outcome.ANSWERED
    assert answered == ["yes"]
    assert bench.seen == ["long"]
    server.push("ok")  # nothing waits any more: an ordinary message
    gate.set()
    await bench.until_state("ok", "completed")
    assert bench.seen == ["long", "what is that?", "ok"]


async def test_an_answer_that_comes_too_late_becomes_an_ordinary_message(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hermes_borgee.host import Classified
    from hermes_borgee.receipts import DispatchClass

    gate = bench.hold("long")
    server.push("long")
    await bench.until_seen("long")
    monkeypatch.setattr(
        bench.adapter.host, "classify", lambda text, *_: Classified(DispatchClass.CONTROL, text)
    )
    server.push("yes")  # at its commit an approval waited; it does not any more
    receipt = await bench.until_state("yes", "pending")
    await until(lambda: bench.adapter._scheduler.active == 1)
    gate.set()
    receipt = await bench.until_state("yes", "completed")
    assert (receipt.dispatch_class, receipt.outcome) == ("ordinary", Outcome.TURN_RAN)


async def test_a_control_that_hangs_frees_its_slot_and_is_quarantined(
    home: Path, server: BppServer
) -> None:
    from tests.support.borgee import make_home

    make_home(home, server.url, control_timeout_seconds=1)
    async with running(home) as bench:
        key = bench.make_session()
        gate = bench.hold("long")
        bench.hold("/status")
        server.push("long")
        await bench.until_seen("long")
        server.push("/status")
        server.push("/help")
        receipt = await bench.until_state("/status", "quarantined")
        assert receipt.outcome == Outcome.CONTROL_TIMEOUT
        assert bench.store._entries[key].suspended
        await bench.until_state("/help", "completed")
        server.push("later")
        await bench.until_state("later", "pending")
        with pytest.raises(Refused, match="a turn of its session runs"):
            await bench.adapter.remediate_receipt(receipt.ingest_seq, "discard")
        gate.set()
        await bench.until_state("long", "completed")
        await asyncio.sleep(0.2)
        assert "later" not in bench.seen
        await bench.adapter.remediate_receipt(receipt.ingest_seq, "discard")
        await bench.until_state("later", "completed")


async def test_the_servers_stop_turn_is_hermes_stop(bench: Bench, server: BppServer) -> None:
    bench.hold("long")
    server.push("long")
    await bench.until_seen("long")
    answer = await asyncio.to_thread(
        server.request, {"action": "stop_turn", "channel_id": "chan-1"}
    )
    assert answer["data"] == {"aborted": True}
    await bench.until_state("long", "completed")
    assert "/stop" in bench.seen
    answer = await asyncio.to_thread(
        server.request, {"action": "stop_turn", "channel_id": "chan-1"}
    )
    assert answer["data"] == {"aborted": False}


# ── Recovery and leaving ────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def raw_inbox(home: Path) -> Any:
    from hermes_borgee.config import inbox_path

    connection = database.connect(inbox_path(home), inbox.SCHEMA)
    with contextlib.closing(connection):
        yield connection


def left_behind(home: Path, status: Status, session_key: str, name: str) -> int:
    """A receipt as a killed process leaves it."""
    from tests.support.receipts import plain

    with raw_inbox(home) as connection:
        number = inbox.commit(connection, plain(name, session_key))
        assert number is not None
        if status is not Status.PENDING:
            receipt = inbox.claim(connection, number)
            assert receipt is not None
            if status is not Status.CLAIMED:
                inbox.start(connection, receipt)
            if status is Status.IN_DOUBT:
                inbox.mark_in_doubt(connection, Outcome.PROCESS_DIED)
        return number


@pytest.mark.parametrize("status", [Status.PENDING, Status.CLAIMED])
async def test_what_had_not_begun_runs_after_a_restart(home: Path, status: Status) -> None:
    left_behind(home, status, "agent:main:borgee:channel:chan-1", "waiting")
    async with running(home) as bench:
        await bench.until_state("waiting", "completed")
        assert bench.seen == ["waiting"]


@pytest.mark.parametrize("status", [Status.PROCESSING, Status.IN_DOUBT])
@pytest.mark.parametrize("with_session", [True, False])
async def test_what_had_begun_is_quarantined_and_its_session_suspended(
    home: Path, server: BppServer, status: Status, with_session: bool
) -> None:
    bench = Bench(home)
    key = "agent:main:borgee:channel:chan-1"
    if with_session:
        assert bench.make_session() == key
        bench.store.mark_resume_pending(key)
    number = left_behind(home, status, key, "doubtful")
    left_behind(home, Status.PENDING, key, "behind it")
    assert await bench.start()
    receipt = await bench.until_state("doubtful", "quarantined")
    assert receipt.outcome == Outcome.PROCESS_DIED
    if with_session:
        assert bench.store._entries[key].suspended
        assert not bench.store._entries[key].resume_pending
    server.push("elsewhere", channel_id="c2")
    await bench.until_state("elsewhere", "completed")
    await asyncio.sleep(0.2)
    assert bench.seen == ["elsewhere"]  # nothing discards or runs it by itself

    with pytest.raises(Refused, match="may repeat"):
        await bench.adapter.remediate_receipt(number, "requeue")
    old = bench.store.peek_session_id(key)
    answer = await bench.adapter.remediate_receipt(
        number, "requeue", confirm_duplicate_side_effect_risk=True
    )
    assert ("session was reset" in answer) is with_session
    if with_session:
        assert bench.store.peek_session_id(key) != old
        assert bench.runner.evicted == [key]
    await bench.until_state("behind it", "completed")
    assert bench.seen == ["elsewhere", "doubtful", "behind it"]
    with pytest.raises(Refused, match="completed"):
        await bench.adapter.remediate_receipt(number, "discard")
    await bench.stop()


async def test_recovery_repeats_after_a_crash_between_the_two_databases(
    home: Path, server: BppServer
) -> None:
    """Suspended but not yet quarantined: the next start does both again."""
    bench = Bench(home)
    key = bench.make_session()
    left_behind(home, Status.IN_DOUBT, key, "doubtful")
    bench.store.suspend_session(key)
    assert await bench.start()
    await bench.until_state("doubtful", "quarantined")
    assert bench.store._entries[key].suspended
    await bench.stop()


async def test_leaving_drains_what_runs_and_keeps_what_waits(home: Path, server: BppServer) -> None:
    async with running(home) as bench:
        gate = bench.hold("long")
        server.push("long")
        await bench.until_seen("long")
        server.push("waits")
        await bench.until_state("waits", "pending")
        leaving = asyncio.create_task(bench.adapter.cancel_background_tasks())
        await asyncio.sleep(0.1)
        server.push("too late to start", channel_id="c2")
        gate.set()
        await leaving
        await bench.adapter.disconnect()
    with raw_inbox(home) as connection:
        states = {r.source_body: r.status for r in inbox.select(connection)}
    assert states["long"] is Status.COMPLETED
    assert states["waits"] is Status.PENDING
    assert states.get("too late to start", Status.PENDING) is Status.PENDING
    assert "Answer to: long" in server.contents()


async def test_what_does_not_end_within_the_bound_stays_in_doubt(
    home: Path, server: BppServer
) -> None:
    from tests.support.borgee import make_home

    make_home(home, server.url, drain_timeout_seconds=0.1)
    async with running(home) as bench:
        key = bench.make_session()
        bench.hold("endless")
        server.push("endless")
        await bench.until_seen("endless")
        await bench.adapter.cancel_background_tasks()
        await bench.adapter.disconnect()
    with raw_inbox(home) as connection:
        [receipt] = inbox.select(connection)
    assert receipt.status is Status.IN_DOUBT
    async with running(home) as again:
        await again.until_state("endless", "quarantined")
        assert again.store._entries[key].suspended


async def test_leaving_closes_everything_even_if_hermes_stops_waiting(
    home: Path, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(home)
    assert await bench.start()
    bench.hold("slow")
    server.push("slow")
    await bench.until_seen("slow")
    leaving = asyncio.create_task(bench.adapter.disconnect())
    await asyncio.sleep(0.05)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    bench.gates["slow"].set()
    await until(lambda: not server._open and not list((home / "locks").glob("*.lock")))
    second = Bench(home)
    assert await second.start()  # the locks and the file are free again
    await second.stop()


async def test_no_connection_no_success(home: Path, server: BppServer) -> None:
    server.status = 503
    bench = Bench(home)
    assert not await bench.start()
    assert bench.adapter.fatal_error_code == "borgee_server_error"
    assert bench.adapter.fatal_error_retryable
    await bench.adapter.disconnect()
    server.status = None
    again = Bench(home)
    assert await again.start()
    await again.stop()


async def test_a_wrong_key_is_final_and_hermes_is_told(home: Path, server: BppServer) -> None:
    async with running(home) as bench:
        server.drop(4004)
        await until(lambda: bench.fatal)
        assert bench.fatal == ["borgee_auth"]
        assert not bench.adapter.fatal_error_retryable
        assert not bench.adapter.is_connected


async def test_a_wrong_configuration_is_final_and_names_its_keys(
    home: Path, server: BppServer
) -> None:
    from tests.support.borgee import make_home

    make_home(home, "http://10.1.2.3:80", max_concurrent_dispatches=0)
    bench = Bench(home)
    assert not await bench.start()
    assert not bench.adapter.fatal_error_retryable
    message = bench.adapter.fatal_error_message
    assert "borgee.base_url" in message
    assert "borgee.max_concurrent_dispatches" in message
    await bench.adapter.disconnect()
    assert server.upgrades == 0


async def test_a_second_gateway_is_told_who_has_the_agent(home: Path, server: BppServer) -> None:
    async with running(home):
        second = Bench(home)
        assert not await second.start()
        assert second.adapter.fatal_error_code == "borgee_lock"
        assert second.adapter.fatal_error_retryable
        assert server.connections == 1
        await second.adapter.disconnect()


async def test_a_time_without_connection_is_told_as_a_gap(
    bench: Bench, server: BppServer, caplog: pytest.LogCaptureFixture
) -> None:
    from hermes_borgee.operator import Operator

    server.status = 503
    server.drop(1012)
    await until(lambda: not bench.adapter.is_connected)
    server.push("nobody hears this")
    server.status = None
    with caplog.at_level(logging.WARNING):
        await until(lambda: bench.adapter.is_connected)
        await until(lambda: "were not delivered" in caplog.text)
    [gap] = Operator(bench.home).gaps()
    assert gap.ended_at is not None
    await asyncio.sleep(0.1)
    assert bench.seen == []  # it did not pass Borgee's mention policy for this agent
    assert server.asked("read_channel_history") == []


async def test_typing_is_not_made_up(bench: Bench, server: BppServer) -> None:
    gate = bench.hold("long")
    server.push("long")
    await bench.until_seen("long")
    await bench.adapter.send_typing("chan-1")
    gate.set()
    await bench.until_state("long", "completed")
    assert [frame for frame in server.frames if frame["type"] == "typing"] == []


async def test_tools_follow_the_live_adapter(
    home: Path, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hermes_borgee import tools

    monkeypatch.setenv("BORGEE_API_KEY", "bgr_test_key")
    assert not tools.available()
    async with running(home, dataclasses.replace(FAST, disabled_retry=30.0)) as bench:
        assert tools.available()
        assert live.current() is not None
        server.status = 503
        server.drop(1002)
        await until(lambda: not bench.adapter.is_connected)
        assert not tools.available()
        server.status = None
        await until(lambda: bench.adapter.is_connected)
        assert tools.available()
    assert not tools.available()
    assert live.current() is None


def test_the_inbox_lies_where_it_is_documented(home: Path) -> None:
    left_behind(home, Status.PENDING, "s", "x")
    path = home / "plugins" / "borgee" / "inbox.sqlite3"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM receipts").fetchone()[0] == 1
