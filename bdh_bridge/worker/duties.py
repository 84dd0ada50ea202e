"""What a worker does beside delivering, each at its own pace."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Duty:
    """``run`` does one round and returns True while it has more to do that a worker should stay
    for (unexported spans), whether or not it can be done now. ``interval`` is in seconds."""

    name: str
    interval: float
    run: Callable[[], bool]


class Duties:
    """Runs what is due, one after the other. A duty that fails is logged and tried again."""

    def __init__(
        self, duties: Iterable[Duty], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._duties = tuple(duties)
        self._clock = clock
        self._due = {duty.name: 0.0 for duty in self._duties}
        self._unfinished: set[str] = set()

    @property
    def unfinished(self) -> bool:
        return bool(self._unfinished)

    def run_due(self) -> float:
        """One round; returns the seconds until the next duty is due."""
        for duty in self._duties:
            if self._due[duty.name] > self._clock():
                continue
            try:
                more = duty.run()
            except Exception:
                log.exception("[bdh-bridge] the worker's duty %s failed", duty.name)
                more = False
            (self._unfinished.add if more else self._unfinished.discard)(duty.name)
            self._due[duty.name] = self._clock() + duty.interval
        return max(0.0, min(self._due.values(), default=60.0) - self._clock())
