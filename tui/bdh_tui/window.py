"""The stretches of time that figures are counted over."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """The last ``seconds``."""

    title: str
    seconds: int

    def since_ns(self) -> int:
        return time.time_ns() - self.seconds * 1_000_000_000


WINDOWS = (
    Window("5 min", 300),
    Window("1 h", 3_600),
    Window("24 h", 86_400),
    Window("7 d", 604_800),
)
#: Parts of a window in a trend.
STEPS = 60
