"""The way from the agent's threads into the store: a bounded queue and one lazy thread.

Nothing here may hold up or break its host: spans wait in memory, a daemon thread commits them
in batches, what doesn't fit is dropped and counted. The count is stored with the process's row
as soon as the store can be written again, so that a gap in the record is itself on record.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from bdh_otel import database
from bdh_otel.retention import Bounds, prune_if_far_over
from bdh_otel.store import Row, SpanStore

log = logging.getLogger(__name__)

QUEUE_LIMIT = 4_096
BATCH = 1_000
INTERVAL = 0.2
#: Rows after which the thread moves the log into the database, so that no `flush` has to.
_CHECKPOINT_ROWS = 2_000
_MAX_BACKOFF = 30.0


class Recordable(Protocol):
    provisional: bool

    def row(self) -> Row: ...


class SpanWriter:
    """Commits spans to the store at ``path``. All methods are safe from any thread.

    ``register`` notes the process in a newly opened store and returns the id of its row.
    """

    def __init__(self, path: Path, register: Callable[[SpanStore], int], bounds: Bounds) -> None:
        self._path = path
        self._register = register
        self._bounds = bounds
        self._leaked: list[SpanStore] = []
        self._warned: set[str] = set()
        self._start_anew()
        _writers.add(self)

    def _start_anew(self) -> None:
        self._queue: deque[Recordable] = deque()
        self._dropped = 0
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._store: SpanStore | None = None
        self._resource = 0
        self._failures = 0
        self._retry_at = 0.0
        self._busy_until = 0.0
        self._since_checkpoint = 0
        self._inode: int | None = None
        self._damage: database.CorruptFile | None = None

    @property
    def dropped(self) -> int:
        """Spans lost and not yet on record in the store."""
        return self._dropped

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def add(self, span: Recordable) -> None:
        """Queue ``span``; never blocks, never raises."""
        if len(self._queue) >= QUEUE_LIMIT:
            self._dropped += 1
            return
        self._queue.append(span)
        if self._thread is None:
            self._start_thread()
        if not self._wake.is_set():
            self._wake.set()

    def flush(self, timeout: float) -> bool:
        """Commit what is queued, from the calling thread; False if that took too long."""
        deadline = time.monotonic() + timeout
        if not self._queue and not self._dropped and not self._lock.locked():
            return True
        # A lock that was held a moment ago is not waited for again: turns must not add up to it.
        if time.monotonic() < self._busy_until or not self._lock.acquire(timeout=max(0.0, timeout)):
            return False
        try:
            done = True
            # What others queue meanwhile is theirs to wait for. A batch that could not be stored
            # went back, so there may be more than the limit; one with a span that SQLite refuses
            # takes two rounds.
            for _ in range(2 * (len(self._queue) // BATCH + 1)):
                if not (self._queue or self._dropped):
                    break
                done = self._commit(max(0.0, deadline - time.monotonic()))
                if not done:
                    break
            return done
        finally:
            self._lock.release()

    def shutdown(self, timeout: float = 1.0) -> bool:
        """Flush, end the thread, close the store. The writer may be used again."""
        done = self.flush(timeout)
        thread, self._thread = self._thread, None
        self._stop.set()
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
        if self._lock.acquire(timeout=timeout):
            try:
                self._close()
            finally:
                self._lock.release()
        self._stop = threading.Event()
        self._wake.clear()
        return done

    # The thread

    def _start_thread(self) -> None:
        with self._starting:
            if self._thread is not None:
                return
            thread = threading.Thread(
                target=self._run, args=(self._stop,), name="bdh-spans", daemon=True
            )
            # The interpreter may be shutting down, or have too many threads: flush() is left.
            with contextlib.suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._wake.wait()
            if stop.wait(INTERVAL):
                return
            self._wake.clear()
            wait = max(0.0, self._retry_at - time.monotonic())
            if wait and stop.wait(wait):
                return
            with self._lock:
                self._repair()
                while self._queue or self._dropped:
                    if not self._commit(1.0):
                        break
                else:
                    self._housekeeping()
            if self._queue:
                self._wake.set()

    def _housekeeping(self) -> None:
        if self._store is None or self._since_checkpoint < _CHECKPOINT_ROWS:
            return
        self._since_checkpoint = 0
        try:
            self._store.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            prune_if_far_over(self._store, self._bounds)
        except sqlite3.Error as error:
            self._failed(database.classify(self._path, error))

    def _repair(self) -> None:
        """Put a damaged file aside, unless another process has done so already."""
        error, self._damage = self._damage, None
        if error is None:
            return
        try:
            moved = set_aside_once(self._path, self._inode)
        except OSError as failure:
            self._warn(f"{error} (it can't be set aside: {failure})")
            return
        self._failures, self._retry_at = 0, 0.0
        if moved is not None:
            self._warn(
                f"{self._path} was damaged ({error.reason}); it is kept as {moved.name}, "
                "and a new one was started"
            )

    # Committing; the lock is held

    def _commit(self, wait: float) -> bool:
        """One batch, waiting at most ``wait`` seconds for other processes; never raises."""
        try:
            store = self._open(wait)
            if store is None:
                return False
            store.wait_at_most(wait)
            batch: list[Recordable] = []
            with contextlib.suppress(IndexError):
                while len(batch) < BATCH:
                    batch.append(self._queue.popleft())
            return self._insert(store, batch)
        except sqlite3.Error as error:
            self._failed(database.classify(self._path, error))
        except database.StoreError as error:
            self._failed(error)
        except Exception as error:
            self._warn(f"spans can't be stored ({type(error).__name__}: {error})")
            self._back_off()
        return False

    def _insert(self, store: SpanStore, batch: list[Recordable]) -> bool:
        dropped = self._dropped
        try:
            rows: dict[str, Row] = {}
            reopened: set[tuple[str, str]] = set()
            for span in batch:
                row = span.row()
                # A short turn's open row and its end may wait in one batch: the end counts.
                if row.span_id not in rows or rows[row.span_id].end_ns is None:
                    rows[row.span_id] = row
                if span.provisional:
                    reopened.add((row.trace_id, row.span_id))
            for _ in range(2):
                if store.insert(rows.values(), self._resource, reopened=reopened, dropped=dropped):
                    break
                self._resource = self._register(store)
        except Exception:
            kept = [span for span in batch if _storable(span)]
            self._queue.extendleft(reversed(kept))
            self._dropped += len(batch) - len(kept)
            if len(kept) == len(batch):
                raise
            self._warn("a span that can't be stored was dropped")
            return True  # the rest is in the queue, for the next batch
        self._dropped -= dropped
        self._failures = 0
        self._warned.clear()
        self._since_checkpoint += len(batch)
        return True

    def _open(self, wait: float) -> SpanStore | None:
        if self._store is not None:
            if self._store.is_current():
                return self._store
            self._close()
        elif self._damage is not None or time.monotonic() < self._retry_at:
            return None
        self._inode = _inode(self._path)
        store = SpanStore(self._path, busy_timeout=wait)
        try:
            # Moving the log is the thread's work; this is for processes that only flush.
            store.connection.execute("PRAGMA wal_autocheckpoint=8000")
            self._resource = self._register(store)
        except BaseException:
            store.close()
            raise
        self._store = store
        self._inode = _inode(self._path)
        return store

    def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(sqlite3.Error):
                store.close()

    def _failed(self, error: database.StoreError) -> None:
        busy = isinstance(error, database.StoreUnavailable) and (
            "locked" in error.reason or "busy" in error.reason
        )
        if busy:  # somebody else writes: the thread's next round will do
            self._busy_until = time.monotonic() + 1.0
            return
        self._close()
        if isinstance(error, database.CorruptFile):
            self._damage = error  # moving files is the thread's work
            self._wake.set()
        else:
            self._warn(f"spans wait in memory: {error}")
        self._back_off()

    def _back_off(self) -> None:
        self._failures += 1
        self._retry_at = time.monotonic() + min(_MAX_BACKOFF, 0.2 * 2 ** min(self._failures, 10))

    def _warn(self, text: str) -> None:
        if text not in self._warned and len(self._warned) < 10:
            self._warned.add(text)
            log.warning("[bdh-bridge] %s", text)

    def after_fork(self) -> None:
        """In the child: the parent's queue, locks, thread and connection are not ours.

        The connection is not closed either: closing a file drops the parent's locks on it.
        """
        if self._store is not None:
            self._leaked.append(self._store)
        self._start_anew()


def _storable(span: Recordable) -> bool:
    """Whether SQLite takes the span's values: one that it doesn't must not hold up the rest."""
    try:
        with contextlib.closing(sqlite3.connect(":memory:")) as memory:
            row = span.row()
            memory.execute(f"SELECT {', '.join('?' * len(row))}", row).fetchone()
    except Exception:
        return False
    return True


def set_aside_once(path: Path, inode: int | None) -> Path | None:
    """Move the damaged store away; None if another process has done so, and a new one is there.

    ``inode`` is that of the file found damaged. Raises :class:`OSError`.
    """
    lock = os.open(path.with_name(f"{path.name}.repair"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return database.set_aside(path) if inode == _inode(path) is not None else None
    finally:
        os.close(lock)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


_writers: weakref.WeakSet[SpanWriter] = weakref.WeakSet()


def _after_fork() -> None:
    for writer in list(_writers):
        writer.after_fork()


def _at_exit() -> None:
    for writer in list(_writers):
        writer.shutdown(0.5)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
