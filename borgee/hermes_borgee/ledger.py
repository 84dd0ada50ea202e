"""What else the inbox file keeps: sent ids, operators' requests, gaps, health; and retention."""

from __future__ import annotations

import os
import sqlite3
import time
from dataclasses import dataclass

from bdh_otel import database
from bdh_otel.state_table import SLICE, drop_slice
from hermes_borgee.inbox import FINAL, decide

#: An echo arrives within seconds; this is only a bound.
OUTBOUND_DAYS = 7.0
#: Bodies go sooner than the receipts, which de-duplication still needs.
BODY_DAYS = 7.0
DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Request:
    """What an operator asked of the running gateway. ``state``: waiting, done or refused."""

    id: int
    ingest_seq: int
    action: str
    confirmed: bool
    created_at: float
    state: str
    answer: str


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without connection: what was written in it was not delivered and will not be."""

    started_at: float
    ended_at: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Health:
    """``state`` is a :class:`~hermes_borgee.link.LinkState`, or ``stopped``."""

    state: str
    reason: str
    since: float


def remember_sent(connection: sqlite3.Connection, message_id: str, channel_id: str) -> None:
    with database.transaction(connection):
        connection.execute(
            "INSERT OR REPLACE INTO outbound_messages VALUES (?, ?, ?)",
            (message_id, channel_id, time.time()),
        )


def was_sent(connection: sqlite3.Connection, message_id: str, channel_id: str) -> bool:
    """Whether the agent wrote that message of that channel."""
    row = connection.execute(
        "SELECT 1 FROM outbound_messages WHERE message_id = ? AND channel_id = ?",
        (message_id, channel_id),
    ).fetchone()
    return row is not None


def add_request(
    connection: sqlite3.Connection, ingest_seq: int, action: str, *, confirmed: bool
) -> int:
    with database.transaction(connection):
        cursor = connection.execute(
            "INSERT INTO requests (ingest_seq, action, confirmed, created_at) VALUES (?, ?, ?, ?)",
            (ingest_seq, action, int(confirmed), time.time()),
        )
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def waiting_requests(connection: sqlite3.Connection) -> list[Request]:
    rows = connection.execute("SELECT * FROM requests WHERE state = 'waiting' ORDER BY id")
    return [_request(row) for row in rows]


def get_request(connection: sqlite3.Connection, request_id: int) -> Request | None:
    row = connection.execute("SELECT * FROM requests WHERE id = ?", (request_id,)).fetchone()
    return None if row is None else _request(row)


def refuse_request(connection: sqlite3.Connection, request_id: int, why: str) -> None:
    with database.transaction(connection):
        connection.execute(
            "UPDATE requests SET state = 'refused', answer = ?, answered_at = ?"
            " WHERE id = ? AND state = 'waiting'",
            (why, time.time(), request_id),
        )


def carry_out(connection: sqlite3.Connection, request: Request, answer: str) -> bool:
    """Do what was asked and answer it in one transaction: a death in between would let the next
    gateway do it a second time. False, and nothing changed, if the request was withdrawn or the
    receipt settled meanwhile."""
    with database.transaction(connection):
        waits = connection.execute(
            "SELECT 1 FROM requests WHERE id = ? AND state = 'waiting'", (request.id,)
        ).fetchone()
        if waits is None or not decide(connection, request.ingest_seq, request.action):
            return False
        connection.execute(
            "UPDATE requests SET state = 'done', answer = ?, answered_at = ? WHERE id = ?",
            (answer, time.time(), request.id),
        )
    return True


def withdraw_request(connection: sqlite3.Connection, request_id: int) -> bool:
    """Take back a request that nobody has answered. False if it was answered meanwhile."""
    with database.transaction(connection):
        cursor = connection.execute(
            "DELETE FROM requests WHERE id = ? AND state = 'waiting'", (request_id,)
        )
        return bool(cursor.rowcount)


def data_version(connection: sqlite3.Connection) -> int:
    """Changes when another connection has committed; costs no query."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def open_gap(connection: sqlite3.Connection, reason: str) -> None:
    """Begin a gap; while one is open this does nothing."""
    with database.transaction(connection):
        connection.execute(
            "INSERT INTO gaps (started_at, reason) SELECT ?, ?"
            " WHERE NOT EXISTS (SELECT 1 FROM gaps WHERE ended_at IS NULL)",
            (time.time(), reason),
        )


def close_gap(connection: sqlite3.Connection) -> Gap | None:
    """End the open gap, if there is one, and return it."""
    with database.transaction(connection):
        row = connection.execute("SELECT * FROM gaps WHERE ended_at IS NULL").fetchone()
        if row is None:
            return None
        now = time.time()
        connection.execute("UPDATE gaps SET ended_at = ? WHERE id = ?", (now, row["id"]))
    return Gap(row["started_at"], now, row["reason"])


def gaps(connection: sqlite3.Connection, limit: int = 20) -> list[Gap]:
    """The newest gaps, oldest first."""
    rows = connection.execute("SELECT * FROM gaps ORDER BY id DESC LIMIT ?", (limit,)).fetchall()
    return [Gap(row["started_at"], row["ended_at"], row["reason"]) for row in reversed(rows)]


def set_health(connection: sqlite3.Connection, state: str, reason: str = "") -> None:
    """Note how the connection stands; ``since`` moves only when the state does."""
    with database.transaction(connection):
        connection.execute(
            "INSERT INTO health VALUES (1, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
            " since = CASE WHEN state = excluded.state AND pid = excluded.pid THEN since"
            " ELSE excluded.since END,"
            " state = excluded.state, reason = excluded.reason, pid = excluded.pid",
            (state, reason, time.time(), os.getpid()),
        )


def health(connection: sqlite3.Connection) -> Health | None:
    """How the connection stands; ``stopped`` if the process that wrote it is gone."""
    row = connection.execute("SELECT * FROM health").fetchone()
    if row is None:
        return None
    state = row["state"] if row["state"] == "stopped" or _runs(row["pid"]) else "stopped"
    reason = row["reason"] if state == row["state"] else "the gateway ended without a word"
    return Health(state, reason, row["since"])


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def prune(connection: sqlite3.Connection, retention_days: float, now: float | None = None) -> int:
    """Drop what is old, at most one slice of each kind, so that nobody waits long.

    Only final receipts are touched: bodies after a week, the rest after ``retention_days``.
    Returns the rows changed; call again while it is not 0.
    """
    now = time.time() if now is None else now
    final = f"{FINAL} AND updated_at < ?"
    oldest = now - retention_days * DAY
    oldest_sent = now - OUTBOUND_DAYS * DAY
    with database.transaction(connection):
        changed = drop_slice(connection, "receipts", "ingest_seq", final, oldest)
        changed += connection.execute(
            "UPDATE receipts SET source_body = '', effective_body = '' WHERE ingest_seq IN"  # noqa: S608
            f" (SELECT ingest_seq FROM receipts WHERE {final}"
            " AND (source_body <> '' OR effective_body <> '') LIMIT ?)",
            (now - min(BODY_DAYS, retention_days) * DAY, SLICE),
        ).rowcount
        changed += drop_slice(
            connection, "outbound_messages", "message_id", "created_at < ?", oldest_sent
        )
        changed += drop_slice(
            connection, "requests", "id", "state <> 'waiting' AND created_at < ?", oldest
        )
        changed += drop_slice(connection, "gaps", "id", "ended_at < ?", oldest)
    if changed:
        connection.executescript("PRAGMA incremental_vacuum(256)")
    return changed


def _request(row: sqlite3.Row) -> Request:
    return Request(
        row["id"],
        row["ingest_seq"],
        row["action"],
        bool(row["confirmed"]),
        row["created_at"],
        row["state"],
        row["answer"],
    )
