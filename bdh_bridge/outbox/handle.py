"""One kept connection to a file like the outbox, for all threads of a process.

It notices what long-lived processes meet: a fork, and a file that was replaced or removed
behind its back (a connection to an unlinked file would take rows that nobody ever reads).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bdh_bridge.outbox.schema import SCHEMA
from bdh_otel.database import (
    CorruptFile,
    Schema,
    StoreUnavailable,
    classify,
    connect,
    set_aside,
)

log = logging.getLogger(__name__)

#: Connections inherited through a fork: closing them here could disturb the parent's.
_inherited: list[sqlite3.Connection] = []


class Handle:
    """``content`` names in the log what a damaged file still holds."""

    def __init__(
        self,
        path: Path,
        schema: Schema = SCHEMA,
        *,
        content: str = "Writes that were still waiting",
    ) -> None:
        self.path = path
        self._schema = schema
        self._content = content
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def use(self, wait: float) -> Iterator[sqlite3.Connection]:
        """The connection, for this thread alone. ``wait``: seconds for locks, in all.

        Raises: a :class:`~bdh_otel.database.StoreError`, also for SQLite errors inside the block.
        """
        deadline = time.monotonic() + wait
        with self._alone(wait):
            try:
                connection = self._open(wait)
                left = max(1, round((deadline - time.monotonic()) * 1000))
                connection.execute(f"PRAGMA busy_timeout={left}")
                yield connection
            except sqlite3.Error as error:
                raise classify(self.path, error) from error

    def close(self) -> None:
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None

    def replace_corrupt(self, error: CorruptFile) -> None:
        """Move the damaged file away, once, however many processes have seen the damage.

        Raises: OSError if it can't be moved, :class:`StoreUnavailable` if another process is at it.
        """
        with self._alone(1.0), _exclusive(self.path.with_name(self.path.name + ".repair")):
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            # A different file by now: another process has moved the damaged one already.
            if _inode(self.path) == self._inode:
                target = set_aside(self.path)
                log.warning(
                    "[bdh-bridge] %s was damaged (%s): kept as %s, a new one was started. %s in it "
                    "can be read with: sqlite3 '%s' .recover",
                    self.path,
                    error.reason,
                    target.name,
                    self._content,
                    target,
                )

    @contextlib.contextmanager
    def _alone(self, wait: float) -> Iterator[None]:
        self._leave_parent()
        if not self._lock.acquire(timeout=wait):
            raise StoreUnavailable(self.path, "busy in this process", "it will be tried again")
        try:
            yield
        finally:
            self._lock.release()

    def _open(self, wait: float) -> sqlite3.Connection:
        inode = _inode(self.path)
        if self._connection is not None and inode == self._inode and inode is not None:
            return self._connection
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._inode = inode
        self._connection = connect(self.path, self._schema, busy_timeout=wait)
        self._inode = _inode(self.path)
        return self._connection

    def _leave_parent(self) -> None:
        if self._pid != os.getpid():
            # The lock may have been held by a thread that the fork did not copy.
            self._lock = threading.Lock()
            if self._connection is not None:
                _inherited.append(self._connection)
            self._connection, self._pid = None, os.getpid()


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        for attempt in range(25):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt == 24:
                    raise StoreUnavailable(
                        path, "another process repairs it", "it will be tried again"
                    ) from None
                time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)
