"""What keeps the outbox in order: dead claims, closed windows, age, the spool, the clock."""

from __future__ import annotations

import time
from collections.abc import Callable

from bdh_bridge.outbox.queue import WAIT
from bdh_bridge.outbox.schema import SELECT, to_write
from bdh_bridge.outbox.states import State, Write
from bdh_bridge.outbox.store import Outbox, insert
from bdh_bridge.outbox.transitions import Result, Transition, give_up_settling, record
from bdh_otel.database import transaction
from bdh_otel.state_table import SLICE, drop_slice

#: Rows stamped so recently (seconds) were stamped by the clock as it is now.
_RECENT = 60.0


class Upkeep:
    """``owner`` names this process, ``is_alive`` tells whether another owner still runs.
    ``max_age`` and ``claim_limit`` (after which a living owner has lost its claim) are in seconds.
    Methods raise :class:`~bdh_otel.database.StoreError`."""

    def __init__(
        self,
        outbox: Outbox,
        *,
        owner: str,
        is_alive: Callable[[str], bool],
        max_age: float,
        claim_limit: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._outbox = outbox
        self._owner = owner
        self._is_alive = is_alive
        self._max_age = max_age
        self._claim_limit = claim_limit
        self._now = now

    def recover(self) -> list[Transition]:
        """Writes that a dead process was sending may have arrived. Only between two deliveries:
        a claim of this very process counts as dead."""
        now = self._now()
        result = Result(State.IN_DOUBT, "worker_died", "the worker ended while it was sending")
        with self._outbox.handle.use(WAIT) as connection:
            rows = connection.execute(f"{SELECT} WHERE state = 'sending'").fetchall()
            if not rows:  # the usual case takes no write lock
                return []
            with transaction(connection):
                rows = connection.execute(f"{SELECT} WHERE state = 'sending'").fetchall()
                return [
                    record(connection, before, result, now)
                    for before in map(to_write, rows)
                    if before.claim_owner in (None, self._owner)
                    or not self._is_alive(before.claim_owner or "")
                    or now - before.updated_at > self._claim_limit
                ]

    def close_windows(self) -> list[Transition]:
        """Writes whose key the server no longer remembers."""
        now = self._now()
        due = f"{SELECT} WHERE open = 1 AND state <> 'sending' AND settle_until <= ?"
        with self._outbox.handle.use(WAIT) as connection:
            if connection.execute(due, (now,)).fetchone() is None:
                return []
            with transaction(connection):
                return [
                    give_up_settling(
                        connection, write, "window_closed", "the server has forgotten its key", now
                    )
                    for write in map(to_write, connection.execute(due, (now,)).fetchall())
                ]

    def expire(self, write: Write) -> list[Transition]:
        """What was tried in vain for too long in the lane of ``write``. To be called after an
        attempt that failed there, so that a machine that was off for weeks still tries once."""
        now = self._now()
        with self._outbox.handle.use(WAIT) as connection, transaction(connection):
            rows = connection.execute(
                f"{SELECT} WHERE destination = ? AND vault_id = ? AND state = 'pending' "
                "AND accepted_at < ?",
                (write.destination, write.vault_id, now - self._max_age),
            ).fetchall()
            return [record(connection, old, _expired(old), now) for old in map(to_write, rows)]

    def take_in_spool(self) -> int:
        """Insert the spooled writes; a file goes only when its row is committed."""
        count = 0
        for path, spooled in self._outbox.spool.waiting():
            with self._outbox.handle.use(WAIT) as connection, transaction(connection):
                insert(connection, spooled)
            path.unlink(missing_ok=True)
            count += 1
        return count

    def prune(self, *, older_than: float) -> int:
        """Forget writes that ended ``older_than`` seconds ago and need nobody: delivered,
        discarded, unconfirmed. Failed and quarantined ones stay until the operator decides."""
        self._outbox.spool.remove_partial()
        limit, removed, count = self._now() - older_than, 0, SLICE
        over = "state IN ('delivered', 'discarded', 'unconfirmed') AND updated_at < ? AND open = 0"
        while count == SLICE:
            with self._outbox.handle.use(WAIT) as connection, transaction(connection):
                count = drop_slice(connection, "writes", "seq", over, limit)
            removed += count
        if removed:
            with self._outbox.handle.use(WAIT) as connection:
                connection.executescript("PRAGMA incremental_vacuum(2000)")
        return removed

    def shift_clock(self, jump: float) -> None:
        """The machine's clock was set ahead by ``jump`` seconds (back, if negative): what waits
        keeps its age and its turn. Rows of the last minute bear the new time already."""
        now = self._now()
        with self._outbox.handle.use(WAIT) as connection, transaction(connection):
            connection.execute(
                """UPDATE writes SET accepted_at = accepted_at + :jump, next_at = next_at + :jump,
                       sent_at = sent_at + :jump, settle_until = settle_until + :jump
                   WHERE open = 1 AND accepted_at NOT BETWEEN :recent AND :now""",
                {"jump": jump, "recent": now - _RECENT, "now": now},
            )
            connection.execute(
                "UPDATE lanes SET not_before = not_before + ? WHERE not_before > 0", (jump,)
            )


def _expired(write: Write) -> Result:
    last = write.error_detail or "it was not tried itself"
    detail = f"older than BDH_OUTBOX_MAX_AGE; last: {last}"
    return Result(State.FAILED, "expired", detail, write.http_status)
