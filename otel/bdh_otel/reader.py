"""Questions to the span store, for tails, screens and tests. Nothing here writes.

A reader may live as long as it likes: if the file is replaced, or isn't there yet, the next
question finds the one that is there then. Every method raises
:class:`bdh_otel.database.StoreError` if the store can't be read, and ``FileNotFoundError``
while there is none.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from bdh_otel import database, names
from bdh_otel.store import SCHEMA

T = TypeVar("T")

ERROR = 2
"""``StatusCode.ERROR`` as a number."""
_KINDS = ("internal", "server", "client", "producer", "consumer")


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    time_ns: int
    attributes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LinkedSpan:
    trace_id: str
    span_id: str
    attributes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredSpan:
    """A span as stored: ids in hex, times in Unix nanoseconds, ``end_ns`` None while open.

    ``kind`` and ``status`` are the numbers of OpenTelemetry's ``SpanKind`` and ``StatusCode``.
    """

    seq: int
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
    resource: int
    attributes: dict[str, Any]
    events: tuple[Event, ...]
    links: tuple[LinkedSpan, ...]

    @property
    def type(self) -> str:
        """The name up to its first blank: ``bdh.gate``, ``chat``, ``retrieval``, …"""
        return self.name.partition(" ")[0]

    @property
    def duration_ns(self) -> int | None:
        return None if self.end_ns is None else self.end_ns - self.start_ns

    @property
    def failed(self) -> bool:
        return self.status == ERROR

    def as_json(self) -> dict[str, Any]:
        """The span for a machine: kind and status by name, times in nanoseconds."""
        return {
            **asdict(self),
            "kind": _KINDS[self.kind] if 0 <= self.kind < len(_KINDS) else str(self.kind),
            "status": {0: "unset", 1: "ok", ERROR: "error"}.get(self.status, str(self.status)),
            "duration_ns": self.duration_ns,
        }


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn's root span, with what its trace adds up to so far."""

    root: StoredSpan
    spans: int
    skips: int
    failures: int


@dataclass(frozen=True, slots=True)
class Count:
    """How often spans of ``type`` (and ``gate``) ended in ``outcome`` for ``reason``."""

    type: str
    gate: str | None
    path: str | None
    outcome: str
    reason: str | None
    count: int


@dataclass(frozen=True, slots=True)
class Status:
    """The store as a whole. ``bytes`` is the size of its database; ``dropped`` spans were lost
    by the processes that are still on record."""

    spans: int
    last_seq: int
    oldest_ns: int | None
    newest_ns: int | None
    open: int
    dropped: int
    bytes: int


class SpanReader:
    """Reads the store at ``path``. Safe from any thread."""

    def __init__(self, path: Path, *, busy_timeout: float = 2.0) -> None:
        self.path = path
        self._busy_timeout = busy_timeout
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._inode = 0

    def close(self) -> None:
        with self._lock:
            self._drop()

    def interrupt(self) -> None:
        """Break off the question that another thread asks; it raises ``StoreUnavailable`` there."""
        connection = self._connection
        if connection is not None:
            with suppress(sqlite3.ProgrammingError):  # closed at this very moment
                connection.interrupt()

    def turns(
        self,
        limit: int = 50,
        *,
        before: StoredSpan | None = None,
        session: str | None = None,
    ) -> list[Turn]:
        """Turns, newest first; ``before`` is the root of the last one already seen."""
        sql, values = "SELECT * FROM spans WHERE name = ?", [names.TURN]  # type: tuple[str, list[Any]]
        if session is not None:
            sql, values = f"{sql} AND session = ?", [*values, session]
        if before is not None:
            sql = f"{sql} AND (start_ns, seq) < (?, ?)"
            values = [*values, before.start_ns, before.seq]
        with self._open() as connection:
            rows = connection.execute(
                f"{sql} ORDER BY start_ns DESC, seq DESC LIMIT ?", (*values, limit)
            ).fetchall()
            return [self._turn(connection, _span(row)) for row in rows]

    def trace(self, trace_id: str) -> list[StoredSpan]:
        """All spans of one trace, in the order of their starts."""
        with self._open() as connection:
            rows = connection.execute(
                "SELECT * FROM spans WHERE trace_id = ? ORDER BY start_ns, seq", (trace_id,)
            ).fetchall()
        return [_span(row) for row in rows]

    def find_traces(self, prefix: str, limit: int = 10) -> list[str]:
        """Ids of the traces that start with ``prefix``; if none does, of those that hold a span
        whose id does."""
        start = prefix.lower()
        # Ids are hex digits, so everything that starts with x lies between x and xg.
        with self._open() as connection:
            rows = connection.execute(
                "SELECT DISTINCT trace_id FROM spans WHERE trace_id >= ?1 AND trace_id < ?1 || 'g'"
                " LIMIT ?2",
                (start, limit),
            ).fetchall()
            if not rows:  # no index leads to a span's id alone: this reads a whole one
                rows = connection.execute(
                    "SELECT DISTINCT trace_id FROM spans"
                    " WHERE span_id >= ?1 AND span_id < ?1 || 'g' LIMIT ?2",
                    (start, limit),
                ).fetchall()
        return [str(row[0]) for row in rows]

    def after(
        self,
        seq: int,
        limit: int = 1_000,
        *,
        session: str | None = None,
        ended: bool = False,
    ) -> list[StoredSpan]:
        """Spans stored after ``seq``, oldest first; with ``ended`` without open ones."""
        with self._open() as connection:
            return spans_after(connection, seq, limit, session=session, ended=ended)

    def select(self, condition: str, values: Sequence[Any] = ()) -> list[StoredSpan]:
        """Spans for which a SQL ``condition`` holds (an ``ORDER BY`` and ``LIMIT`` may follow)."""
        sql = f"SELECT * FROM spans WHERE {condition}"  # noqa: S608 (the caller's own words)
        return [_span(row) for row in self.rows(sql, values)]

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """The answer to a question of the caller's own in SQL; nothing can be changed this way."""
        with self._open() as connection:
            return connection.execute(sql, values).fetchall()

    def ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """The answer to a question that needs a connection, which is for reading only."""
        with self._open() as connection:
            return question(connection)

    def last_seq(self) -> int:
        """The highest sequence number given so far; 0 in an empty store."""
        with self._open() as connection:
            return _last_seq(connection)

    def counts(self, since_ns: int, until_ns: int | None = None) -> list[Count]:
        """Decisions of gates and outcomes of everything else, for spans that started in the
        window, most frequent first."""
        with self._open() as connection:
            rows = connection.execute(
                "SELECT substr(name, 1, instr(name || ' ', ' ') - 1) AS type, gate, path,"
                " coalesce(decision, outcome) AS outcome, reason, count(*) AS count"
                " FROM spans WHERE start_ns >= ? AND start_ns < ?"
                " AND coalesce(decision, outcome) IS NOT NULL"
                " GROUP BY 1, 2, 3, 4, 5 ORDER BY 6 DESC, 1, 2, 3, 4, 5",
                (since_ns, 1 << 62 if until_ns is None else until_ns),
            ).fetchall()
        return [Count(*row) for row in rows]

    def status(self) -> Status:
        with self._open() as connection:
            row = connection.execute(
                "SELECT (SELECT count(*) FROM spans), (SELECT min(start_ns) FROM spans),"
                " (SELECT max(start_ns) FROM spans),"
                " (SELECT count(*) FROM spans WHERE end_ns IS NULL),"
                " (SELECT coalesce(sum(dropped), 0) FROM resources)"
            ).fetchone()
            last = _last_seq(connection)
            # The pages, not the file: much of it may still be in the log.
            pages, page = (
                int(connection.execute(f"PRAGMA {name}").fetchone()[0])
                for name in ("page_count", "page_size")
            )
        spans, oldest, newest, still_open, dropped = row
        return Status(spans, last, oldest, newest, still_open, dropped, pages * page)

    def problems(self, limit: int = 20) -> list[str]:
        """What SQLite finds to be wrong with the file, at most ``limit`` of it; reads all of it."""
        rows = self.rows(f"PRAGMA integrity_check({int(limit)})")
        return [str(row[0]) for row in rows if row[0] != "ok"]

    def resources(self) -> dict[int, dict[str, Any]]:
        """Attributes of the processes that wrote, by the number that spans name them by."""
        with self._open() as connection:
            rows = connection.execute("SELECT id, attributes FROM resources").fetchall()
        return {row["id"]: json.loads(row["attributes"]) for row in rows}

    def _turn(self, connection: sqlite3.Connection, root: StoredSpan) -> Turn:
        spans, skips, failures = connection.execute(
            "SELECT count(*), coalesce(sum(decision = 'skip'), 0), coalesce(sum(status = ?), 0)"
            " FROM spans WHERE trace_id = ?",
            (ERROR, root.trace_id),
        ).fetchone()
        return Turn(root, spans, skips, failures)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                inode = self.path.stat().st_ino
                if self._connection is None or inode != self._inode:
                    self._drop()
                    self._connection = database.connect(
                        self.path, SCHEMA, busy_timeout=self._busy_timeout, read_only=True
                    )
                    self._inode = inode
                yield self._connection
            except sqlite3.Error as error:
                self._drop()
                raise database.classify(self.path, error) from error
            except database.EmptyFile as error:  # another process is making it
                raise FileNotFoundError(self.path) from error
            except FileNotFoundError:
                self._drop()
                raise
            except OSError as error:  # a folder that may not be entered, a file in its place
                self._drop()
                raise database.unavailable(self.path, error) from error

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def spans_after(
    connection: sqlite3.Connection,
    seq: int,
    limit: int,
    *,
    session: str | None = None,
    ended: bool = False,
) -> list[StoredSpan]:
    """:meth:`SpanReader.after` on an open connection; raises :class:`sqlite3.Error`."""
    sql, values = "SELECT * FROM spans WHERE seq > ?", [seq]  # type: tuple[str, list[Any]]
    if session is not None:
        sql, values = f"{sql} AND session = ?", [*values, session]
    if ended:
        sql = f"{sql} AND end_ns IS NOT NULL"
    rows = connection.execute(f"{sql} ORDER BY seq LIMIT ?", (*values, limit)).fetchall()
    return [_span(row) for row in rows]


def _last_seq(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'spans'").fetchone()
    return 0 if row is None else int(row[0])


def _span(row: sqlite3.Row) -> StoredSpan:
    values: dict[str, Any] = dict(row)
    events: Sequence[Any] = json.loads(values["events"] or "[]")
    links: Sequence[Any] = json.loads(values["links"] or "[]")
    values["attributes"] = json.loads(values["attributes"])
    values["events"] = tuple(Event(*event) for event in events)
    values["links"] = tuple(LinkedSpan(*link) for link in links)
    return StoredSpan(**values)
