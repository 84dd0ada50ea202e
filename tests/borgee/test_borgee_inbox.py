"""The inbox file and the thread that owns it."""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
import stat
import threading
import time
from pathlib import Path

import pytest
from borgee_plugin_sdk import (
    ConversationContext,
    InboundKind,
    InboundMessageEvent,
    InboundReaction,
    Message,
)

from bdh_otel import database
from hermes_borgee import inbox, ledger, receipts
from hermes_borgee.actor import ActorClosed, SqliteActor
from hermes_borgee.receipts import DispatchClass, NewReceipt, Outcome, Receipt, Status


@pytest.fixture
def connection(tmp_path: Path) -> sqlite3.Connection:
    return database.connect(tmp_path / "borgee" / "inbox.sqlite3", inbox.SCHEMA)


def event(
    message_id: str = "m1",
    body: str = "hello",
    *,
    kind: InboundKind = InboundKind.MESSAGE,
    author: str = "Ada",
    created_at: int = 1000,
) -> InboundMessageEvent:
    return InboundMessageEvent(
        kind=kind,
        channel_id="c1",
        created_at=created_at,
        channel_type="channel",
        message=Message(message_id, "c1", "u1", body, created_at),
        author_name=author,
        conversation_context=ConversationContext("g1", "c1", None, "t1"),
    )


def new(message_id: str = "m1", session: str = "s1", **fields: object) -> NewReceipt:
    receipt = receipts.from_event(event(message_id), session)
    return dataclasses.replace(receipt, **fields)  # type: ignore[arg-type]


def claimed(connection: sqlite3.Connection, number: int | None) -> Receipt:
    assert number is not None
    receipt = inbox.claim(connection, number)
    assert receipt is not None
    return receipt


def status(connection: sqlite3.Connection, number: int | None) -> Status:
    assert number is not None
    found = inbox.get(connection, number)
    assert found is not None
    return found.status


def test_the_file_is_private_and_fully_synchronous(
    connection: sqlite3.Connection, tmp_path: Path
) -> None:
    path = tmp_path / "borgee" / "inbox.sqlite3"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
    assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_everything_the_event_says_is_kept(connection: sqlite3.Connection) -> None:
    number = inbox.commit(connection, receipts.from_event(event(), "s1", "00-aa-bb-01"))
    assert number is not None
    found = inbox.get(connection, number)
    assert found is not None
    assert (found.channel_id, found.author_id, found.author_name) == ("c1", "u1", "Ada")
    assert found.context == {"guild_id": "g1", "top_level_channel_id": "c1", "task_id": "t1"}
    assert (found.source_body, found.source_created_at) == ("hello", 1000)
    assert (found.status, found.attempt, found.traceparent) == (Status.PENDING, 0, "00-aa-bb-01")


def test_a_redelivered_message_is_known_even_after_a_rename(
    connection: sqlite3.Connection,
) -> None:
    assert inbox.commit(connection, receipts.from_event(event(), "s1")) == 1
    renamed = receipts.from_event(event(author="Ada L."), "s1")
    assert inbox.commit(connection, renamed) is None
    mention = receipts.from_event(event(kind=InboundKind.MENTION), "s1")
    assert inbox.commit(connection, mention) is None


def test_events_without_inference_are_final_from_the_start(
    connection: sqlite3.Connection,
) -> None:
    edited = receipts.from_event(event(kind=InboundKind.EDITED, created_at=1), "s1")
    again = receipts.from_event(event(kind=InboundKind.EDITED, created_at=2), "s1")
    deleted = InboundMessageEvent(InboundKind.DELETED, "c1", 3, "channel", message_id="m1")
    reaction = InboundMessageEvent(
        InboundKind.REACTION,
        "c1",
        4,
        "channel",
        message_id="m1",
        reaction=InboundReaction("👍", "u2", True),
    )
    for one in (edited, again, *(receipts.from_event(e, "s1") for e in (deleted, reaction))):
        number = inbox.commit(connection, one)
        assert status(connection, number) is Status.IGNORED
    assert inbox.heads(connection, DispatchClass.ORDINARY) == []


def test_text_that_utf8_cannot_hold_is_stored_all_the_same(connection: sqlite3.Connection) -> None:
    receipt = receipts.from_event(event(body="lone \ud83d surrogate \x00"), "s1")
    number = inbox.commit(connection, receipt)
    assert number is not None
    found = inbox.get(connection, number)
    assert found is not None
    assert "lone" in found.source_body


def test_a_receipt_goes_through_its_states(connection: sqlite3.Connection) -> None:
    number = inbox.commit(connection, new())
    receipt = claimed(connection, number)
    assert (receipt.status, receipt.attempt) == (Status.CLAIMED, 1)
    assert inbox.claim(connection, receipt.ingest_seq) is None
    assert inbox.start(connection, receipt)
    assert not inbox.start(connection, receipt)
    assert inbox.finish(connection, receipt, Status.COMPLETED, Outcome.TURN_RAN)
    assert not inbox.give_back(connection, receipt)
    assert status(connection, number) is Status.COMPLETED


def test_an_old_claim_can_no_longer_settle_a_receipt(connection: sqlite3.Connection) -> None:
    number = inbox.commit(connection, new())
    first = claimed(connection, number)
    assert inbox.give_back(connection, first)
    second = claimed(connection, number)
    assert not inbox.finish(connection, first, Status.FAILED, Outcome.HANDLER_ERROR)
    assert inbox.start(connection, second)
    assert second.attempt == 2


def test_after_a_death_only_what_had_begun_is_in_doubt(connection: sqlite3.Connection) -> None:
    began, had_claim, waited = (inbox.commit(connection, new(f"m{n}")) for n in range(3))
    inbox.start(connection, claimed(connection, began))
    claimed(connection, had_claim)
    assert inbox.mark_in_doubt(connection, Outcome.PROCESS_DIED) == (1, 1)
    assert inbox.mark_in_doubt(connection, Outcome.PROCESS_DIED) == (0, 0)
    assert [status(connection, n) for n in (began, had_claim, waited)] == [
        Status.IN_DOUBT,
        Status.PENDING,
        Status.PENDING,
    ]
    assert began is not None
    assert inbox.quarantine(connection, began)
    assert not inbox.quarantine(connection, began)
    assert inbox.in_status(connection, Status.QUARANTINED) == [(began, "s1")]


def test_an_operator_discards_or_requeues_only_what_is_quarantined(
    connection: sqlite3.Connection,
) -> None:
    numbers = [inbox.commit(connection, new(f"m{n}", status=Status.QUARANTINED)) for n in range(2)]
    waiting = inbox.commit(connection, new("m9"))
    assert None not in numbers
    assert waiting is not None
    assert inbox.discard(connection, numbers[0])  # type: ignore[arg-type]
    assert inbox.requeue(connection, numbers[1])  # type: ignore[arg-type]
    assert not inbox.discard(connection, waiting)
    assert not inbox.requeue(connection, numbers[0])  # type: ignore[arg-type]
    assert inbox.head(connection, DispatchClass.ORDINARY, "s1") == numbers[1]


def test_heads_and_claims_use_the_index_however_deep_the_backlog(
    connection: sqlite3.Connection,
) -> None:
    with database.transaction(connection):
        connection.executemany(
            "INSERT INTO receipts (kind, channel_id, channel_type, author_id, author_name,"
            " message_id, session_key, source_body, effective_body, reply_to_id,"
            " source_created_at, context, dedupe_key, dispatch_class, forced_queue, status,"
            " outcome, error, traceparent, created_at, updated_at) VALUES ('message','c','channel',"
            "'u','A','m',?, 'x','x','',0,'{}',?, 'ordinary',0,'pending','','','',0,0)",
            [(f"s{n % 50}", str(n)) for n in range(5_000)],
        )
    heads = inbox.heads(connection, DispatchClass.ORDINARY)
    assert sorted(head.ingest_seq for head in heads) == list(range(1, 51))
    for sql in (
        "SELECT min(ingest_seq) FROM receipts WHERE status = 'pending' AND dispatch_class = 'x'"
        " AND session_key = 's'",
        f"SELECT ingest_seq FROM receipts WHERE status = 'claimed' AND {inbox._OPEN}",
    ):
        plan = " ".join(row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + sql))
        assert "USING" in plan
        assert "INDEX" in plan
        assert "SCAN" not in plan


def test_retention_removes_bodies_first_and_never_touches_what_is_open(
    connection: sqlite3.Connection,
) -> None:
    done = claimed(connection, inbox.commit(connection, new("old")))
    inbox.finish(connection, done, Status.COMPLETED, Outcome.TURN_RAN)
    open_ones = [
        inbox.commit(connection, new("q", status=Status.QUARANTINED)),
        inbox.commit(connection, new("p")),
    ]
    ledger.remember_sent(connection, "out-1", "c1")
    assert ledger.was_sent(connection, "out-1", "c1")
    assert not ledger.was_sent(connection, "out-1", "c2")
    now = time.time()
    while ledger.prune(connection, 30, now + 8 * ledger.DAY):
        pass
    found = inbox.get(connection, done.ingest_seq)
    assert found is not None
    assert found.source_body == ""
    assert inbox.commit(connection, new("old")) is None  # still known
    assert not ledger.was_sent(connection, "out-1", "c1")
    while ledger.prune(connection, 30, now + 31 * ledger.DAY):
        pass
    assert inbox.get(connection, done.ingest_seq) is None
    for number in open_ones:
        assert number is not None
        kept = inbox.get(connection, number)
        assert kept is not None
        assert kept.source_body == "hello"


def test_gaps_are_one_at_a_time(connection: sqlite3.Connection) -> None:
    assert ledger.close_gap(connection) is None
    ledger.open_gap(connection, "network")
    ledger.open_gap(connection, "again")
    assert ledger.close_gap(connection) is not None
    [gap] = ledger.gaps(connection)
    assert gap.reason == "network"
    assert gap.ended_at is not None


# ── The actor ───────────────────────────────────────────────────────────────────────────────


async def test_a_cancelled_operation_has_settled_when_the_caller_hears_of_it(
    tmp_path: Path,
) -> None:
    actor = SqliteActor(tmp_path / "x" / "i.sqlite3", inbox.SCHEMA)
    await actor.open()
    entered, release = threading.Event(), threading.Event()
    finished: list[bool] = []

    def slow(_: sqlite3.Connection) -> None:
        entered.set()
        release.wait(10)
        finished.append(True)

    task = asyncio.create_task(actor.run(slow))
    await asyncio.to_thread(entered.wait, 10)
    task.cancel()
    await asyncio.sleep(0.05)
    assert not task.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert finished == [True]
    await actor.close()


async def test_a_cancelled_open_closes_its_connection_and_ends_the_actor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, release = threading.Event(), threading.Event()
    opened: list[sqlite3.Connection] = []
    real = database.connect

    def slow(*args: object, **kwargs: object) -> sqlite3.Connection:
        entered.set()
        release.wait(10)
        opened.append(real(*args, **kwargs))  # type: ignore[arg-type]
        return opened[0]

    monkeypatch.setattr(database, "connect", slow)
    actor = SqliteActor(tmp_path / "x" / "i.sqlite3", inbox.SCHEMA)
    task = asyncio.create_task(actor.open())
    await asyncio.to_thread(entered.wait, 10)
    task.cancel()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(sqlite3.ProgrammingError):
        opened[0].execute("SELECT 1")
    with pytest.raises(ActorClosed):
        await actor.open()
    assert not [t for t in threading.enumerate() if t.name.startswith("borgee-inbox")]


async def test_close_is_idempotent_and_finishes_under_cancellation(tmp_path: Path) -> None:
    actor = SqliteActor(tmp_path / "x" / "i.sqlite3", inbox.SCHEMA)
    await actor.open()
    release = threading.Event()
    running = asyncio.create_task(actor.run(lambda _: release.wait(10)))
    await asyncio.sleep(0)
    closers = [asyncio.create_task(actor.close()) for _ in range(3)]
    await asyncio.sleep(0.02)
    closers[0].cancel()
    release.set()
    results = await asyncio.gather(*closers, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [None, None]
    assert await running is True
    with pytest.raises(ActorClosed):
        await actor.run(lambda _: None)
    await actor.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("borgee-inbox")]


async def test_a_foreign_file_is_refused_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "i.sqlite3"
    path.touch(mode=0o600)
    with sqlite3.connect(path) as foreign:
        foreign.execute("CREATE TABLE t (x)")
    actor = SqliteActor(path, inbox.SCHEMA)
    with pytest.raises(database.StoreError, match="not a Borgee inbox"):
        await actor.open()
