"""Taking over the inbox of the published Borgee plugin, which lies at the same place.

What had certainly not run yet runs here; what may have run is quarantined for the operator; what
is finished stays known, so that no message that the server repeats runs a second time.
"""

from __future__ import annotations

import contextlib
import datetime
import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bdh_otel import database
from hermes_borgee import inbox
from hermes_borgee.receipts import DispatchClass, NewReceipt, Outcome, Status, clean, message_key

#: Receipts without these columns are of something else.
_NEEDED = frozenset({"channel_id", "message_id", "kind", "session_key", "status", "source_body"})
_STATUS = {
    "pending": Status.PENDING,
    # Claimed, and perhaps already seen by Hermes: only the operator knows.
    "processing": Status.QUARANTINED,
    "in_doubt": Status.QUARANTINED,
    "quarantined": Status.QUARANTINED,
    "completed": Status.COMPLETED,
    "failed": Status.FAILED,
}
_LANES = {lane.value: lane for lane in DispatchClass}


class NotLegacyError(Exception):
    """The file is no inbox of the published plugin. ``str()`` is a sentence."""


def is_legacy(path: Path) -> bool:
    """Whether ``path`` is a SQLite file of the published plugin: one with receipts that does not
    carry this project's mark."""
    if not path.is_file():
        return False
    with contextlib.suppress(sqlite3.Error), contextlib.closing(_open(path)) as connection:
        owner = connection.execute("PRAGMA application_id").fetchone()[0]
        return owner != inbox.SCHEMA.application_id and _table(connection) is not None
    return False


def settle(path: Path) -> None:
    """Write the log into the file, so that it can be moved alone. Raises: sqlite3.Error."""
    with contextlib.closing(sqlite3.connect(path, timeout=5)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode=delete")


def take_over(old: Path, new: Path) -> Counter[str]:
    """Copy the receipts of ``old`` into the inbox ``new``, once for each message.

    Returns how many there are by their status here. Raises: NotLegacyError, sqlite3.Error,
    database.StoreError.
    """
    with contextlib.closing(_open(old)) as source:
        table = _table(source)
        if table is None:
            raise NotLegacyError(f"{old} holds no receipts")
        question = f"SELECT * FROM {table} ORDER BY ingest_seq"  # noqa: S608 (a quoted name)
        rows = [dict(row) for row in source.execute(question)]
        sent = []
        with contextlib.suppress(sqlite3.Error):
            sent = source.execute("SELECT message_id, channel_id FROM outbound_messages").fetchall()
    taken: Counter[str] = Counter()
    with contextlib.closing(database.connect(new, inbox.SCHEMA)) as target:
        for row in rows:
            receipt = _receipt(row)
            if inbox.commit(target, receipt) is not None:
                taken[receipt.status] += 1
        with database.transaction(target):
            target.executemany(
                "INSERT OR IGNORE INTO outbound_messages VALUES (?, ?, ?)",
                [(clean(one[0]), clean(one[1]), time.time()) for one in sent],
            )
    return taken


def _receipt(row: dict[str, Any]) -> NewReceipt:
    kind = clean(row["kind"])
    status = _STATUS.get(str(row["status"]), Status.QUARANTINED)
    if kind not in ("message", "mention") and status is Status.COMPLETED:
        status = Status.IGNORED
    outcome = Outcome.PROCESS_DIED.value if status is Status.QUARANTINED else ""
    return NewReceipt(
        kind=kind,
        channel_id=clean(row["channel_id"]),
        channel_type=clean(row.get("channel_type")),
        author_id=clean(row.get("author_id")),
        author_name=clean(row.get("author_name")),
        message_id=clean(row["message_id"]),
        session_key=clean(row["session_key"]),
        source_body=clean(row["source_body"]),
        effective_body=clean(row.get("effective_body") or row["source_body"]),
        source_created_at=_milliseconds(row.get("source_created_at")),
        dedupe_key=_key(kind, row),
        reply_to_id=clean(row.get("reply_to_id")),
        dispatch_class=_LANES.get(str(row.get("dispatch_class")), DispatchClass.ORDINARY),
        forced_queue=bool(row.get("forced_queue")),
        status=status,
        outcome=clean(row.get("outcome")) or outcome,
        error=clean(row.get("error")),
    )


def _key(kind: str, row: dict[str, Any]) -> str:
    # Edits and reactions start no turn: their old key is enough to tell them apart.
    more = [] if kind in ("message", "mention") else [str(row.get("dedupe_key") or "")]
    return message_key(kind, str(row["channel_id"]), str(row["message_id"] or ""), *more)


def _milliseconds(value: Any) -> int:
    """A time of the old file, which may be seconds, milliseconds or ISO text."""
    if isinstance(value, str):
        try:
            return int(datetime.datetime.fromisoformat(value).timestamp() * 1_000)
        except ValueError:
            return 0
    if not isinstance(value, int | float):
        return 0
    return int(value if value > 1e11 else value * 1_000)


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5)
    connection.row_factory = sqlite3.Row
    return connection


def _table(connection: sqlite3.Connection) -> str | None:
    """The table of receipts, quoted, whatever it is called."""
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (name,) in names:
        quoted = '"' + str(name).replace('"', '""') + '"'
        columns = {row["name"] for row in connection.execute(f"PRAGMA table_info({quoted})")}
        if columns >= _NEEDED and "ingest_seq" in columns:
            return quoted
    return None
