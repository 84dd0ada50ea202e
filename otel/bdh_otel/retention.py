"""Keeping the store within its bounds, and giving the space back to the file system.

The worker prunes in passing. The agent's own writer does so only if the store is far over its
bounds, which means that no worker runs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from bdh_otel import database
from bdh_otel.store import SpanStore

#: Rows that one transaction deletes: some 20 ms, so that writers hardly notice.
SLICE = 1_000
#: Pages that one step gives back.
_PAGES = 512
#: How far over its bounds a store has to be for the agent to prune by itself.
_FAR = 1.25


@dataclass(frozen=True, slots=True)
class Bounds:
    """Most rows, bytes and seconds of age; None is no bound."""

    rows: int | None = 1_000_000
    bytes: int | None = 1 << 30
    age: float | None = None


@dataclass(frozen=True, slots=True)
class Pruned:
    """``done`` is False if the time ran out first."""

    rows: int
    bytes_freed: int
    done: bool


def prune(
    store: SpanStore, bounds: Bounds, *, time_limit: float = 5.0, now: float | None = None
) -> Pruned:
    """Delete the oldest spans until ``bounds`` hold; raises :class:`sqlite3.Error`."""
    deadline = time.monotonic() + time_limit
    connection = store.connection
    before = size(store)
    removed = 0
    while time.monotonic() < deadline:
        slice_removed = _remove_aged(store, bounds, now) or _remove_excess(store, bounds)
        if not slice_removed:
            break
        removed += slice_removed
    else:
        _give_back(store, deadline)
        return Pruned(removed, max(0, before - size(store)), False)
    with database.transaction(connection):
        connection.execute(
            "DELETE FROM resources WHERE last_seq <"
            " coalesce((SELECT min(seq) FROM spans),"
            " (SELECT seq + 1 FROM sqlite_sequence WHERE name = 'spans'), 0)"
        )
    done = _give_back(store, deadline)
    return Pruned(removed, max(0, before - size(store)), done)


def prune_if_far_over(store: SpanStore, bounds: Bounds, *, time_limit: float = 0.5) -> Pruned:
    """The agent's safety net."""
    far = Bounds(
        None if bounds.rows is None else int(bounds.rows * _FAR),
        None if bounds.bytes is None else int(bounds.bytes * _FAR),
    )
    if _excess_rows(store, far) <= 0:
        return Pruned(0, 0, True)
    return prune(store, bounds, time_limit=time_limit)


def size(store: SpanStore) -> int:
    """Bytes of the database without its log."""
    page = store.connection.execute("PRAGMA page_size").fetchone()[0]
    return int(page) * int(store.connection.execute("PRAGMA page_count").fetchone()[0])


def _used_bytes(store: SpanStore) -> int:
    page = store.connection.execute("PRAGMA page_size").fetchone()[0]
    free = store.connection.execute("PRAGMA freelist_count").fetchone()[0]
    return size(store) - int(page) * int(free)


def _remove_aged(store: SpanStore, bounds: Bounds, now: float | None) -> int:
    """One slice of what is too old. By its start: a span that was closed late, or that came late,
    lies among young ones."""
    if bounds.age is None:
        return 0
    oldest_ns = int(((time.time() if now is None else now) - bounds.age) * 1e9)
    return _delete(store, "start_ns < ? ORDER BY start_ns", oldest_ns, SLICE)


def _remove_excess(store: SpanStore, bounds: Bounds) -> int:
    """One slice of the oldest rows, in the order of their commits, that are too many."""
    excess = _excess_rows(store, bounds)
    return _delete(store, "seq > ? ORDER BY seq", -1, min(SLICE, excess)) if excess > 0 else 0


def _delete(store: SpanStore, condition: str, value: int, limit: int) -> int:
    with database.transaction(store.connection) as connection:
        return connection.execute(
            f"DELETE FROM spans WHERE seq IN (SELECT seq FROM spans WHERE {condition} LIMIT ?)",  # noqa: S608 (our own words)
            (value, limit),
        ).rowcount


def _excess_rows(store: SpanStore, bounds: Bounds) -> int:
    """How many of the oldest rows have to go; an upper estimate of the rows is enough.

    ``max(seq) - min(seq) + 1`` counts the gaps that replaced rows leave, so the exact number is
    asked only when that estimate is over the bound.
    """
    ask = store.connection.execute
    first, last = ask(
        "SELECT (SELECT min(seq) FROM spans), (SELECT max(seq) FROM spans)"
    ).fetchone()
    if first is None:
        return 0
    excess = 0
    if bounds.rows is not None and last - first + 1 > bounds.rows:
        excess = int(ask("SELECT count(*) FROM spans").fetchone()[0]) - bounds.rows
    if bounds.bytes is not None and _used_bytes(store) > bounds.bytes:
        excess = max(excess, SLICE)
    return excess


def _give_back(store: SpanStore, deadline: float) -> bool:
    """Free pages back to the file system, in steps; True when none is left."""
    connection = store.connection
    while int(connection.execute("PRAGMA freelist_count").fetchone()[0]):
        if time.monotonic() >= deadline:
            return False
        before = connection.execute("PRAGMA freelist_count").fetchone()[0]
        # `execute` would fetch one row and thereby free one page: the script runs it through.
        connection.executescript(f"PRAGMA incremental_vacuum({_PAGES})")
        if connection.execute("PRAGMA freelist_count").fetchone()[0] >= before:
            return False  # a reader holds the pages, or the file was made without auto_vacuum
    # SQLite does not wait for another process that moves the log just now.
    while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True
