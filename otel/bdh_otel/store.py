"""The span store: one SQLite file that several processes write and read at once.

Sequence numbers (``seq``) are given in the order of the commits and never again, so a reader
that remembers the last one it saw misses nothing: that is how tails and exporters follow the
store. A span that was saved while still open is replaced when it ends and gets a new number.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bdh_otel import database
from bdh_otel.process import Process


class Row(NamedTuple):
    """A span as its columns: ids in hex, times in Unix nanoseconds, the rest of it as JSON.

    ``kind`` and ``status`` are the numbers of OpenTelemetry's ``SpanKind`` and ``StatusCode``.
    ``end_ns`` is None while the span is open.
    """

    trace_id: str
    span_id: str
    parent_id: str | None
    flags: int
    trace_state: str | None
    name: str
    kind: int
    start_ns: int
    end_ns: int | None
    status: int
    status_message: str | None
    error_type: str | None
    session: str | None
    turn: str | None
    platform: str | None
    gate: str | None
    path: str | None
    decision: str | None
    reason: str | None
    outcome: str | None
    attributes: str
    events: str | None
    links: str | None


def _version_1(connection: sqlite3.Connection) -> None:
    connection.execute(
        """
        CREATE TABLE resources (
            id INTEGER PRIMARY KEY,
            instance TEXT NOT NULL UNIQUE,
            host TEXT NOT NULL, space TEXT NOT NULL, pid INTEGER NOT NULL,
            start TEXT NOT NULL, seen REAL NOT NULL,
            scope TEXT NOT NULL,
            attributes TEXT NOT NULL,
            last_seq INTEGER NOT NULL DEFAULT 0,
            dropped INTEGER NOT NULL DEFAULT 0
        )"""
    )
    connection.execute(
        """
        CREATE TABLE spans (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            trace_id TEXT NOT NULL, span_id TEXT NOT NULL, parent_id TEXT,
            flags INTEGER NOT NULL, trace_state TEXT,
            name TEXT NOT NULL, kind INTEGER NOT NULL,
            start_ns INTEGER NOT NULL, end_ns INTEGER,
            status INTEGER NOT NULL, status_message TEXT, error_type TEXT,
            session TEXT, turn TEXT, platform TEXT,
            gate TEXT, path TEXT, decision TEXT, reason TEXT, outcome TEXT,
            attributes TEXT NOT NULL, events TEXT, links TEXT,
            resource INTEGER NOT NULL
        )"""
    )
    for index in (
        "UNIQUE INDEX spans_span ON spans (span_id)",
        "INDEX spans_trace ON spans (trace_id)",
        "INDEX spans_start ON spans (start_ns)",
        "INDEX spans_name ON spans (name, start_ns)",
        "INDEX spans_session ON spans (session, start_ns) WHERE session IS NOT NULL",
        "INDEX spans_decision ON spans (gate, decision, start_ns) WHERE gate IS NOT NULL",
        "INDEX spans_open ON spans (start_ns) WHERE end_ns IS NULL",
    ):
        connection.execute(f"CREATE {index}")
    connection.execute(
        """
        CREATE TABLE cursors (
            endpoint TEXT PRIMARY KEY,
            seq INTEGER NOT NULL,
            sent INTEGER NOT NULL DEFAULT 0, refused INTEGER NOT NULL DEFAULT 0,
            failures INTEGER NOT NULL DEFAULT 0, retry_at REAL NOT NULL DEFAULT 0,
            last_error TEXT, updated REAL NOT NULL DEFAULT 0
        )"""
    )


def _version_2(connection: sqlite3.Connection) -> None:
    """Fewer pages for the spans of one turn. An index by random span ids touched one of its own
    for each: behind the trace's id they lie side by side. Of decisions, those to skip are looked
    for; there are few of them."""
    connection.execute("CREATE UNIQUE INDEX spans_place ON spans (trace_id, span_id)")
    connection.execute("CREATE INDEX spans_skips ON spans (gate, start_ns) WHERE decision = 'skip'")
    for index in ("spans_span", "spans_trace", "spans_decision"):
        connection.execute(f"DROP INDEX {index}")


SCHEMA = database.Schema("span store", 0x42444853, (_version_1, _version_2))

_COLUMNS = ", ".join((*Row._fields, "resource"))
_MARKS = ", ".join("?" * (len(Row._fields) + 1))
_INSERT = f"INSERT OR IGNORE INTO spans ({_COLUMNS}) VALUES ({_MARKS})"  # noqa: S608


class SpanStore:
    """An open store for writing. Not for use by two threads at once.

    Raises: :class:`bdh_otel.database.StoreError` if it can't be opened; methods raise
    :class:`sqlite3.Error`.
    """

    def __init__(self, path: Path, *, busy_timeout: float = 5.0) -> None:
        self.path = path
        self._busy_timeout = int(busy_timeout * 1_000)
        self.connection = database.connect(path, SCHEMA, busy_timeout=busy_timeout)
        self._inode = path.stat().st_ino

    def close(self) -> None:
        self.connection.close()

    def is_current(self) -> bool:
        """False once the file was deleted or set aside: what is written now would be lost."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    def wait_at_most(self, seconds: float) -> None:
        """How long the next statements wait for another process's lock."""
        milliseconds = max(1, -(-int(seconds * 1_000) // 10) * 10)  # coarse: mostly no change
        if milliseconds != self._busy_timeout:
            self._busy_timeout = milliseconds
            self.connection.execute(f"PRAGMA busy_timeout={milliseconds}")

    def register(
        self, instance: str, process: Process, scope: str, attributes: Mapping[str, Any]
    ) -> int:
        """Note the process whose spans follow; returns the id that its rows refer to."""
        self.connection.execute(
            "INSERT OR IGNORE INTO resources"
            " (instance, host, space, pid, start, seen, scope, attributes)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                instance,
                process.host,
                process.space,
                process.pid,
                process.start,
                process.seen,
                scope,
                json.dumps(dict(attributes)),
            ),
        )
        found = self.connection.execute(
            "SELECT id FROM resources WHERE instance = ?", (instance,)
        ).fetchone()
        return int(found[0])

    def insert(
        self,
        rows: Iterable[Row],
        resource: int,
        *,
        reopened: Iterable[tuple[str, str]] = (),
        dropped: int = 0,
    ) -> bool:
        """Commit ``rows``. The first end of a span wins; a row that is already there stays.

        ``reopened`` are (trace id, span id) of spans whose provisional row makes way for the one
        given.
        ``dropped`` spans are added to the process's count of lost ones. False, and nothing is
        stored, if ``resource`` was pruned meanwhile: register again.
        """
        values = [(*row, resource) for row in rows]
        with database.transaction(self.connection) as connection:
            # `last_seq` is what pruning goes by: it may err upwards, never downwards.
            known = connection.execute(
                "UPDATE resources SET dropped = dropped + ?, last_seq = ? +"
                " coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'spans'), 0)"
                " WHERE id = ?",
                (dropped, len(values), resource),
            ).rowcount
            if not known:
                return False
            connection.executemany(
                "DELETE FROM spans WHERE trace_id = ? AND span_id = ? AND end_ns IS NULL",
                list(reopened),
            )
            connection.executemany(_INSERT, values)
        return True
