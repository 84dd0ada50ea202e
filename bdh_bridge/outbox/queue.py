"""The worker's side of the outbox: which write is next, and what became of it.

A *lane* is a destination with a vault. In a lane one write is under way at a time, oldest first.
A lane whose server is down waits as a whole, so that a thousand waiting writes cost one attempt.
Every change of state is one transaction, guarded by the claim's token: whoever lost the claim
can't overwrite what happened since.
"""

from __future__ import annotations

import logging
import random
import sqlite3
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from bdh_bridge.outbox.schema import COLUMNS, to_write
from bdh_bridge.outbox.states import State, Write
from bdh_bridge.outbox.store import Outbox, insert
from bdh_otel.database import transaction

log = logging.getLogger(__name__)

_SELECT = f"SELECT {COLUMNS} FROM writes"  # noqa: S608 (our own column names)
#: How long the worker waits for a lock, in seconds.
WAIT = 5.0
#: Seconds before the second attempt; doubled for each further one up to LONGEST_BACKOFF.
FIRST_BACKOFF = 1.0
LONGEST_BACKOFF = 300.0
#: What a server may ask for with Retry-After, at most.
LONGEST_RETRY_AFTER = 3_600.0
#: Share of the server's window that is used: its clock and ours are two.
WINDOW_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Server:
    """What ``/health`` declared: a server that answers a repeated key with its first answer."""

    instance: str
    window: float


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to send ``write``. Committed before the request leaves."""

    write: Write
    token: str
    server: Server | None

    @property
    def settling(self) -> bool:
        """An earlier attempt may have arrived: this one only asks what became of it."""
        return self.write.claimed_from is not State.PENDING


@dataclass(frozen=True, slots=True)
class Result:
    """What an attempt came to.

    ``state`` is ``PENDING`` for what certainly did not arrive. ``retry_after`` in seconds is the
    server's wish.
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
    """A change that was committed: the row before and after."""

    before: Write
    after: Write

    @property
    def repeats(self) -> bool:
        """Nothing new: the same trouble as at the attempt before."""
        return (self.before.claimed_from or self.before.state, self.before.error_type) == (
            self.after.state,
            self.after.error_type,
        )


class Queue:
    """``owner`` names this process (pid and start time); ``is_alive`` tells whether another owner
    still runs; ``now`` is wall time in Unix seconds."""

    def __init__(
        self,
        outbox: Outbox,
        *,
        owner: str,
        is_alive: Callable[[str], bool],
        max_age: float,
        claim_limit: float,
        now: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._outbox = outbox
        self._owner = owner
        self._is_alive = is_alive
        self._max_age = max_age
        self._claim_limit = claim_limit
        self._now = now
        self._jitter = jitter

    def next_write(self, destination: str) -> Write | None:
        """The write that may be sent now, without claiming it."""
        now = self._now()
        with self._outbox.handle.use(WAIT) as connection:
            ready = [
                write
                for vault, not_before, _ in _lanes(connection, destination)
                if _reached(not_before, now)
                and (write := _head(connection, destination, vault, now)) is not None
            ]
        return min(ready, key=lambda write: write.seq, default=None)

    def seconds_until_next(self, destination: str) -> float | None:
        """How long :meth:`next_write` will have nothing new; None: nothing waits at all."""
        now = self._now()
        times: list[float] = []
        with self._outbox.handle.use(WAIT) as connection:
            for vault, not_before, _ in _lanes(connection, destination):
                soonest = connection.execute(
                    """SELECT min(CASE state WHEN 'pending' THEN 0 ELSE next_at END) FROM writes
                       WHERE destination = ? AND vault_id = ? AND open = 1
                       AND state <> 'sending'""",
                    (destination, vault),
                ).fetchone()[0]
                if soonest is not None:
                    at = max(
                        0.0 if _reached(time_, now) else time_ for time_ in (soonest, not_before)
                    )
                    times.append(max(0.0, at - now))
        return min(times, default=None)

    def claim(self, write: Write, server: Server | None) -> Claim | None:
        """Take ``write`` for this process; None if somebody else was faster.

        A write whose first attempt may have arrived is claimed for the same server only.
        """
        now, token = self._now(), uuid.uuid4().hex
        with self._outbox.handle.use(WAIT) as connection, transaction(connection):
            cursor = connection.execute(
                """UPDATE writes SET state = 'sending', claimed_from = state, claim_token = :token,
                       claim_owner = :owner, attempts = attempts + 1, updated_at = :now,
                       sent_at = coalesce(sent_at, :now),
                       server_instance = CASE WHEN state = 'pending' THEN :instance
                                              ELSE server_instance END,
                       settle_until = CASE WHEN state = 'pending' THEN :until ELSE settle_until END
                   WHERE id = :id AND state = :state AND updated_at = :seen AND NOT EXISTS (
                       SELECT 1 FROM writes AS other WHERE other.state = 'sending'
                       AND other.destination = :destination AND other.vault_id = :vault)""",
                {
                    "token": token,
                    "owner": self._owner,
                    "now": now,
                    "instance": server.instance if server else None,
                    "until": now + server.window * WINDOW_SHARE if server else None,
                    "id": write.id,
                    "state": write.state,
                    "seen": write.updated_at,
                    "destination": write.destination,
                    "vault": write.vault_id,
                },
            )
            if cursor.rowcount != 1:
                return None
            if server is not None:
                connection.execute(
                    "UPDATE lanes SET honours_keys = 1 WHERE destination = ? AND vault_id = ?",
                    (write.destination, write.vault_id),
                )
            claimed = _get(connection, write.id)
        return Claim(claimed, token, server)

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
            before = _find(connection, claim.write.id)
            if before is None or before.claim_token != claim.token:
                return None
            if result.state is State.PENDING:
                self._slow_down(connection, before, result.retry_after, now)
            else:
                _speed_up(connection, before)
            self._record(connection, before, result, now)
            return Transition(before, _get(connection, before.id))

    def postpone(self, write: Write, result: Result) -> Transition:
        """The server could not even be asked how it is: the lane waits, nothing was sent."""
        now = self._now()
        with self._outbox.handle.use(WAIT) as connection, transaction(connection):
            before = _get(connection, write.id)
            self._slow_down(connection, before, result.retry_after, now)
            connection.execute(
                "UPDATE writes SET attempts = attempts + 1 WHERE id = ?", (write.id,)
            )
            self._record(connection, before, result, now)
            return Transition(before, _get(connection, write.id))

    def give_up_settling(self, write: Write, reason: str, detail: str) -> Transition:
        """Nobody can say any more what became of the first attempt."""
        with self._outbox.handle.use(WAIT) as connection, transaction(connection):
            return _settled_never(connection, write, reason, detail, self._now())

    def recover(self) -> list[Transition]:
        """Writes that a dead process was sending: in doubt, or asked again where that is safe."""
        now = self._now()
        found: list[Transition] = []
        with self._outbox.handle.use(WAIT) as connection, transaction(connection):
            rows = connection.execute(f"{_SELECT} WHERE state = 'sending'")
            for before in map(to_write, rows.fetchall()):
                owner = before.claim_owner or ""
                # Our own claims of an earlier life of this object are dead, too.
                abandoned = (
                    owner == self._owner
                    or not self._is_alive(owner)
                    or now - before.updated_at > self._claim_limit
                )
                if abandoned:
                    result = Result(State.IN_DOUBT, "worker_died", "the worker ended while sending")
                    self._record(connection, before, result, now)
                    found.append(Transition(before, _get(connection, before.id)))
        return found

    def close_windows(self) -> list[Transition]:
        """Writes whose server no longer remembers their key."""
        now = self._now()
        with self._outbox.handle.use(WAIT) as connection, transaction(connection):
            rows = connection.execute(
                f"""{_SELECT} WHERE open = 1 AND state <> 'sending'
                    AND settle_until <= ?""",
                (now,),
            )
            return [
                _settled_never(connection, write, "window_closed", "its key is forgotten", now)
                for write in map(to_write, rows.fetchall())
            ]

    def expire(self, destination: str) -> list[Transition]:
        """Writes that were tried in vain for too long. Only after an attempt that failed: a
        machine that was switched off for weeks still tries everything once."""
        now = self._now()
        result = Result(State.FAILED, "expired", "older than BDH_OUTBOX_MAX_AGE")
        found = []
        with self._outbox.handle.use(WAIT) as connection, transaction(connection):
            rows = connection.execute(
                f"""{_SELECT} WHERE state = 'pending' AND destination = ?
                    AND accepted_at < ? AND vault_id IN (
                        SELECT vault_id FROM lanes WHERE destination = ? AND failures > 0)""",  # noqa: S608
                (destination, now - self._max_age, destination),
            )
            for before in map(to_write, rows.fetchall()):
                detail = before.error_detail and f"{result.detail}; last: {before.error_detail}"
                self._record(
                    connection,
                    before,
                    Result(State.FAILED, "expired", detail or result.detail),
                    now,
                )
                found.append(Transition(before, _get(connection, before.id)))
        return found

    def take_in_spool(self) -> int:
        """Insert the spooled writes; a file goes only after its row is committed."""
        count = 0
        for path, spooled in self._outbox.spool.waiting():
            with self._outbox.handle.use(WAIT) as connection, transaction(connection):
                insert(connection, spooled)
            path.unlink(missing_ok=True)
            count += 1
        return count

    def prune(self, *, older_than: float, slice_rows: int = 500) -> int:
        """Forget writes that ended ``older_than`` seconds ago and need nobody: delivered,
        discarded, unconfirmed. Failed and quarantined ones stay until the operator decides."""
        limit, removed = self._now() - older_than, 0
        while True:
            with self._outbox.handle.use(WAIT) as connection, transaction(connection):
                count = connection.execute(
                    """DELETE FROM writes WHERE seq IN (SELECT seq FROM writes
                       WHERE state IN ('delivered', 'discarded', 'unconfirmed')
                       AND updated_at < ? AND open = 0 LIMIT ?)""",
                    (limit, slice_rows),
                ).rowcount
            removed += count
            if count < slice_rows:
                break
        if removed:
            with self._outbox.handle.use(WAIT) as connection:
                connection.executescript("PRAGMA incremental_vacuum(2000)")
        return removed

    def shift_clock(self, seconds: float) -> None:
        """The machine's clock jumped by ``seconds``: what waits keeps its age and its turn."""
        with self._outbox.handle.use(WAIT) as connection, transaction(connection):
            connection.execute(
                """UPDATE writes SET accepted_at = accepted_at + :d, next_at = next_at + :d,
                       sent_at = sent_at + :d, settle_until = settle_until + :d
                   WHERE open = 1""",
                {"d": seconds},
            )
            connection.execute(
                "UPDATE lanes SET not_before = not_before + ? WHERE not_before > 0", (seconds,)
            )

    def hurry(self, destination: str) -> None:
        """Forget every backoff: somebody asked for it."""
        with self._outbox.handle.use(WAIT) as connection, transaction(connection):
            connection.execute(
                "UPDATE lanes SET not_before = 0 WHERE destination = ?", (destination,)
            )
            connection.execute(
                "UPDATE writes SET next_at = 0 WHERE destination = ? AND open = 1", (destination,)
            )

    def _record(
        self, connection: sqlite3.Connection, before: Write, result: Result, now: float
    ) -> None:
        state, settle_until, next_at = self._outcome(before, result, now)
        if state is State.PENDING:
            # It never left: a later doubt must not be dated from now.
            sent_at, instance = None, None
        else:
            sent_at, instance = before.sent_at, before.server_instance
        keeps_body = state is not State.DELIVERED
        connection.execute(
            """UPDATE writes SET state = :state, updated_at = :now, claim_token = NULL,
                   claim_owner = NULL, claimed_from = NULL, next_at = :next_at, sent_at = :sent_at,
                   server_instance = :instance, settle_until = :settle_until,
                   http_status = :http_status, error_type = :error_type, error_detail = :detail,
                   degraded = :degraded, new_concepts = :concepts, hebbian_updates = :hebbian,
                   query = iif(:keeps, query, ''), user_prompt = iif(:keeps, user_prompt, ''),
                   body_bytes = iif(:keeps, body_bytes, 0)
               WHERE id = :id""",
            {
                "state": state,
                "now": now,
                "next_at": next_at,
                "sent_at": sent_at,
                "instance": instance,
                "settle_until": settle_until,
                "http_status": result.http_status,
                "error_type": result.error_type,
                "detail": result.detail and result.detail[:2_000],
                "degraded": result.degraded,
                "concepts": result.new_concepts,
                "hebbian": result.hebbian_updates,
                "keeps": keeps_body,
                "id": before.id,
            },
        )

    def _outcome(
        self, before: Write, result: Result, now: float
    ) -> tuple[State, float | None, float]:
        """The row's new state, until when it may be asked again, and when at the earliest."""
        earlier = before.claimed_from or before.state
        state = result.state
        if earlier in (State.IN_DOUBT, State.UNCONFIRMED) and state in (
            State.PENDING,
            State.FAILED,
        ):
            # This attempt taught nothing, and says nothing about the one that may have.
            state = earlier
        if state not in (State.IN_DOUBT, State.UNCONFIRMED):
            return state, None, 0.0
        until = before.settle_until
        if until is not None and until > now:
            return state, until, now + self._backoff(before.attempts)
        return (State.QUARANTINED if state is State.IN_DOUBT else state), None, 0.0

    def _slow_down(
        self, connection: sqlite3.Connection, write: Write, wish: float | None, now: float
    ) -> None:
        lane = (write.destination, write.vault_id)
        failures = connection.execute(
            """UPDATE lanes SET failures = failures + 1 WHERE destination = ? AND vault_id = ?
               RETURNING failures""",
            lane,
        ).fetchone()[0]
        wait = max(self._backoff(failures), min(wish or 0.0, LONGEST_RETRY_AFTER))
        connection.execute(
            "UPDATE lanes SET not_before = ? WHERE destination = ? AND vault_id = ?",
            (now + wait, *lane),
        )

    def _backoff(self, failures: int) -> float:
        """Exponential with "equal jitter": half fixed, half random, so that nothing spins and
        many workers don't return at the same moment."""
        ceiling = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2.0 ** min(max(failures - 1, 0), 30))
        return ceiling / 2 + self._jitter() * ceiling / 2


def _lanes(connection: sqlite3.Connection, destination: str) -> list[tuple[str, float, int]]:
    rows = connection.execute(
        "SELECT vault_id, not_before, failures FROM lanes WHERE destination = ?", (destination,)
    )
    return [(row[0], row[1], row[2]) for row in rows]


def _head(connection: sqlite3.Connection, destination: str, vault: str, now: float) -> Write | None:
    """The lane's next write: its oldest pending one, or an older one that is due to be settled."""
    lane = {"destination": destination, "vault": vault, "now": now}
    where = "destination = :destination AND vault_id = :vault"
    if connection.execute(f"{_SELECT} WHERE {where} AND state = 'sending'", lane).fetchone():
        return None
    candidates = [
        connection.execute(
            f"{_SELECT} WHERE {where} AND {condition} ORDER BY seq LIMIT 1",
            {**lane, "far": now + LONGEST_RETRY_AFTER},
        ).fetchone()
        for condition in (
            "state = 'pending'",
            """state IN ('in_doubt', 'unconfirmed') AND settle_until > :now
               AND (next_at <= :now OR next_at > :far)""",
        )
    ]
    found = [to_write(row) for row in candidates if row is not None]
    return min(found, key=lambda write: write.seq, default=None)


def _reached(at: float, now: float) -> bool:
    """Whether ``at`` has come. A time further off than any wait was set before the clock jumped."""
    return at <= now or at > now + LONGEST_RETRY_AFTER


def _speed_up(connection: sqlite3.Connection, write: Write) -> None:
    connection.execute(
        """UPDATE lanes SET failures = 0, not_before = 0
           WHERE destination = ? AND vault_id = ? AND failures > 0""",
        (write.destination, write.vault_id),
    )


def _settled_never(
    connection: sqlite3.Connection, write: Write, reason: str, detail: str, now: float
) -> Transition:
    connection.execute(
        """UPDATE writes SET settle_until = NULL, updated_at = ?, error_type = ?, error_detail = ?,
               state = iif(state = 'in_doubt', 'quarantined', state)
           WHERE id = ? AND state IN ('in_doubt', 'unconfirmed')""",
        (now, reason, detail, write.id),
    )
    return Transition(write, _get(connection, write.id))


def _find(connection: sqlite3.Connection, id_: str) -> Write | None:
    row = connection.execute(f"{_SELECT} WHERE id = ?", (id_,)).fetchone()
    return None if row is None else to_write(row)


def _get(connection: sqlite3.Connection, id_: str) -> Write:
    write = _find(connection, id_)
    if write is None:
        raise KeyError(id_)
    return write
