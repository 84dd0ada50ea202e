"""What the processes of one Hermes home know together: circuit breakers and pauses.

The agent asks on every turn, so :meth:`SharedState.breaker_allows`, ``record_success``,
``record_failure`` and ``paused`` never raise and wait for a lock for 50 ms at most: while the
store can't be used, circuits count as closed and the last pauses that could be read still hold.
What an operator orders (``pause``, ``resume``) or looks at (``pauses``, ``breakers``) raises a
:class:`~bdh_otel.database.StoreError` instead of failing in silence.

**Time.** Processes share the wall clock alone, and it may jump. A stored moment that lies in
the future is proof of a jump backwards, and the wait that hangs on it is over; every process
also measures by its own monotonic clock from when it first saw the circuit open. So no jump
holds a circuit open for longer than its wait in a process that lives through it, or twice that
in a chain of short ones. A pause errs the other way: a jump backwards starts it anew.
"""

from __future__ import annotations

import logging
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from bdh_otel.database import Schema, StoreError, classify, connect, transaction

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Failures in a row that open a circuit.
FAILURES_TO_OPEN = 3
#: Seconds: the first wait, the longest one, the longest that a peer may ask for.
FIRST_WAIT, LONGEST_WAIT, LONGEST_RETRY_AFTER = 5.0, 300.0, 3600.0
#: Seconds that a probe may take before another process may try: more than any deadline.
PROBE_LEASE = 30.0
#: Seconds that the clock may be behind a stored moment without having jumped (NTP slewing).
CLOCK_TOLERANCE = 1.0
#: Seconds for which a store that failed is left alone, and between two warnings about it.
REST_AFTER_FAILURE, WARN_EVERY = 1.0, 600.0


@dataclass(frozen=True, slots=True)
class BreakerDecision:
    """``probe``: this caller alone may try now, and must record how it went.

    ``retry_in``: seconds until it makes sense to ask again, 0 when allowed.
    """

    allowed: bool
    reason: Literal["closed", "open", "probe"]
    retry_in: float = 0.0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Breaker:
    """A peer that failed lately. ``open`` while its wait lasts; times are Unix seconds."""

    key: str
    failures: int
    failed_at: float
    wait: float
    open: bool
    probing: bool


@dataclass(frozen=True, slots=True)
class Pause:
    """``scope`` is ``all`` or a session id; ``until`` is a Unix time, None until resumed."""

    scope: str
    since: float
    until: float | None


def _create(connection: sqlite3.Connection) -> None:
    # wait 0: failures are counted, the circuit is still closed.
    connection.execute(
        "CREATE TABLE breakers (key TEXT PRIMARY KEY, failures INTEGER NOT NULL,"
        " failed_at REAL NOT NULL, wait REAL NOT NULL, probed_at REAL) WITHOUT ROWID"
    )
    connection.execute(
        "CREATE TABLE pauses (scope TEXT PRIMARY KEY, since REAL NOT NULL, seconds REAL)"
        " WITHOUT ROWID"
    )


#: Migrations are only ever appended.
SCHEMA = Schema("shared state", 0x42447374, (_create,))


class SharedState:
    """``state.sqlite3`` of one home; one object a process, used from any thread.

    ``busy_timeout`` is in seconds; a command line may wait longer than the agent.
    ``clock`` is the wall clock, ``stopwatch`` a monotonic one, ``chance`` gives 0 to 1.
    """

    def __init__(
        self,
        path: Path,
        *,
        busy_timeout: float = 0.05,
        clock: Callable[[], float] = time.time,
        stopwatch: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._path = path
        self._busy_timeout = busy_timeout
        self._clock, self._stopwatch, self._chance = clock, stopwatch, chance
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._rest_until = self._warn_after = float("-inf")
        self._first_seen: dict[str, tuple[float, float]] = {}
        self._known_pauses: list[sqlite3.Row] = []

    # Circuit breakers

    def breaker_allows(self, key: str, *, lease: float = PROBE_LEASE) -> BreakerDecision:
        """May ``key`` (``graph:<destination>``, ``provider:<name>``) be called now? Never raises.

        A granted probe that is never recorded is free for others after ``lease`` seconds.
        """

        def ask(connection: sqlite3.Connection) -> BreakerDecision:
            decision = self._judge(_breaker_row(connection, key), lease)
            if decision.reason != "probe":
                return decision
            with transaction(connection):
                # Judged again under the write lock: one process alone gets the probe.
                decision = self._judge(_breaker_row(connection, key), lease)
                if decision.reason == "probe":
                    connection.execute(
                        "UPDATE breakers SET probed_at = ? WHERE key = ?", (self._clock(), key)
                    )
            return decision

        return self._attempt(ask, BreakerDecision(True, "closed"))

    def record_success(self, key: str) -> None:
        """The peer answered: its circuit is closed. Never raises."""

        def close(connection: sqlite3.Connection) -> None:
            # Nearly always there is nothing to forget, and reading takes no write lock.
            if _breaker_row(connection, key) is not None:
                connection.execute("DELETE FROM breakers WHERE key = ?", (key,))
            self._first_seen.pop(key, None)

        self._attempt(close, None)

    def record_failure(self, key: str, *, retry_after: float | None = None) -> None:
        """The peer failed. Never raises.

        The third failure in a row opens the circuit, and each failed probe doubles the wait
        (5 s to 5 min, up to a quarter shorter by chance so that processes don't march in
        step). ``retry_after``, seconds that the peer itself asked for, opens it at once, for
        an hour at most.
        """

        def count(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                row = _breaker_row(connection, key)
                # Not a number, negative and endless ones do occur in a peer's answer.
                asked = min(retry_after or 0.0, LONGEST_RETRY_AFTER)
                asked = asked if asked > 0 else 0.0
                if row is not None and row["probed_at"] is None:
                    left = self._left(row)
                    # A straggler, sent before the circuit opened, says nothing new.
                    if left > 0 and asked <= left:
                        return
                failures = (row["failures"] if row is not None else 0) + 1
                wait = max(self._backoff(failures), asked)
                connection.execute(
                    "INSERT OR REPLACE INTO breakers VALUES (?, ?, ?, ?, NULL)",
                    (key, failures, self._clock(), wait),
                )

        self._attempt(count, None)

    def breakers(self) -> list[Breaker]:
        """Every peer with failures on record. Raises: StoreError."""

        def read(connection: sqlite3.Connection) -> list[Breaker]:
            return [
                Breaker(
                    row["key"],
                    row["failures"],
                    row["failed_at"],
                    row["wait"],
                    open=self._left(row) > 0,
                    probing=self._lease_left(row, PROBE_LEASE) > 0,
                )
                for row in connection.execute("SELECT * FROM breakers ORDER BY key")
            ]

        return self._require(read)

    # Pauses

    def pause(self, scope: str = "all", seconds: float | None = None) -> Pause:
        """Stop reading and writing, everywhere or in one session; replaces an earlier pause.

        Raises: ValueError if ``seconds`` is not over 0; StoreError.
        """
        if not scope or (seconds is not None and not 0 < seconds < float("inf")):
            raise ValueError("a pause needs a scope, and a time over 0 seconds or none")

        def store(connection: sqlite3.Connection) -> Pause:
            now = self._clock()
            with transaction(connection):
                connection.execute(
                    "DELETE FROM pauses WHERE since <= ?1 AND since + seconds <= ?1", (now,)
                )
                connection.execute(
                    "INSERT OR REPLACE INTO pauses VALUES (?, ?, ?)", (scope, now, seconds)
                )
            return Pause(scope, now, None if seconds is None else now + seconds)

        return self._require(store)

    def resume(self, scope: str = "all") -> bool:
        """End the pause of exactly this scope; False if there was none. Raises: StoreError."""

        def remove(connection: sqlite3.Connection) -> bool:
            return connection.execute("DELETE FROM pauses WHERE scope = ?", (scope,)).rowcount > 0

        return self._require(remove)

    def paused(self, session_id: str) -> Pause | None:
        """The pause that holds for this session, the general one first. Never raises."""

        def read(connection: sqlite3.Connection) -> list[Pause]:
            self._known_pauses = self._read_pauses(connection)
            return self._running(self._known_pauses)

        running = self._attempt(read, None)
        if running is None:
            # Somebody wanted silence: a store that fails now is no reason to break it.
            running = self._running(self._known_pauses)
        by_scope = {pause.scope: pause for pause in running}
        return by_scope.get("all") or by_scope.get(session_id)

    def pauses(self) -> list[Pause]:
        """Every pause that still runs. Raises: StoreError."""
        return self._require(lambda connection: self._running(self._read_pauses(connection)))

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    # Time

    def _judge(self, row: sqlite3.Row | None, lease: float) -> BreakerDecision:
        if row is None or row["wait"] <= 0:
            return BreakerDecision(True, "closed", failures=row["failures"] if row else 0)
        left = max(self._left(row), self._lease_left(row, lease))
        if left > 0:
            return BreakerDecision(False, "open", left, row["failures"])
        return BreakerDecision(True, "probe", failures=row["failures"])

    def _left(self, row: sqlite3.Row) -> float:
        """Seconds that the circuit of ``row`` stays open."""
        return self._remaining(row["key"], row["failed_at"], min(row["wait"], LONGEST_RETRY_AFTER))

    def _lease_left(self, row: sqlite3.Row, lease: float) -> float:
        if row["probed_at"] is None:
            return 0.0
        return self._remaining(f"{row['key']}\0probe", row["probed_at"], lease)

    def _remaining(self, key: str, since: float, duration: float) -> float:
        by_wall = self._clock() - since
        if by_wall < -CLOCK_TOLERANCE:
            return 0.0
        seen_since, seen_at = self._first_seen.get(key, (None, 0.0))
        if seen_since != since:
            if len(self._first_seen) > 1_000:
                self._first_seen.clear()
            seen_at = self._stopwatch()
            self._first_seen[key] = (since, seen_at)
        elapsed = max(by_wall, self._stopwatch() - seen_at, 0.0)
        return max(duration - elapsed, 0.0)

    def _backoff(self, failures: int) -> float:
        if failures < FAILURES_TO_OPEN:
            return 0.0
        doublings = min(failures - FAILURES_TO_OPEN, 16)
        return min(FIRST_WAIT * 2.0**doublings, LONGEST_WAIT) * (1 - self._chance() / 4)

    def _read_pauses(self, connection: sqlite3.Connection) -> list[sqlite3.Row]:
        rows = connection.execute("SELECT * FROM pauses").fetchall()
        now = self._clock()
        if any(row["seconds"] and now < row["since"] - CLOCK_TOLERANCE for row in rows):
            connection.execute(
                "UPDATE pauses SET since = ?1 WHERE seconds IS NOT NULL AND since > ?1", (now,)
            )
            rows = connection.execute("SELECT * FROM pauses").fetchall()
        return rows

    def _running(self, rows: list[sqlite3.Row]) -> list[Pause]:
        now = self._clock()
        return [
            Pause(row["scope"], row["since"], row["seconds"] and row["since"] + row["seconds"])
            for row in rows
            if row["seconds"] is None or now < row["since"] + row["seconds"]
        ]

    # The store

    def _attempt(self, operation: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """Run ``operation``; any trouble is one warning and ``otherwise``."""
        if self._stopwatch() < self._rest_until:
            return otherwise
        if not self._lock.acquire(timeout=self._busy_timeout):
            return otherwise
        try:
            return operation(self._connected())
        except Exception as error:  # the agent's turn goes on whatever happens here
            self._give_up(error)
            return otherwise
        finally:
            self._lock.release()

    def _require(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            try:
                return operation(self._connected())
            except sqlite3.Error as error:
                self._disconnect()
                raise classify(self._path, error) from error

    def _connected(self) -> sqlite3.Connection:
        """The kept connection, opened anew when the file was deleted or replaced."""
        if self._connection is not None:
            try:
                status = self._path.stat()
                if self._file == (status.st_dev, status.st_ino):
                    return self._connection
            except FileNotFoundError:
                pass
            self._disconnect()
        connection = connect(self._path, SCHEMA, busy_timeout=self._busy_timeout)
        status = self._path.stat()
        self._connection, self._file = connection, (status.st_dev, status.st_ino)
        return connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _give_up(self, error: Exception) -> None:
        now = self._stopwatch()
        self._rest_until = now + REST_AFTER_FAILURE
        if isinstance(error, sqlite3.Error):
            self._disconnect()
            error = classify(self._path, error)
        if now < self._warn_after:
            return
        self._warn_after = now + WARN_EVERY
        reason = str(error) if isinstance(error, StoreError) else repr(error)
        log.warning(
            "[bdh-bridge] shared state can't be used: %s. Until then circuit breakers count as "
            "closed and new pauses are not seen",
            reason,
        )


def _breaker_row(connection: sqlite3.Connection, key: str) -> sqlite3.Row | None:
    row: sqlite3.Row | None = connection.execute(
        "SELECT * FROM breakers WHERE key = ?", (key,)
    ).fetchone()
    return row
