"""Which bridge a call of the host belongs to: every Hermes home has its own.

A gateway may serve several profiles in one process and tells only by a context variable whose
turn it is. Each profile has its own graph, token, stores and rules, and none of them may meet
another's. A forked child gets bridges of its own, too: connections, locks and threads of its
parent are not its to use.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bdh_bridge.bridge import Bridge
from bdh_bridge.tools import no_bridge

#: Bridges that were inherited through a fork; dropping them would close the parent's files.
_inherited: list[Bridge | None] = []


class Homes:
    """The bridges of this process, opened when their home is first met.

    ``current`` gives the home of the running turn. ``make`` opens the bridge of a home, or gives
    None for one that is not to be served; both may raise.
    """

    def __init__(self, make: Callable[[Path], Bridge | None], current: Callable[[], Path]) -> None:
        self._make = make
        self._current = current
        self._start_anew()

    def _start_anew(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._bridges: dict[Path, Bridge | None] = {}

    def bridge(self) -> Bridge | None:
        """The bridge of the home whose turn it is, None where it has none."""
        return self.of(self._current())

    def of(self, home: Path) -> Bridge | None:
        if self._pid != os.getpid():
            _inherited.extend(self._bridges.values())
            self._start_anew()
        if home in self._bridges:
            return self._bridges[home]
        with self._lock:
            # Two names of one folder are one home.
            same = next((known for known in self._bridges if _same(known, home)), None)
            self._bridges[home] = self._make(home) if same is None else self._bridges[same]
            return self._bridges[home]

    def take_over(self, previous: Homes) -> None:
        """The host registers anew: turns that are under way go on here."""
        for home, old in previous._bridges.items():
            if old is None:
                continue
            new = self.of(home)
            if new is not None:
                new.turns.take_over(old.turns)
            old.retire()

    def close(self) -> None:
        for bridge in self._bridges.values():
            if bridge is not None:
                bridge.close()

    # Tool handlers

    def bdh_query(self, args: Any, **kwargs: Any) -> str:
        bridge = self.bridge()
        return bridge.tools.bdh_query(args, **kwargs) if bridge else no_bridge()

    def bdh_stats(self, args: Any, **kwargs: Any) -> str:
        bridge = self.bridge()
        return bridge.tools.bdh_stats(args, **kwargs) if bridge else no_bridge()


def _same(one: Path, other: Path) -> bool:
    return one == other or one.resolve() == other.resolve()
