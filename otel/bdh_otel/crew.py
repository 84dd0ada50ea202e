"""Background threads, one at most for each name: nobody is waited for longer than one wants."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Crew:
    """Not for use by two threads at once."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._threads: dict[str, threading.Thread] = {}

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Run ``work``, which must not raise, unless ``name`` is still at its last one."""
        if self.busy(name):
            return
        thread = threading.Thread(target=work, name=self._what, daemon=True)
        thread.start()
        self._threads[name] = thread

    def busy(self, name: str | None = None) -> bool:
        """Whether ``name``, or anybody, is still at work."""
        if name is not None:
            thread = self._threads.get(name)
            return thread is not None and thread.is_alive()
        return any(thread.is_alive() for thread in self._threads.values())

    def wait(self, deadline: float) -> None:
        """Until all are done, or ``deadline`` (``time.monotonic()``) has passed."""
        for thread in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))
