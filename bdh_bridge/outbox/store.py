"""The agent's side of the outbox: a write is accepted when it is on disk, and not before."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from bdh_bridge.outbox.handle import Handle
from bdh_bridge.outbox.schema import SCHEMA, WRITES
from bdh_bridge.outbox.spool import NewWrite, Spool, SpooledWrite
from bdh_bridge.outbox.states import State
from bdh_otel.database import CorruptFile, StoreError, transaction
from bdh_otel.state_table import storable

__all__ = ["Accepted", "NewWrite", "Outbox", "OutboxStats", "Refused", "Spooled", "State"]

log = logging.getLogger(__name__)

#: How long the agent may wait for a lock, in seconds.
ACCEPT_WAIT = 0.25
DEFAULT_MAX_ROWS = 10_000
DEFAULT_MAX_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Accepted:
    """On disk, in the database."""

    id: str


@dataclass(frozen=True, slots=True)
class Spooled:
    """On disk, in a file that the worker takes in; ``detail`` says why."""

    id: str
    detail: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Not kept. ``reason`` is ``too_many_rows``, ``too_many_bytes``, ``unavailable`` or
    ``internal``."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class OutboxStats:
    """``oldest_pending_age`` is in seconds; ``bytes`` counts the bodies that are still kept."""

    by_state: dict[State, int]
    oldest_pending_age: float | None
    open_rows: int
    bytes: int
    spooled: int


class Outbox:
    """The outbox of one Hermes home. Thread-safe; opens its file at first use."""

    def __init__(
        self,
        path: Path,
        *,
        spool: Path,
        max_rows: int = DEFAULT_MAX_ROWS,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        self.path = path
        self.handle = Handle(path)
        self.spool = Spool(spool)
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self._warned: set[str] = set()
        self._warned_lock = threading.Lock()

    def accept(self, write: NewWrite, *, write_id: str = "") -> Accepted | Spooled | Refused:
        """Keep ``write``. Never raises; waits for locks no longer than :data:`ACCEPT_WAIT`.

        A ``write_id`` (a UUID) that the outbox has seen is accepted without a second row.
        """
        try:
            result = self._accept(write, write_id or str(uuid.uuid4()))
        except Exception as error:
            log.debug("[bdh-bridge] accepting a write failed", exc_info=True)
            result = Refused("internal", f"{type(error).__name__} while keeping the write")
        self._warn(result)
        return result

    def stats(self, *, wait: float = 1.0) -> OutboxStats:
        """Raises: :class:`~bdh_otel.database.StoreError`."""
        now = time.time()
        with self.handle.use(wait) as connection:
            counts = WRITES.counts(connection)
            by_state = {State(state): count for state, count in counts.items()}
            oldest = connection.execute(
                "SELECT min(accepted_at) FROM writes WHERE state = 'pending'"
            ).fetchone()[0]
            open_rows, body_bytes = _totals(connection)
        age = None if oldest is None else max(0.0, now - oldest)
        return OutboxStats(by_state, age, open_rows, body_bytes, self.spool.usage()[0])

    def has_work(self, destination: str, *, wait: float = 0.02) -> bool:
        """Whether the worker has something to do for ``destination``.

        Raises: :class:`~bdh_otel.database.StoreError`.
        """
        if self.spool.usage()[0]:
            return True
        with self.handle.use(wait) as connection:
            found = connection.execute(
                "SELECT 1 FROM writes WHERE open = 1 AND destination = ? LIMIT 1", (destination,)
            ).fetchone()
        return found is not None

    def is_current_schema(self, *, wait: float = 1.0) -> bool:
        """False once a newer version of the project has migrated the file.

        Raises: :class:`~bdh_otel.database.StoreError`.
        """
        with self.handle.use(wait) as connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
        return int(version) == len(SCHEMA.migrations)

    def close(self) -> None:
        self.handle.close()

    def _accept(self, write: NewWrite, write_id: str) -> Accepted | Spooled | Refused:
        spooled = SpooledWrite(write_id, time.time(), _clean(write))
        try:
            try:
                return self._insert(spooled)
            except CorruptFile as error:
                self.handle.replace_corrupt(error)
                return self._insert(spooled)
        except (StoreError, OSError) as error:
            return self._put_aside(spooled, str(error))

    def _insert(self, spooled: SpooledWrite) -> Accepted | Refused:
        with self.handle.use(ACCEPT_WAIT) as connection, transaction(connection):
            open_rows, body_bytes = _totals(connection)
            refused = self._over_bounds(open_rows, body_bytes)
            if refused is None:
                insert(connection, spooled)
        return refused or Accepted(spooled.id)

    def _put_aside(self, spooled: SpooledWrite, why: str) -> Spooled | Refused:
        refused = self._over_bounds(*self.spool.usage())
        if refused is not None:
            return refused
        try:
            self.spool.put(spooled)
        except OSError as error:
            return Refused("unavailable", f"{why}; nor can {self.spool.directory} be used: {error}")
        return Spooled(spooled.id, why)

    def _over_bounds(self, rows: int, body_bytes: int) -> Refused | None:
        look = "see: bdh-bridge outbox list"
        if rows >= self.max_rows:
            return Refused("too_many_rows", f"{rows} writes wait (BDH_OUTBOX_MAX_ROWS); {look}")
        if body_bytes >= self.max_bytes:
            return Refused("too_many_bytes", f"the outbox holds {body_bytes} bytes; {look}")
        return None

    def _warn(self, result: Accepted | Spooled | Refused) -> None:
        """One warning for each kind of trouble, again only after it had gone away."""
        with self._warned_lock:
            if isinstance(result, Accepted):
                self._warned.clear()
                return
            kind = result.reason if isinstance(result, Refused) else "spooled"
            if kind in self._warned:
                return
            self._warned.add(kind)
        if isinstance(result, Refused):
            log.warning("[bdh-bridge] a write was not kept: %s", result.detail)
        else:
            log.warning("[bdh-bridge] a write waits in a spool file: %s", result.detail)


def insert(connection: sqlite3.Connection, spooled: SpooledWrite) -> bool:
    """Add the row, once for an id; False if it was there. Runs in the caller's transaction."""
    write = spooled.write
    cursor = connection.execute(
        """INSERT OR IGNORE INTO writes (id, state, destination, vault_id, source, query,
               user_prompt, body_bytes, traceparent, session_id, turn_id, platform, model,
               created_at, accepted_at, updated_at)
           VALUES (?, 'pending', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            spooled.id,
            write.destination,
            write.vault_id,
            write.source,
            write.query,
            write.user_prompt,
            len(write.query.encode()) + len(write.user_prompt.encode()),
            write.traceparent,
            write.session_id,
            write.turn_id,
            write.platform,
            write.model,
            write.created_ns / 1e9,
            spooled.accepted_at,
            spooled.accepted_at,
        ),
    )
    connection.execute(
        "INSERT OR IGNORE INTO lanes (destination, vault_id) VALUES (?, ?)",
        (write.destination, write.vault_id),
    )
    return cursor.rowcount == 1


def _totals(connection: sqlite3.Connection) -> tuple[int, int]:
    open_rows, body_bytes = connection.execute(
        "SELECT open_rows, body_bytes FROM totals"
    ).fetchone()
    return int(open_rows), int(body_bytes)


def _clean(write: NewWrite) -> NewWrite:
    """Lone surrogates can be neither stored nor sent; and a time is always known."""
    texts = {
        name: storable(value)
        for name in NewWrite.__dataclass_fields__
        if isinstance(value := getattr(write, name), str)
    }
    return replace(write, **texts, created_ns=write.created_ns or time.time_ns())
