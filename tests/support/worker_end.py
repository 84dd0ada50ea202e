"""Ending a home's worker process after a test."""

from __future__ import annotations

import contextlib
import os
import signal

from bdh_bridge.paths import BridgePaths
from bdh_bridge.worker.lock import is_held, read_holder
from tests.support.waiting import eventually


def end_worker(paths: BridgePaths) -> None:
    """Kill it, and whoever takes over."""

    def ended() -> bool:
        if not is_held(paths.worker_lock):
            return True
        holder = read_holder(paths.worker_lock)
        pid = holder.pid if holder else None  # None: it is dead, and another one takes over
        if pid is not None and pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not is_held(paths.worker_lock)

    eventually(ended)
