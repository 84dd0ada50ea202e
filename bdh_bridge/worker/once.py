"""Delivering by hand: ``bdh-bridge outbox deliver``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from bdh_bridge import __version__
from bdh_bridge.outbox.review import Review
from bdh_bridge.outbox.store import Outbox
from bdh_bridge.settings import Loaded
from bdh_bridge.worker import bell
from bdh_bridge.worker.launch import bell_path, ensure_worker
from bdh_bridge.worker.lock import WorkerLock
from bdh_otel.database import StoreError, make_private_directory

#: Seconds without progress after which a worker's delivery is no longer waited for.
PATIENCE = 45.0


def deliver_now(loaded: Loaded, progress: Callable[[int], None] | None = None) -> bool:
    """Deliver what waits, without regard to backoff; True if nothing is left that could be.

    If a worker runs, it is woken and waited for; else this process takes its place. ``progress``
    is told now and then how many writes wait. Raises: CommandError with what went wrong.
    """
    from bdh_bridge.cli import CommandError

    paths = loaded.paths
    outbox = Outbox(paths.outbox, spool=paths.outbox_spool)
    if not paths.outbox.exists() and not outbox.spool.usage()[0]:
        return True
    make_private_directory(paths.directory)
    lock = WorkerLock(paths.worker_lock)
    try:
        Review(outbox).hurry(loaded.settings.api_url)
        if lock.acquire(wait=0.2, version=__version__, mode="command"):
            return _deliver_here(loaded, lock, outbox, progress)
        bell.ring(bell_path(loaded))
        return _watch(loaded, outbox, progress)
    except StoreError as error:
        raise CommandError(str(error)) from error
    finally:
        outbox.close()


def _deliver_here(
    loaded: Loaded, lock: WorkerLock, outbox: Outbox, progress: Callable[[int], None] | None
) -> bool:
    from bdh_bridge.worker.service import Worker, stopped_by_signals

    worker = Worker(loaded, lock, mode="command", linger=0.0, once=True)
    done = threading.Event()

    def tell() -> None:
        while progress is not None and not done.wait(0.3):
            progress(_waiting(loaded, outbox))

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        with stopped_by_signals(worker):
            worker.run()
    finally:
        done.set()
        teller.join(2.0)
    left = outbox.has_work(loaded.settings.api_url, wait=5.0)
    if left:
        # What waits for its server, and what came in while we held the lock, is a worker's again.
        ensure_worker(loaded)
    return not left


def _watch(loaded: Loaded, outbox: Outbox, progress: Callable[[int], None] | None) -> bool:
    last, since = _waiting(loaded, outbox), time.monotonic()
    while outbox.has_work(loaded.settings.api_url, wait=5.0):
        now = _waiting(loaded, outbox)
        if now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > PATIENCE:
            return False
        if progress is not None:
            progress(now)
        time.sleep(0.1)
    return True


def _waiting(loaded: Loaded, outbox: Outbox) -> int:
    stats = outbox.stats(wait=5.0)
    return stats.open_rows + stats.spooled
