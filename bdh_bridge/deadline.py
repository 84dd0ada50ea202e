"""Run a blocking call for at most so long, whatever it hangs in.

Socket timeouts are per operation: a resolver that hangs or a peer that sends a byte a second
outlives any of them. Here the call runs on a daemon thread and the caller stops waiting when
the time is up. The abandoned call ends by itself later (its own socket timeouts and
:meth:`Deadline.check` see to that); how many may be abandoned at once is bounded, so that a bad
peer can't fill the process with threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class DeadlineExceededError(Exception):
    """The time was up before the call came back, or too many earlier calls still hang."""


class Deadline:
    """A point in monotonic time that long calls look at between their steps."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    @property
    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._at - time.monotonic())

    def check(self) -> None:
        """Raises: DeadlineExceededError if the time is up."""
        if self.remaining <= 0:
            raise DeadlineExceededError("out of time")


class Call(Generic[T]):
    """A call that runs on its own thread; :meth:`result` waits for it within a deadline."""

    def __init__(self, function: Callable[[], T], on_done: Callable[[], None], name: str) -> None:
        self._function = function
        self._on_done = on_done
        self._finished = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None
        # Daemon: an abandoned call must not hold up the end of the process.
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._value = self._function()
        except BaseException as error:  # handed to the waiting thread
            self._error = error
        finally:
            self._on_done()
            self._finished.set()

    def result(self, deadline: Deadline) -> T:
        """The call's value.

        Raises: DeadlineExceededError, or what the call raised.
        """
        if not self._finished.wait(deadline.remaining):
            raise DeadlineExceededError("no answer in time")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class BoundedCalls:
    """Starts calls on threads of their own, at most ``limit`` unfinished at any time."""

    def __init__(self, name: str, limit: int = 16) -> None:
        self._name = name
        self._slots = threading.BoundedSemaphore(limit)

    def start(self, function: Callable[[], T], deadline: Deadline | None = None) -> Call[T]:
        """Start once there is room; without ``deadline``, at once or not at all.

        Raises: DeadlineExceededError if ``limit`` earlier calls are unfinished for too long.
        """
        wait = deadline.remaining if deadline else 0.0
        if not self._slots.acquire(timeout=wait):
            raise DeadlineExceededError("too many earlier calls are unfinished")
        try:
            return Call(function, self._slots.release, self._name)
        except BaseException:
            self._slots.release()
            raise

    def run(self, function: Callable[[], T], deadline: Deadline) -> T:
        """Start and wait in one go."""
        return self.start(function, deadline).result(deadline)
