"""The worker's side of the outbox: which write is next, and what became of it.

A *lane* is a destination with a vault. In a lane one write is under way at a time, oldest first.
A lane whose server is down waits as a whole, so that a thousand waiting writes cost one attempt.
Every change of state is one transaction, guarded by the claim's token: whoever lost the claim
can't overwrite what happened since.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bdh_bridge.outbox import transitions
from bdh_bridge.outbox.schema import SELECT, WRITES, find_write, get_write, to_write
from bdh_bridge.outbox.states import State, Write
from bdh_bridge.outbox.store import Outbox
from bdh_bridge.outbox.transitions import Result, Transition, record
from bdh_otel.database import transaction
from bdh_otel.state_table import Sql, new_token

#: How long the worker waits for a lock, in seconds.
WAIT = 5.0
#: What a server may ask for with Retry-After, at most: the longest wait of all, in seconds.
LONGEST_RETRY_AFTER = 3_600.0
#: Seconds after which a lane is looked at again that another process is sending in.
OTHERS_CLAIM = 2.0
#: Share of the server's window that is used: its clock and ours are two.
WINDOW_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers a repeated key with its first answer. ``instance`` names its memory,
    ``window`` is in seconds."""

    instance: str
    window: float


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to send ``write``, committed before the request leaves."""

    write: Write
    token: str


class Queue:
    """``owner`` names this process in its claims; ``now`` is wall time in Unix seconds. Methods
    raise :class:`~bdh_otel.database.StoreError`."""

    def __init__(self, outbox: Outbox, *, owner: str, now: Callable[[], float] = time.time) -> None:
        self._outbox = outbox
        self._owner = owner
        self._now = now

    def next_write(self, destination: str) -> Write | None:
        """The write that may be sent now, without claiming it."""
        now = self._now()
        with self._outbox.handle.use(WAIT) as connection:
            heads = [
                _head(connection, destination, vault, now)
                for vault, not_before in _lanes(connection, destination)
                if _reached(not_before, now)
            ]
        return min((head for head in heads if head), key=lambda head: head.seq, default=None)

    def seconds_until_next(self, destination: str) -> float | None:
        """When :meth:`next_write` is worth asking again; None: nothing waits at all."""
        now = self._now()
        times: list[float] = []
        with self._outbox.handle.use(WAIT) as connection:
            for vault, not_before in _lanes(connection, destination):
                waiting = connection.execute(
                    """SELECT count(*), max(state = 'sending'),
                           min(CASE state WHEN 'pending' THEN 0 ELSE next_at END)
                       FROM writes WHERE destination = ? AND vault_id = ? AND open = 1""",
                    (destination, vault),
                ).fetchone()
                count, others_claim, next_at = waiting
                if count:
                    at = [time_ for time_ in (next_at, not_before) if not _reached(time_, now)]
                    at.append(now + OTHERS_CLAIM if others_claim else now)
                    times.append(max(at) - now)
        return min(times, default=None)

    def claim(self, write: Write, server: Server | None) -> Claim | None:
        """Take ``write`` for this process; None if somebody else was faster.

        ``server`` is who will be asked, as far as it honours keys. For a write that may have
        arrived earlier the caller has checked that it is still the same one.
        """
        now, token = self._now(), new_token()
        changes: dict[str, Any] = {
            "claimed_from": write.state,
            "claim_token": token,
            "claim_owner": self._owner,
            "attempts": Sql("attempts + 1"),
        }
        if write.sent_at is None:
            changes["sent_at"] = now
        if write.state is State.PENDING:
            changes["server_instance"] = server.instance if server else None
            changes["settle_until"] = now + server.window * WINDOW_SHARE if server else None
        with self._outbox.handle.use(WAIT) as connection, transaction(connection):
            if _lane_is_taken(connection, write) or not WRITES.move(
                connection,
                write.id,
                {write.state},
                State.SENDING,
                now=now,
                seen=write.updated_at,
                **changes,
            ):
                return None
            if server is not None:
                connection.execute(
                    """UPDATE lanes SET honours_keys = 1
                       WHERE destination = ? AND vault_id = ? AND honours_keys = 0""",
                    (write.destination, write.vault_id),
                )
            return Claim(get_write(connection, write.id), token)

    def honours_keys(self, write: Write) -> bool:
        """Whether the write's lane has met a server that honours keys."""
        with self._outbox.handle.use(WAIT) as connection:
            row = connection.execute(
                "SELECT honours_keys FROM lanes WHERE destination = ? AND vault_id = ?",
                (write.destination, write.vault_id),
            ).fetchone()
        return bool(row and row[0])

    def finish(self, claim: Claim, result: Result) -> Transition | None:
        """Record the attempt; None if the claim was lost meanwhile."""
        now = self._now()
        with self._outbox.handle.use(WAIT) as connection, transaction(connection):
            before = find_write(connection, claim.write.id)
            if before is None or before.claim_token != claim.token:
                return None
            if result.state is State.PENDING:
                _slow_down(connection, before, result.retry_after, now)
            else:
                _speed_up(connection, before)
            return record(connection, before, result, now)

    def postpone(self, write: Write, result: Result) -> Transition:
        """The server could not even be asked how it is: nothing was sent, the lane waits."""
        now = self._now()
        with self._outbox.handle.use(WAIT) as connection, transaction(connection):
            connection.execute(
                "UPDATE writes SET attempts = attempts + 1 WHERE id = ?", (write.id,)
            )
            before = get_write(connection, write.id)
            _slow_down(connection, before, result.retry_after, now)
            return record(connection, before, result, now)

    def give_up_settling(self, write: Write, reason: str, detail: str) -> Transition:
        """What may have arrived can't be asked about any more."""
        with self._outbox.handle.use(WAIT) as connection, transaction(connection):
            return transitions.give_up_settling(connection, write, reason, detail, self._now())


def _lanes(connection: sqlite3.Connection, destination: str) -> list[tuple[str, float]]:
    rows = connection.execute(
        "SELECT vault_id, not_before FROM lanes WHERE destination = ?", (destination,)
    )
    return [(row[0], row[1]) for row in rows]


def _lane_is_taken(connection: sqlite3.Connection, write: Write) -> bool:
    """Whether somebody sends in the write's lane."""
    lane = (write.destination, write.vault_id)
    query = "SELECT 1 FROM writes WHERE state = 'sending' AND destination = ? AND vault_id = ?"
    return connection.execute(query, lane).fetchone() is not None


def _head(connection: sqlite3.Connection, destination: str, vault: str, now: float) -> Write | None:
    """The lane's next write: its oldest pending one, or an older one that is due to be settled."""
    lane = {
        "destination": destination,
        "vault": vault,
        "now": now,
        "far": now + LONGEST_RETRY_AFTER,
    }
    conditions = (
        "state = 'sending'",
        "state = 'pending'",
        """state IN ('in_doubt', 'unconfirmed') AND settle_until > :now
           AND (next_at <= :now OR next_at > :far)""",
    )
    sending, pending, doubtful = (
        connection.execute(
            f"{SELECT} WHERE destination = :destination AND vault_id = :vault AND {condition} "
            "ORDER BY seq LIMIT 1",
            lane,
        ).fetchone()
        for condition in conditions
    )
    if sending is not None:
        return None
    found = [to_write(row) for row in (pending, doubtful) if row is not None]
    return min(found, key=lambda write: write.seq, default=None)


def _reached(at: float, now: float) -> bool:
    """Whether ``at`` has come. One further off than any wait was set before the clock jumped."""
    return at <= now or at > now + LONGEST_RETRY_AFTER


def _slow_down(
    connection: sqlite3.Connection, write: Write, wish: float | None, now: float
) -> None:
    lane = (write.destination, write.vault_id)
    failures = connection.execute(
        """UPDATE lanes SET failures = failures + 1 WHERE destination = ? AND vault_id = ?
           RETURNING failures""",
        lane,
    ).fetchone()[0]
    wait = max(transitions.backoff(failures), min(wish or 0.0, LONGEST_RETRY_AFTER))
    connection.execute(
        "UPDATE lanes SET not_before = ? WHERE destination = ? AND vault_id = ?",
        (now + wait, *lane),
    )


def _speed_up(connection: sqlite3.Connection, write: Write) -> None:
    connection.execute(
        """UPDATE lanes SET failures = 0, not_before = 0
           WHERE destination = ? AND vault_id = ? AND failures > 0""",
        (write.destination, write.vault_id),
    )
