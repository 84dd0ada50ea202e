"""Making sure that a worker runs: called by the agent after every accepted write.

Costs a probe of the lock and a ring of the bell (some 30 microseconds) while a worker lives, and
one ``Popen`` (under half a millisecond) where none does.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from bdh_bridge.outbox.store import Outbox
from bdh_bridge.settings import Loaded, Settings
from bdh_bridge.worker import bell
from bdh_bridge.worker.environment import minimal_environment
from bdh_bridge.worker.lock import is_held
from bdh_bridge.worker.sessions import sessions_wait

log = logging.getLogger(__name__)

#: A worker just started has this many seconds to take its lock before another one is started.
START_GRACE = 1.0


class LaunchOutcome(StrEnum):
    STARTED = "started"
    ALREADY_RUNNING = "already_running"
    NOT_NEEDED = "not_needed"
    DISABLED = "disabled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Launch:
    outcome: LaunchOutcome
    detail: str = ""


def ensure_worker(loaded: Loaded) -> Launch:
    """Wake the home's worker, or start one if there is work. Never raises, never blocks."""
    try:
        launch = _ensure(loaded)
    except Exception as error:
        log.debug("[bdh-bridge] starting the worker failed", exc_info=True)
        launch = Launch(LaunchOutcome.FAILED, f"{type(error).__name__}: {error}")
    if launch.outcome is LaunchOutcome.FAILED:
        _warn_once(loaded, launch.detail)
    return launch


def bell_path(loaded: Loaded) -> Path:
    return loaded.paths.directory / "worker.bell"


def worker_command(home: Path, *extra: str) -> list[str]:
    """How a worker is started. By its file, since a cloned plugin can't be imported by name;
    ``-P`` keeps the file's folder from shadowing modules."""
    main = Path(__file__).with_name("main.py")
    return [sys.executable, "-P", str(main), "--home", str(home), *extra]


_lock = threading.Lock()
_started_at: dict[Path, float] = {}
_outboxes: dict[Path, Outbox] = {}
_warned: set[Path] = set()


def _ensure(loaded: Loaded) -> Launch:
    if loaded.settings.worker == "off":
        return Launch(LaunchOutcome.DISABLED, "BDH_WORKER=off; run: bdh-bridge outbox deliver")
    if is_held(loaded.paths.worker_lock):
        bell.ring(bell_path(loaded))
        return Launch(LaunchOutcome.ALREADY_RUNNING)
    if not _has_work(loaded):
        return Launch(LaunchOutcome.NOT_NEEDED)
    home, now = loaded.paths.hermes_home, time.monotonic()
    with _lock:
        if now - _started_at.get(home, -START_GRACE) < START_GRACE:
            return Launch(LaunchOutcome.ALREADY_RUNNING, "just started")
        _started_at[home] = now
    if loaded.settings.worker == "thread":
        return _start_thread(loaded)
    return start_process(loaded)


def start_process(loaded: Loaded) -> Launch:
    """Start a detached worker. Raises: OSError if the process can't be made."""
    if not sys.executable:
        return Launch(LaunchOutcome.FAILED, "this Python does not know its own executable")
    process = subprocess.Popen(
        worker_command(loaded.paths.hermes_home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env=minimal_environment(loaded.environment),
        start_new_session=True,
        close_fds=True,
    )
    # It forks at once and ends: somebody has to take note, else it stays a zombie of the host.
    threading.Thread(target=process.wait, name="bdh-bridge-reaper", daemon=True).start()
    return Launch(LaunchOutcome.STARTED, f"pid {process.pid}")


def _start_thread(loaded: Loaded) -> Launch:
    from bdh_bridge.worker.service import run_in_thread

    run_in_thread(loaded)
    return Launch(LaunchOutcome.STARTED, "thread")


def _has_work(loaded: Loaded) -> bool:
    """Whether a worker would find something; "yes" where that can't be told quickly."""
    settings = loaded.settings
    if settings.worker == "process" and _exports(settings):
        return True
    if sessions_wait(loaded):
        return True
    paths = loaded.paths
    if not paths.outbox.exists():
        return paths.outbox_spool.exists()
    with _lock:
        outbox = _outboxes.setdefault(paths.outbox, Outbox(paths.outbox, spool=paths.outbox_spool))
    try:
        return outbox.has_work(settings.api_url)
    except Exception:
        return True


def _exports(settings: Settings) -> bool:
    """Whether spans are to be sent somewhere, which is the business of a worker process."""
    return not settings.otel_sdk_disabled and bool(
        settings.otel_endpoint or settings.otel_traces_endpoint or settings.otel_endpoints
    )


def _warn_once(loaded: Loaded, detail: str) -> None:
    with _lock:
        if loaded.paths.hermes_home in _warned:
            return
        _warned.add(loaded.paths.hermes_home)
    log.warning(
        "[bdh-bridge] the worker can't be started (%s); accepted writes stay in the outbox until "
        "you run: bdh-bridge outbox deliver",
        detail,
    )
