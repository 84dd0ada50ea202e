"""The durable inbox: its schema and every statement that touches a receipt.

All functions are synchronous and take the connection: the adapter calls them through
:class:`~hermes_borgee.actor.SqliteActor`, the command line directly.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from bdh_otel import database
from bdh_otel.state_table import Sql, StateTable, new_token
from hermes_borgee.receipts import DispatchClass, NewReceipt, Outcome, Receipt, Status

_COLUMNS = (
    "ingest_seq, kind, channel_id, channel_type, author_id, author_name, message_id, session_key,"
    " source_body, effective_body, reply_to_id, source_created_at, context, dedupe_key,"
    " dispatch_class, forced_queue, status, claim_token, attempt, outcome, error, traceparent,"
    " created_at, updated_at"
)

#: A claim that Hermes may or may not have seen.
_HELD = frozenset({Status.CLAIMED, Status.PROCESSING})
_UNCLAIMED = {"claim_token": None}
_AS_ORDINARY = {"dispatch_class": DispatchClass.ORDINARY}

#: The condition of a partial index has to be repeated word for word by the queries that use it.
_OPEN = "status IN ('claimed', 'processing', 'in_doubt', 'quarantined')"
FINAL = "status IN ('completed', 'failed', 'ignored')"


def _first_schema(connection: sqlite3.Connection) -> None:
    connection.execute(
        """
        CREATE TABLE receipts (
            ingest_seq INTEGER PRIMARY KEY AUTOINCREMENT,
            kind TEXT NOT NULL,
            channel_id TEXT NOT NULL,
            channel_type TEXT NOT NULL,
            author_id TEXT NOT NULL,
            author_name TEXT NOT NULL,
            message_id TEXT NOT NULL,
            session_key TEXT NOT NULL,
            source_body TEXT NOT NULL,
            effective_body TEXT NOT NULL,
            reply_to_id TEXT NOT NULL,
            source_created_at INTEGER NOT NULL,
            context TEXT NOT NULL,
            dedupe_key TEXT NOT NULL UNIQUE,
            dispatch_class TEXT NOT NULL,
            forced_queue INTEGER NOT NULL,
            status TEXT NOT NULL,
            claim_token TEXT UNIQUE,
            attempt INTEGER NOT NULL DEFAULT 0,
            outcome TEXT NOT NULL,
            error TEXT NOT NULL,
            traceparent TEXT NOT NULL,
            created_at REAL NOT NULL,
            updated_at REAL NOT NULL
        ) STRICT
        """
    )
    # The head of a lane is the first entry of its range; finished receipts are not in the index.
    connection.execute(
        "CREATE INDEX receipts_pending ON receipts (dispatch_class, session_key, ingest_seq)"
        " WHERE status = 'pending'"
    )
    connection.execute(
        f"CREATE INDEX receipts_open ON receipts (status, session_key) WHERE {_OPEN}"
    )
    connection.execute(f"CREATE INDEX receipts_final ON receipts (updated_at) WHERE {FINAL}")
    connection.execute(
        """
        CREATE TABLE outbound_messages (
            message_id TEXT PRIMARY KEY,
            channel_id TEXT NOT NULL,
            created_at REAL NOT NULL
        ) STRICT, WITHOUT ROWID
        """
    )
    connection.execute("CREATE INDEX outbound_age ON outbound_messages (created_at)")
    connection.execute(
        """
        CREATE TABLE requests (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            ingest_seq INTEGER NOT NULL,
            action TEXT NOT NULL,
            confirmed INTEGER NOT NULL,
            created_at REAL NOT NULL,
            state TEXT NOT NULL DEFAULT 'waiting',
            answer TEXT NOT NULL DEFAULT '',
            answered_at REAL
        ) STRICT
        """
    )
    connection.execute(
        """
        CREATE TABLE gaps (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            started_at REAL NOT NULL,
            ended_at REAL,
            reason TEXT NOT NULL
        ) STRICT
        """
    )
    connection.execute(
        """
        CREATE TABLE health (
            id INTEGER PRIMARY KEY CHECK (id = 1),
            state TEXT NOT NULL,
            reason TEXT NOT NULL,
            since REAL NOT NULL,
            pid INTEGER NOT NULL
        ) STRICT
        """
    )


#: ``application_id`` spells BGIN.
SCHEMA = database.Schema("Borgee inbox", 0x4247494E, (_first_schema,), synchronous="FULL")
RECEIPTS = StateTable("receipts", key="ingest_seq", state="status")


@dataclass(frozen=True, slots=True)
class Head:
    """The oldest pending receipt of one session in one lane."""

    session_key: str
    ingest_seq: int


# ── Intake ──────────────────────────────────────────────────────────────────────────────────


def commit(connection: sqlite3.Connection, receipt: NewReceipt) -> int | None:
    """Store a receipt durably. Returns its number, or None if the event is known already."""
    now = time.time()
    with database.transaction(connection):
        cursor = connection.execute(
            "INSERT INTO receipts (kind, channel_id, channel_type, author_id, author_name,"
            " message_id, session_key, source_body, effective_body, reply_to_id,"
            " source_created_at, context, dedupe_key, dispatch_class, forced_queue, status,"
            " outcome, error, traceparent, created_at, updated_at)"
            " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
            " ON CONFLICT (dedupe_key) DO NOTHING",
            (
                receipt.kind,
                receipt.channel_id,
                receipt.channel_type,
                receipt.author_id,
                receipt.author_name,
                receipt.message_id,
                receipt.session_key,
                receipt.source_body,
                receipt.effective_body,
                receipt.reply_to_id,
                receipt.source_created_at,
                json.dumps(receipt.context, ensure_ascii=False),
                receipt.dedupe_key,
                receipt.dispatch_class,
                int(receipt.forced_queue),
                receipt.status,
                receipt.outcome,
                receipt.error,
                receipt.traceparent,
                now,
                now,
            ),
        )
        return cursor.lastrowid if cursor.rowcount else None


# ── Scheduling ──────────────────────────────────────────────────────────────────────────────


def heads(connection: sqlite3.Connection, lane: DispatchClass) -> list[Head]:
    """The oldest pending receipt of every session: one index seek for each session."""
    rows = connection.execute(
        """
        WITH RECURSIVE keys (session_key) AS (
            SELECT min(session_key) FROM receipts
            WHERE status = 'pending' AND dispatch_class = :lane
            UNION ALL
            SELECT (SELECT min(session_key) FROM receipts
                    WHERE status = 'pending' AND dispatch_class = :lane
                      AND session_key > keys.session_key)
            FROM keys WHERE keys.session_key IS NOT NULL
        )
        SELECT session_key,
               (SELECT min(ingest_seq) FROM receipts
                WHERE status = 'pending' AND dispatch_class = :lane
                  AND session_key = keys.session_key)
        FROM keys WHERE session_key IS NOT NULL
        """,
        {"lane": lane.value},
    )
    return [Head(row[0], row[1]) for row in rows if row[1] is not None]


def head(connection: sqlite3.Connection, lane: DispatchClass, session_key: str) -> int | None:
    """The number of the session's oldest pending receipt in a lane."""
    row = connection.execute(
        "SELECT min(ingest_seq) FROM receipts"
        " WHERE status = 'pending' AND dispatch_class = ? AND session_key = ?",
        (lane, session_key),
    ).fetchone()
    return None if row[0] is None else int(row[0])


def claim(connection: sqlite3.Connection, ingest_seq: int) -> Receipt | None:
    """pending → claimed under a new token. None if it is no longer pending."""
    with database.transaction(connection):
        claimed = RECEIPTS.move(
            connection,
            ingest_seq,
            {Status.PENDING},
            Status.CLAIMED,
            now=time.time(),
            claim_token=new_token(),
            attempt=Sql("attempt + 1"),
        )
        return get(connection, ingest_seq) if claimed else None


def demote(connection: sqlite3.Connection, ingest_seq: int) -> bool:
    """A pending control becomes an ordinary turn, at its place in the session's order."""
    return _move(connection, ingest_seq, {Status.PENDING}, Status.PENDING, **_AS_ORDINARY)


def start(connection: sqlite3.Connection, receipt: Receipt) -> bool:
    """claimed → processing, right before Hermes is called. False if the claim is not ours."""
    return _move_claimed(connection, receipt, {Status.CLAIMED}, Status.PROCESSING)


def give_back(connection: sqlite3.Connection, receipt: Receipt, *, demote: bool = False) -> bool:
    """What certainly never ran becomes pending again, as an ordinary turn if ``demote``."""
    lane = _AS_ORDINARY if demote else {}
    return _move_claimed(connection, receipt, _HELD, Status.PENDING, **_UNCLAIMED, **lane)


def finish(
    connection: sqlite3.Connection,
    receipt: Receipt,
    status: Status,
    outcome: Outcome,
    error: str = "",
) -> bool:
    """processing → completed, failed or in_doubt. False if the claim is not ours any more."""
    return _move_claimed(connection, receipt, _HELD, status, outcome=outcome, error=error)


def _move_claimed(
    connection: sqlite3.Connection,
    receipt: Receipt,
    origins: Collection[Status],
    status: Status,
    **changes: Any,
) -> bool:
    return _move(
        connection, receipt.ingest_seq, origins, status, token=receipt.claim_token, **changes
    )


def _move(
    connection: sqlite3.Connection,
    ingest_seq: int,
    origins: Collection[Status],
    status: Status,
    **changes: Any,
) -> bool:
    with database.transaction(connection):
        return RECEIPTS.move(connection, ingest_seq, origins, status, now=time.time(), **changes)


# ── Recovery and operators ──────────────────────────────────────────────────────────────────


def mark_in_doubt(connection: sqlite3.Connection, outcome: Outcome) -> tuple[int, int]:
    """After a death: claimed → pending (it never ran), processing → in_doubt.

    Returns how many of each.
    """
    now = time.time()
    with database.transaction(connection):
        returned = connection.execute(
            "UPDATE receipts SET status = 'pending', claim_token = NULL, updated_at = ?"  # noqa: S608
            f" WHERE status = 'claimed' AND {_OPEN}",
            (now,),
        ).rowcount
        doubtful = connection.execute(
            "UPDATE receipts SET status = 'in_doubt', outcome = ?, updated_at = ?"  # noqa: S608
            f" WHERE status = 'processing' AND {_OPEN}",
            (outcome, now),
        ).rowcount
    return returned, doubtful


def quarantine(
    connection: sqlite3.Connection, ingest_seq: int, outcome: str = "", error: str = ""
) -> bool:
    """in_doubt (or processing, for one that timed out) → quarantined. Repeatable."""
    told = {"outcome": outcome, "error": error}
    said = {column: text for column, text in told.items() if text}
    origins = {Status.IN_DOUBT, Status.PROCESSING}
    return _move(connection, ingest_seq, origins, Status.QUARANTINED, **said)


def decide(connection: sqlite3.Connection, ingest_seq: int, action: str) -> bool:
    """What an operator decides about a quarantined receipt, within the caller's transaction:
    ``discard`` (failed: it never runs) or ``requeue`` (pending, at its old place of its session's
    order, as an ordinary turn)."""
    changes: dict[str, Any] = dict(_UNCLAIMED)
    if action == "discard":
        status = Status.FAILED
        changes |= {"outcome": Outcome.DISCARDED}
    else:
        status = Status.PENDING
        changes |= {**_AS_ORDINARY, "outcome": "", "error": ""}
    origins = {Status.QUARANTINED}
    return RECEIPTS.move(connection, ingest_seq, origins, status, now=time.time(), **changes)


def discard(connection: sqlite3.Connection, ingest_seq: int) -> bool:
    with database.transaction(connection):
        return decide(connection, ingest_seq, "discard")


def requeue(connection: sqlite3.Connection, ingest_seq: int) -> bool:
    with database.transaction(connection):
        return decide(connection, ingest_seq, "requeue")


def get(connection: sqlite3.Connection, ingest_seq: int) -> Receipt | None:
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM receipts WHERE ingest_seq = ?",  # noqa: S608
        (ingest_seq,),
    ).fetchone()
    return None if row is None else _receipt(row)


def select(
    connection: sqlite3.Connection,
    statuses: Iterable[Status] = (),
    *,
    session_key: str | None = None,
    limit: int = 50,
) -> list[Receipt]:
    """Receipts in the order of their arrival; the newest ``limit`` of them."""
    wanted = [status.value for status in statuses]
    where, values = ["1"], list[object]()
    if wanted:
        where.append(f"status IN ({','.join('?' * len(wanted))})")
        values += wanted
    if session_key is not None:
        where.append("session_key = ?")
        values.append(session_key)
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM receipts WHERE {' AND '.join(where)}"  # noqa: S608
        " ORDER BY ingest_seq DESC LIMIT ?",
        (*values, limit),
    ).fetchall()
    return [_receipt(row) for row in reversed(rows)]


def undelivered(connection: sqlite3.Connection, since: float, limit: int = 50) -> list[Receipt]:
    """Turns that ran since then, but whose reply did not arrive for certain; oldest first."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM receipts WHERE {FINAL} AND updated_at >= ?"  # noqa: S608
        " AND status = 'failed' AND outcome = ? ORDER BY ingest_seq DESC LIMIT ?",
        (since, Outcome.UNDELIVERED, limit),
    ).fetchall()
    return [_receipt(row) for row in reversed(rows)]


def in_status(connection: sqlite3.Connection, status: Status) -> list[tuple[int, str]]:
    """``(ingest_seq, session_key)`` of the receipts in one of the rare, indexed states."""
    rows = connection.execute(
        "SELECT ingest_seq, session_key FROM receipts WHERE status = ?"  # noqa: S608
        f" AND {_OPEN} ORDER BY ingest_seq",
        (status,),
    )
    return [(row[0], row[1]) for row in rows]


def counts(connection: sqlite3.Connection) -> dict[Status, int]:
    """Receipts in every state that has any."""
    return {Status(status): count for status, count in RECEIPTS.counts(connection).items()}


def _receipt(row: sqlite3.Row) -> Receipt:
    values = dict(row)
    values["context"] = json.loads(values["context"])
    values["dispatch_class"] = DispatchClass(values["dispatch_class"])
    values["forced_queue"] = bool(values["forced_queue"])
    values["status"] = Status(values["status"])
    values["claim_token"] = values["claim_token"] or ""
    return Receipt(**values)
