"""How a row changes its state: the rules of the state machine, in one place.

Every function here runs inside the caller's transaction.
"""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass
from typing import Any

from bdh_bridge.outbox.schema import WRITES, get_write
from bdh_bridge.outbox.states import State, Write

#: Seconds before the second attempt; doubled for each further one up to LONGEST_BACKOFF.
FIRST_BACKOFF = 1.0
LONGEST_BACKOFF = 300.0

_DOUBTFUL = frozenset({State.IN_DOUBT, State.UNCONFIRMED})

#: Columns of a write that has not left this machine, and of one whose text is not needed any more.
NEVER_SENT = {"sent_at": None, "server_instance": None}
NO_BODY = {"query": "", "user_prompt": "", "body_bytes": 0}


@dataclass(frozen=True, slots=True)
class Result:
    """What an attempt came to.

    ``state`` is ``PENDING`` for what certainly did not arrive. ``error_type`` is a code of few
    values, ``detail`` may hold the server's own words. ``retry_after`` in seconds is its wish.
    """

    state: State
    error_type: str | None = None
    detail: str | None = None
    http_status: int | None = None
    retry_after: float | None = None
    degraded: bool = False
    new_concepts: int = 0
    hebbian_updates: int = 0


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of state: the row before and after."""

    before: Write
    after: Write

    @property
    def repeats(self) -> bool:
        """The same trouble as at the attempt before: nothing that one would tell again."""
        came_from = self.before.claimed_from or self.before.state
        return (came_from, self.before.error_type) == (self.after.state, self.after.error_type)


def record(connection: sqlite3.Connection, before: Write, result: Result, now: float) -> Transition:
    """Bring the row from ``before`` to where ``result`` leads."""
    state, settle_until, next_at = _outcome(before, result, now)
    changes: dict[str, Any] = {
        "claim_token": None,
        "claim_owner": None,
        "claimed_from": None,
        "next_at": next_at,
        "settle_until": settle_until,
        "http_status": result.http_status,
        "error_type": result.error_type,
        "error_detail": result.detail and result.detail[:2_000],
        "degraded": result.degraded,
        "new_concepts": result.new_concepts,
        "hebbian_updates": result.hebbian_updates,
    }
    if state is State.PENDING:  # what never left must not date a later doubt
        changes |= NEVER_SENT
    if state is State.DELIVERED:
        changes |= NO_BODY
    WRITES.move(connection, before.id, {before.state}, state, now=now, **changes)
    return Transition(before, get_write(connection, before.id))


def give_up_settling(
    connection: sqlite3.Connection, write: Write, reason: str, detail: str, now: float
) -> Transition:
    """Nobody can say any more what became of the attempt that may have arrived."""
    after = State.QUARANTINED if write.state is State.IN_DOUBT else write.state
    WRITES.move(
        connection,
        write.id,
        {write.state} & _DOUBTFUL,
        after,
        now=now,
        settle_until=None,
        error_type=reason,
        error_detail=detail,
    )
    return Transition(write, get_write(connection, write.id))


def backoff(failures: int) -> float:
    """Seconds to wait after that many failures in a row: exponential with "equal jitter", half
    of it fixed and half random, so that nothing spins and many don't return at one moment."""
    ceiling = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2.0 ** min(max(failures - 1, 0), 30))
    return ceiling / 2 + random.random() * ceiling / 2  # noqa: S311 (no secret)


def _outcome(before: Write, result: Result, now: float) -> tuple[State, float | None, float]:
    """The row's new state, until when it may be asked again, and when at the earliest."""
    earlier, state = before.claimed_from or before.state, result.state
    if earlier in _DOUBTFUL and state in (State.PENDING, State.FAILED):
        # This attempt taught nothing, and says nothing about the one that may have.
        state = earlier
    if state not in _DOUBTFUL:
        return state, None, 0.0
    until = before.settle_until
    if until is not None and until > now:
        return state, until, now + backoff(before.attempts)
    return (State.QUARANTINED if state is State.IN_DOUBT else state), None, 0.0
