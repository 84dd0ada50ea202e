"""One thread that owns the inbox's SQLite connection.

SQLite calls block, so they leave the event loop; and what was handed to the thread can't be
taken back. Every operation therefore settles before a cancellation is passed on: whoever was
cancelled knows that nothing of his is still under way.

A file that was moved or removed behind the connection's back would go on taking receipts that
nobody ever reads; the actor notices and opens the path anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from bdh_otel import database

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


class ActorClosed(Exception):
    """The actor was closed, or its opening was cancelled."""


class SqliteActor:
    """``open`` once, ``run`` many times, ``close`` as often as you like."""

    def __init__(self, path: Path, schema: database.Schema, *, busy_timeout: float = 5.0) -> None:
        self._path = path
        self._schema = schema
        self._busy_timeout = busy_timeout
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="borgee-inbox")
        self._connection: sqlite3.Connection | None = None
        self._closing: asyncio.Task[None] | None = None
        self._usable = True
        self._file: tuple[int, int] | None = None
        self.generation = 0
        """How often the file was opened: what is remembered of an earlier one is void."""

    @property
    def is_open(self) -> bool:
        return self._connection is not None and self._usable

    async def open(self) -> None:
        """Open and migrate the file.

        If this is cancelled, the connection is closed again and the actor can't be used any
        more. Raises: database.StoreError; ActorClosed.
        """
        if not self._usable or self._connection is not None:
            raise ActorClosed("the inbox was opened before")
        try:
            await self._settle(self._open)
        except BaseException:
            await self.close()
            raise

    async def run(
        self,
        operation: Callable[Concatenate[sqlite3.Connection, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """``operation(connection, …)`` on the actor's thread, in the order of the calls.

        Raises: what the operation raises, SQLite's errors as database.StoreError; ActorClosed.
        """
        if not self._usable or self.generation == 0:
            raise ActorClosed("the inbox is closed")
        try:
            return await self._settle(lambda: self._on_file(operation, *args, **kwargs))
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            raise database.classify(self._path, error) from error

    async def close(self) -> None:
        """Wait for what was submitted, close the connection, end the thread. Idempotent."""
        if self._closing is None:
            self._usable = False
            self._closing = asyncio.create_task(self._close(), name="borgee-inbox-close")
        closing = self._closing
        cancelled: asyncio.CancelledError | None = None
        while not closing.done():
            try:
                await asyncio.wait({closing})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled
        closing.result()

    def _open(self) -> None:
        # Stored here, on the thread, so that a close that is already queued finds it.
        self._connection = database.connect(
            self._path, self._schema, busy_timeout=self._busy_timeout
        )
        self._file = _identity(self._path)
        self.generation += 1

    def _on_file(
        self,
        operation: Callable[Concatenate[sqlite3.Connection, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        if self._connection is None or _identity(self._path) != self._file:
            self._close_connection()
            self._open()
            log.error("[bdh-bridge] %s was moved or removed; a new one was started", self._path)
        assert self._connection is not None
        return operation(self._connection, *args, **kwargs)

    async def _close(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._close_connection)
        # The thread has nothing left to do: this ends at once.
        self._executor.shutdown(wait=True)

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    async def _settle(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run on the thread; rethrow a cancellation only once the thread has finished."""
        try:
            submitted = self._executor.submit(function, *args, **kwargs)
        except RuntimeError as error:
            raise ActorClosed("the inbox is closed") from error
        future = asyncio.wrap_future(submitted)
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                # wait() leaves the future alone when the caller is cancelled.
                await asyncio.wait({future})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            future.exception()  # seen: its outcome is not reported a second time
            raise cancelled
        return future.result()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
