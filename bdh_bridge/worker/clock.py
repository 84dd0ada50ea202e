"""Notices when the machine's clock is set, so that what waits keeps its age."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Smaller corrections don't matter to anything here.
TOLERANCE = 30.0


def elapsed() -> float:
    """Seconds that no setting of the clock touches, the machine's sleep included where the
    system can tell (Linux); a sleep elsewhere looks like a jump, which only postpones."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class ClockGuard:
    def __init__(
        self, now: Callable[[], float] = time.time, elapsed: Callable[[], float] = elapsed
    ) -> None:
        self._now, self._elapsed = now, elapsed
        self._offset = now() - elapsed()

    def jump(self) -> float:
        """Seconds by which wall time has jumped since the last call; 0.0 within the tolerance."""
        offset = self._now() - self._elapsed()
        jump = offset - self._offset
        if abs(jump) < TOLERANCE:
            return 0.0
        self._offset = offset
        return jump
