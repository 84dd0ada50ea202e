"""Ending the turns that nobody will end: of processes that died, and of turns that hang.

A turn's root span is stored when the turn begins, so that a crash leaves a trace. The worker
closes such roots; the first end wins, so a process that was only slow does no harm.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from bdh_otel import attributes as attr
from bdh_otel import database
from bdh_otel.process import Process, is_alive
from bdh_otel.store import SpanStore

#: Seconds after which an open span is closed whoever made it.
EXPIRY = 6 * 3600.0

DIED = "process_died"
EXPIRED = "expired"


def close_abandoned(
    store: SpanStore,
    is_alive: Callable[[Process], bool | None] = is_alive,
    *,
    expiry: float = EXPIRY,
    now: float | None = None,
    limit: int = 500,
) -> int:
    """End the open spans of dead processes, and those older than ``expiry`` seconds.

    ``is_alive`` says True, False, or None for "can't be told"; then only the expiry counts.
    The span ends with the last span of its trace, which is when something was last seen of it.
    Returns how many were ended. Raises :class:`sqlite3.Error`.
    """
    now = time.time() if now is None else now
    rows = store.connection.execute(
        "SELECT spans.*, host, space, pid, start, seen FROM spans"
        " LEFT JOIN resources ON resources.id = spans.resource"
        " WHERE end_ns IS NULL ORDER BY start_ns LIMIT ?",
        (limit,),
    ).fetchall()
    alive: dict[int, bool | None] = {}
    ended = 0
    for row in rows:
        resource = row["resource"]
        if resource not in alive:
            # A process whose row is gone hasn't written for the length of the retention.
            known = row["host"] is not None
            alive[resource] = known and is_alive(
                Process(row["host"], row["space"], row["pid"], row["start"], row["seen"])
            )
        if alive[resource] is False:
            reason = DIED
        elif row["start_ns"] / 1e9 < now - expiry:
            reason = EXPIRED
        else:
            continue
        ended += _end(store, row["seq"], row["attributes"], reason)
    return ended


def _end(store: SpanStore, seq: int, attributes: str, reason: str) -> int:
    """A closed span gets a new number, like any other that ends."""
    closed = json.dumps(
        {**json.loads(attributes), attr.TURN_CLOSE_REASON: reason},
        ensure_ascii=False,
        separators=(",", ":"),
    )
    with database.transaction(store.connection) as connection:
        row = connection.execute(
            "SELECT * FROM spans WHERE seq = ? AND end_ns IS NULL", (seq,)
        ).fetchone()
        if row is None:
            return 0
        last = connection.execute(
            "SELECT max(coalesce(end_ns, start_ns)) FROM spans WHERE trace_id = ?",
            (row["trace_id"],),
        ).fetchone()[0]
        values = {
            **{key: row[key] for key in row.keys() if key != "seq"},  # noqa: SIM118
            "end_ns": max(int(last), int(row["start_ns"])),
            "attributes": closed,
        }
        connection.execute("DELETE FROM spans WHERE seq = ?", (seq,))
        columns, marks = ", ".join(values), ", ".join("?" * len(values))
        connection.execute(
            f"INSERT INTO spans ({columns}) VALUES ({marks})",  # noqa: S608
            tuple(values.values()),
        )
    return 1
