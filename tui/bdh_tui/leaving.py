"""Ends that nobody asked for by a key: signals, a terminal or a pipe that is gone.

The terminal gets back its own screen, cursor and echo; no program stays behind without one.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import threading
from collections.abc import Callable
from functools import partial

#: Seconds between two looks, and those that an application has for an orderly end.
_EVERY, _GRACE = 1.0, 3.0
_HANGUP = 128 + signal.SIGHUP


def on_signals(leave: Callable[[int], object]) -> None:
    """Call ``leave`` with the exit status on SIGTERM and SIGHUP. For the running loop's thread."""
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, partial(leave, 128 + number))


def interrupted_by_sigterm() -> None:
    """SIGTERM ends what runs in the main thread as Ctrl+C does: with everything put away."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


class Lifeline:
    """Watches a file descriptor of a terminal or a pipe for its other side to go away.

    ``gone`` is called once, in a thread. A program that can't end in order (the loop may hang in
    a write that nobody takes any more) is ended after that; ``last`` is called before.
    """

    def __init__(
        self, descriptor: int, gone: Callable[[], object], last: Callable[[], object] | None = None
    ) -> None:
        self._descriptor, self._gone, self._last = descriptor, gone, last
        self._ended = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._watch, name="bdh-tui-lifeline", daemon=True).start()

    def stop(self) -> None:
        """The program ends in order."""
        self._ended.set()

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._descriptor, 0)  # a hang-up is told without being asked for
        while not self._ended.is_set():
            seen = [what for _, what in poll.poll(int(_EVERY * 1_000))]
            if any(what & select.POLLNVAL for what in seen):
                return  # a system that can't watch terminals
            if any(what & (select.POLLHUP | select.POLLERR) for what in seen):
                break
        else:
            return
        self._gone()
        if not self._ended.wait(_GRACE):
            if self._last is not None:
                self._last()
            os._exit(_HANGUP)
