"""Waiting for a condition, not for a time."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds after which a condition is taken to be never true; generous, for busy machines.
DEADLINE = 60.0


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "the condition never came true"
        time.sleep(0.02)
