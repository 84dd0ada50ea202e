"""Ctrl-C, SIGTERM and a closed terminal: where they end the demo, and where they have to wait.

For the main thread only, like all handling of signals in Python.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def interruptible() -> contextlib.AbstractContextManager[None]:
    """Inside, all three raise KeyboardInterrupt."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    return _handled_by(interrupt)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Inside, none of them is acted upon; afterwards KeyboardInterrupt makes up for it.

    A process that is just being started would be lost sight of otherwise.
    """
    received: list[int] = []
    with _handled_by(lambda number, _frame: received.append(number)):
        yield
    if received:
        raise KeyboardInterrupt


def ignored() -> contextlib.AbstractContextManager[None]:
    """Inside, they change nothing: for a clean-up that is bounded in time by itself."""
    return _handled_by(lambda _number, _frame: None)


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    # What is ignored already stays so: under nohup a closed terminal is meant to change nothing.
    numbers = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
