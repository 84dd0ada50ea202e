"""The operator's side of the outbox: look, and decide what no program can."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from bdh_bridge.outbox.queue import WAIT
from bdh_bridge.outbox.schema import SELECT, WRITES, get_write, to_write
from bdh_bridge.outbox.states import State, Write
from bdh_bridge.outbox.store import Outbox
from bdh_bridge.outbox.transitions import NEVER_SENT, NO_BODY, Transition
from bdh_otel.database import transaction

#: States in which nobody else works on a write.
DISCARDABLE = frozenset(
    {State.PENDING, State.IN_DOUBT, State.UNCONFIRMED, State.QUARANTINED, State.FAILED}
)
REQUEUEABLE = frozenset({State.IN_DOUBT, State.UNCONFIRMED, State.QUARANTINED, State.FAILED})
#: Of these the graph may have learned already.
RISKY = frozenset({State.IN_DOUBT, State.UNCONFIRMED, State.QUARANTINED})


@dataclass(frozen=True, slots=True)
class Selection:
    """Which writes. Empty fields don't restrict; ``older_than`` is in seconds."""

    ids: Collection[str] = ()
    states: Collection[State] = ()
    older_than: float | None = None
    limit: int | None = None


class Review:
    """Methods raise :class:`~bdh_otel.database.StoreError`."""

    def __init__(self, outbox: Outbox, *, now: Callable[[], float] = time.time) -> None:
        self._outbox = outbox
        self._now = now

    def select(self, selection: Selection) -> list[Write]:
        """Oldest first; with a limit, the newest ones."""
        conditions: list[str] = ["1"]
        values: list[str | float] = []
        if selection.ids:
            conditions.append(f"id IN ({', '.join('?' * len(selection.ids))})")
            values += selection.ids
        if selection.states:
            conditions.append(f"state IN ({', '.join('?' * len(selection.states))})")
            values += map(str, selection.states)
        if selection.older_than is not None:
            conditions.append("accepted_at <= ?")
            values.append(self._now() - selection.older_than)
        query = f"{SELECT} WHERE {' AND '.join(conditions)} ORDER BY seq DESC"
        if selection.limit is not None:
            query += f" LIMIT {int(selection.limit)}"
        with self._outbox.handle.use(WAIT) as connection:
            return [to_write(row) for row in connection.execute(query, values)][::-1]

    def find(self, prefix: str) -> list[Write]:
        """The writes whose id starts with ``prefix``; at most ten."""
        escaped = prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        with self._outbox.handle.use(WAIT) as connection:
            rows = connection.execute(
                f"{SELECT} WHERE id LIKE ? ESCAPE '\\' ORDER BY seq LIMIT 10", (f"{escaped}%",)
            )
            return [to_write(row) for row in rows]

    def discard(self, writes: Collection[Write]) -> list[Transition]:
        """Drop their text; they stay listed for the retention time. Skips what changed since."""
        return self._move(writes, DISCARDABLE, State.DISCARDED)

    def requeue(self, writes: Collection[Write]) -> list[Transition]:
        """Deliver them again. The caller has confirmed the risk of :data:`RISKY` ones. The key
        stays the same, so that a server that remembers it still learns once."""
        return self._move(writes, REQUEUEABLE, State.PENDING)

    def hurry(self, destination: str) -> None:
        """Forget every wait for ``destination``."""
        with self._outbox.handle.use(WAIT) as connection, transaction(connection):
            connection.execute(
                "UPDATE lanes SET not_before = 0 WHERE destination = ?", (destination,)
            )
            connection.execute(
                "UPDATE writes SET next_at = 0 WHERE destination = ? AND open = 1", (destination,)
            )

    def _move(
        self, writes: Collection[Write], allowed: Collection[State], state: State
    ) -> list[Transition]:
        now, moved = self._now(), []
        changes: dict[str, Any] = {**NEVER_SENT, "settle_until": None, "next_at": 0.0}
        # Who delivers a write again gives it its whole time again.
        changes |= NO_BODY if state is State.DISCARDED else {"accepted_at": now}
        with self._outbox.handle.use(WAIT) as connection, transaction(connection):
            for before in writes:
                if before.state in allowed and WRITES.move(
                    connection,
                    before.id,
                    {before.state},
                    state,
                    now=now,
                    seen=before.updated_at,
                    **changes,
                ):
                    moved.append(Transition(before, get_write(connection, before.id)))
        return moved
