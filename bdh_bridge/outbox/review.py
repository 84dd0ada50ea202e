"""The operator's side of the outbox: look, and decide what no program can."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from bdh_bridge.outbox.queue import WAIT
from bdh_bridge.outbox.schema import SELECT, get_write, to_write
from bdh_bridge.outbox.states import State, Write
from bdh_bridge.outbox.store import Outbox
from bdh_bridge.outbox.transitions import Transition
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
        keeps_body = state is not State.DISCARDED
        with self._outbox.handle.use(WAIT) as connection, transaction(connection):
            for before in writes:
                if before.state not in allowed:
                    continue
                changed = connection.execute(
                    """UPDATE writes SET state = :state, updated_at = :now, settle_until = NULL,
                           sent_at = NULL, server_instance = NULL, next_at = 0,
                           accepted_at = iif(:keeps, :now, accepted_at),
                           query = iif(:keeps, query, ''),
                           user_prompt = iif(:keeps, user_prompt, ''),
                           body_bytes = iif(:keeps, body_bytes, 0)
                       WHERE id = :id AND state = :from AND updated_at = :seen""",
                    {
                        "state": state,
                        "now": now,
                        "keeps": keeps_body,
                        "id": before.id,
                        "from": before.state,
                        "seen": before.updated_at,
                    },
                ).rowcount
                if changed:
                    moved.append(Transition(before, get_write(connection, before.id)))
        return moved
