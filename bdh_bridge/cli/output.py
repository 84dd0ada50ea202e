"""Colours on a terminal only, and a line that says what takes its time."""

from __future__ import annotations

import os
import sys
from types import TracebackType

_COLOURS = {"good": "\x1b[32m", "skip": "\x1b[33m", "bad": "\x1b[31m", "dim": "\x1b[2m"}
_RESET = "\x1b[0m"


def paint(style: str, text: str) -> str:
    """``text`` in the colour of ``style`` if standard output shows colours."""
    from bdh_otel.tree import colours_wanted

    return f"{_COLOURS[style]}{text}{_RESET}" if colours_wanted(sys.stdout) else text


class Progress:
    """What is being done, on one line of standard error that goes away; silent elsewhere.

    >>> with Progress() as progress:
    ...     progress("graph", 3, 13)
    """

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def __enter__(self) -> Progress:
        return self

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._terminal:
            width = 20
            filled = width * done // max(total, 1)
            bar = "━" * filled + "╌" * (width - filled)
            self._write(f"{bar} {what} …")

    def clear(self) -> None:
        if self._terminal:
            self._write("")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()

    def _write(self, text: str) -> None:
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
