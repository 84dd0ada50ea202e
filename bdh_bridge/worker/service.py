"""The worker: delivers, does its duties, and ends when nothing is left to do."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bdh_bridge import __version__
from bdh_bridge.outbox.queue import Queue
from bdh_bridge.outbox.store import Outbox
from bdh_bridge.outbox.upkeep import Upkeep
from bdh_bridge.settings import Loaded, Settings, load
from bdh_bridge.telemetry import describe_process
from bdh_bridge.worker.bell import Bell, ring
from bdh_bridge.worker.clock import ClockGuard
from bdh_bridge.worker.code import CodeStamp
from bdh_bridge.worker.courier import Courier
from bdh_bridge.worker.duties import Duties
from bdh_bridge.worker.housekeeping import duties_of
from bdh_bridge.worker.launch import bell_path
from bdh_bridge.worker.lock import WorkerLock
from bdh_bridge.worker.owner import owner_lives, owner_name
from bdh_bridge.worker.sessions import sessions_wait, synthesis_duties
from bdh_bridge.worker.trace import DeliveryTrace
from bdh_otel.database import CorruptFile, StoreError, StoreUnavailable
from bdh_otel.logs import IdFormatter, carry_ids
from bdh_otel.tracer import Tracer

log = logging.getLogger(__name__)

#: Seconds without work after which the worker ends.
LINGER = 30.0
#: Seconds that a request in flight gets after SIGTERM.
STOP_GRACE = 30.0
#: Longest pause after trouble with the outbox's file, in seconds.
LONGEST_TROUBLE = 60.0
#: Seconds beyond the write timeout after which a delivery counts as hung.
HANG_LIMIT = 120.0
LOG_BYTES = 512 * 1024


class Worker:
    """One home's worker. The caller holds ``lock``; :meth:`run` releases it.

    ``linger`` is in seconds. With ``once`` it does not wait for anything: it ends when nothing
    more can be done at the moment.
    """

    def __init__(
        self,
        loaded: Loaded,
        lock: WorkerLock,
        *,
        mode: str,
        linger: float = LINGER,
        once: bool = False,
    ) -> None:
        self._lock = lock
        self._mode = mode
        self._linger = linger
        self._once = once
        self._loaded = loaded
        self._settings = _LiveSettings(loaded)
        settings, paths = loaded.settings, loaded.paths
        self._outbox = Outbox(paths.outbox, spool=paths.outbox_spool)
        owner = owner_name()
        self._upkeep = Upkeep(
            self._outbox,
            owner=owner,
            is_alive=owner_lives,
            max_age=settings.outbox_max_age,
            claim_limit=settings.write_timeout * 2 + 60,
        )
        self._tracer = Tracer(
            paths.spans,
            describe_process(loaded, "worker"),
            content=settings.otel_content,
            max_rows=settings.otel_store_max_rows,
            max_bytes=settings.otel_store_max_bytes,
        )
        self._courier = Courier(
            Queue(self._outbox, owner=owner),
            self._upkeep,
            DeliveryTrace(self._tracer),
            self._settings,
        )
        self._bell = Bell(bell_path(loaded))
        self._duties = Duties(
            [
                *duties_of(loaded, self._upkeep, self._tracer, export=mode != "thread"),
                # By its path: a duty may outlive this worker and its open bell.
                *synthesis_duties(
                    loaded, self._outbox, self._tracer, lambda: ring(bell_path(loaded))
                ),
            ]
        )
        self._clock = ClockGuard()
        self._code = CodeStamp()
        self._stop = threading.Event()

    def stop(self) -> None:
        """Ask it to end after the request in flight."""
        if not self._stop.is_set():
            self._stop.set()
            timer = threading.Timer(STOP_GRACE, self._courier.abort)
            timer.daemon = True
            timer.start()
        self._bell.ring()

    def run(self) -> str:
        """Work until nothing is left, or :meth:`stop`; returns why it ended."""
        log.info("[bdh-bridge] worker %s started (%s)", __version__, self._mode)
        housekeeper = threading.Thread(
            target=self._keep_house, name="bdh-bridge-duties", daemon=True
        )
        housekeeper.start()
        try:
            reason = self._work()
        finally:
            self._stop.set()
            self._courier.close()
            self._tracer.shutdown()
            self._outbox.close()
            self._lock.release()
            self._bell.close()
        log.info("[bdh-bridge] worker ends: %s", reason)
        return reason

    def _work(self) -> str:
        last_busy, trouble = time.monotonic(), 0.0
        while not self._stop.is_set():
            if (reason := self._outdated()) is not None:
                return reason
            pause: float | None = None
            try:
                self._mind_the_clock()
                self._take_in_spool()
                before = self._courier.handled
                pause = self._courier.run(self._stop)
                busy = pause is not None or self._courier.handled > before
                trouble = 0.0
            except CorruptFile as error:
                self._replace(error)
                continue
            except StoreUnavailable as error:
                trouble = min(LONGEST_TROUBLE, trouble * 2 or 1.0)
                log.warning("[bdh-bridge] %s; next try in %.0f s", error, trouble)
                pause, busy = trouble, True
            except StoreError as error:  # not ours, too open, or too new: nothing to do but say so
                log.error("[bdh-bridge] %s", error)
                return "the outbox can't be used"
            if self._once and pause != 0.0:
                return "all that can be done now is done"
            now = time.monotonic()
            if busy or self._duties.unfinished:
                last_busy = now
            elif now - last_busy >= self._linger:
                if self._may_end():
                    return "nothing to do"
                last_busy = now
            left = self._linger - (now - last_busy)
            if self._bell.wait(max(0.0, left) if pause is None else pause):
                last_busy = time.monotonic()
        return "it was asked to"

    def _may_end(self) -> bool:
        """Release the lock and look again. A host that committed a row before the release found
        the lock taken and started nobody; one that committed later finds it free."""
        self._lock.release()
        try:
            work = self._outbox.has_work(self._settings().api_url, wait=1.0)
            if not work and not sessions_wait(self._loaded):
                return True
        except StoreError:
            return True
        # Work, but somebody else may be at it by now. The wait covers those who only probe.
        return not self._lock.acquire(wait=0.1, version=__version__, mode=self._mode)

    def _outdated(self) -> str | None:
        if self._code.changed():
            return "its code has changed"
        if not self._lock.still_ours():
            return "its lock file was replaced"
        with contextlib.suppress(StoreError):
            if not self._outbox.is_current_schema():
                return "a newer version has changed the outbox"
        return None

    def _take_in_spool(self) -> None:
        try:
            self._upkeep.take_in_spool()
        except StoreUnavailable as error:
            # A full disk must not keep back what is in the database already.
            log.warning("[bdh-bridge] spooled writes have to wait: %s", error)

    def _mind_the_clock(self) -> None:
        jump = self._clock.jump()
        if jump:
            log.warning("[bdh-bridge] the clock jumped by %+.0f s", jump)
            self._upkeep.shift_clock(jump)

    def _replace(self, error: CorruptFile) -> None:
        try:
            self._outbox.handle.replace_corrupt(error)
        except (StoreError, OSError) as problem:
            log.warning("[bdh-bridge] %s", problem)
            self._stop.wait(1.0)

    def _keep_house(self) -> None:
        while not self._stop.is_set():
            self._watch_over_delivery()
            self._stop.wait(min(5.0, max(0.2, self._duties.run_due())))

    def _watch_over_delivery(self) -> None:
        """A request that outlives every deadline (a name lookup that hangs) blocks the home: a
        fresh worker may do better. What was being sent is then in doubt, as after a kill."""
        since = self._courier.busy_since
        limit = self._settings().write_timeout + HANG_LIMIT
        if self._mode == "process" and since is not None and time.monotonic() - since > limit:
            log.error("[bdh-bridge] no progress for %.0f s: the worker ends itself", limit)
            logging.shutdown()
            os._exit(70)


class _LiveSettings:
    """The home's settings, read again when its ``.env`` changes."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._stamp = self._look()

    def __call__(self) -> Settings:
        stamp = self._look()
        if stamp != self._stamp:
            self._stamp = stamp
            self._loaded = load(self._loaded.paths.hermes_home)
            for warning in self._loaded.warnings:
                log.warning("[bdh-bridge] %s", warning)
        return self._loaded.settings

    def _look(self) -> tuple[int, int, int] | None:
        try:
            status = self._loaded.paths.env_file.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def run_process(home: Path, lock: WorkerLock) -> int:
    """The worker as a process of its own; ``lock`` is held."""
    loaded = load(home)
    _log_to_file(loaded.paths.directory / "worker.log")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        worker = Worker(loaded, lock, mode="process")
        with stopped_by_signals(worker):
            worker.run()
    except Exception:
        log.exception("[bdh-bridge] the worker failed")
        return 1
    return 0


def run_in_thread(loaded: Loaded) -> threading.Thread:
    """The worker as a daemon thread of the agent. What it was sending when the agent ends is in
    doubt, as after any sudden death."""

    def run() -> None:
        try:
            lock = WorkerLock(loaded.paths.worker_lock)
            if lock.acquire(wait=0.5, version=__version__, mode="thread"):
                Worker(loaded, lock, mode="thread").run()
        except Exception:
            log.warning("[bdh-bridge] the worker thread failed", exc_info=True)

    thread = threading.Thread(target=run, name="bdh-bridge-worker", daemon=True)
    thread.start()
    return thread


@contextlib.contextmanager
def stopped_by_signals(worker: Worker) -> Iterator[None]:
    """SIGTERM and SIGINT stop ``worker``. A thread waits for them: a handler would run in the
    midst of whatever the main thread does, also while it holds the locks that stopping takes."""
    signals = {signal.SIGTERM, signal.SIGINT}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)

    def wait() -> None:
        while True:
            signal.sigwait(signals)
            worker.stop()

    threading.Thread(target=wait, name="bdh-bridge-signals", daemon=True).start()
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _log_to_file(path: Path) -> None:
    handler = logging.handlers.RotatingFileHandler(
        path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8", delay=True
    )
    carry_ids("bdh_bridge", "bdh_otel")
    handler.setFormatter(IdFormatter("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
