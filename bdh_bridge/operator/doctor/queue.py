"""What waits for the graph, who delivers it, and whether the clock can be trusted."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Iterator

from bdh_bridge import __version__
from bdh_bridge.operator.doctor.checks import Check, Subject, failed, ok, warning
from bdh_bridge.operator.plain import count
from bdh_bridge.outbox.states import State
from bdh_bridge.outbox.store import Outbox, OutboxStats
from bdh_bridge.settings import Loaded
from bdh_otel.database import StoreError

#: Seconds that a write may wait before that is worth a word.
LONG_WAIT = 3_600.0
#: Seconds that clocks may differ.
SKEW = 5.0
#: Seconds that a span may lie in the future before the clock must have been set back.
FUTURE = 60.0


def outbox(subject: Subject) -> Iterator[Check]:
    stats = _stats(subject.loaded)
    if stats is None:
        if subject.loaded.paths.outbox.exists():
            yield failed("outbox", "it can't be read", "see the check of the stores")
        else:
            yield ok("outbox", "empty")
        return
    settings = subject.loaded.settings
    counts = stats.by_state
    quarantined = counts.get(State.QUARANTINED, 0)
    doubtful = counts.get(State.IN_DOUBT, 0)
    failures = counts.get(State.FAILED, 0)
    if quarantined:
        yield warning(
            "outbox",
            f"{quarantined} quarantined: the graph may have learned them already",
            "decide: bdh-bridge outbox list --state quarantined",
        )
    if doubtful:
        yield warning(
            "outbox", f"{doubtful} in doubt", "they settle by themselves, or become quarantined"
        )
    if failures:
        yield warning(
            "outbox",
            f"{failures} failed: the graph refused them",
            "look: bdh-bridge outbox list --state failed",
        )
    if stats.spooled:
        yield warning(
            "outbox",
            f"{stats.spooled} in spool files: the database could not be written",
            "the worker takes them in; see the check of the stores",
        )
    if stats.open_rows >= settings.outbox_max_rows:
        yield failed(
            "outbox",
            f"full: {_wait(stats.open_rows)}, new ones are refused (BDH_OUTBOX_MAX_ROWS)",
            "mend the graph, then: bdh-bridge outbox deliver",
        )
    elif stats.oldest_pending_age is not None and stats.oldest_pending_age > LONG_WAIT:
        hours = stats.oldest_pending_age / 3_600
        yield warning(
            "outbox",
            f"{stats.open_rows:,} wait, the oldest for {hours:.1f} h",
            "mend the graph, then: bdh-bridge outbox deliver",
        )
    else:
        delivered = counts.get(State.DELIVERED, 0)
        yield ok("outbox", f"{stats.open_rows:,} wait, {delivered:,} delivered")


def worker(subject: Subject) -> Iterator[Check]:
    from bdh_bridge.worker.lock import is_held, read_holder

    loaded = subject.loaded
    lock = loaded.paths.worker_lock
    try:
        running = is_held(lock)
    except OSError as error:
        yield failed("worker", f"{lock} can't be used ({error.strerror})", f"remove {lock}")
        return
    stats = _stats(loaded)
    waiting = (stats.open_rows + stats.spooled) if stats else 0
    if not running:
        if loaded.settings.worker == "off" and waiting:
            yield warning(
                "worker",
                f"BDH_WORKER=off, and {_wait(waiting)}",
                "run: bdh-bridge outbox deliver",
            )
        elif waiting:
            yield warning(
                "worker",
                f"not running, and {_wait(waiting)}",
                "the next turn starts one; or run: bdh-bridge outbox deliver",
            )
        else:
            unknown = stats is None and loaded.paths.outbox.exists()
            yield ok("worker", "not running" + ("" if unknown else ", nothing waits"))
        return
    holder = read_holder(lock)
    if holder is not None and holder.version != __version__:
        yield warning(
            "worker",
            f"runs version {holder.version}, this is {__version__}",
            "run: bdh-bridge worker stop (the next turn starts a new one)",
        )
    else:
        yield ok("worker", f"runs{f', pid {holder.pid}' if holder and holder.pid else ''}")


def _wait(writes: int) -> str:
    return f"{count(writes, 'write')} {'waits' if writes == 1 else 'wait'}"


def _stats(loaded: Loaded) -> OutboxStats | None:
    """None for an outbox that isn't there, or that can't be read: the stores' check says why."""
    paths = loaded.paths
    if not paths.outbox.exists():
        return None
    store = Outbox(paths.outbox, spool=paths.outbox_spool)
    try:
        return store.stats(wait=5.0)
    except StoreError:
        return None
    finally:
        store.close()


def clock(subject: Subject) -> Iterator[Check]:
    ahead = _newest_span(subject.loaded) - time.time()
    if ahead > FUTURE:
        yield warning(
            "clock",
            f"spans were stored {ahead:,.0f} s in the future: the clock was set back",
            "keep it right with NTP; newest turns may be listed wrongly until then",
        )
        return
    skew = _server_skew(subject.loaded)
    if skew is not None and abs(skew) > SKEW:
        yield warning(
            "clock",
            f"the graph server's clock differs by {skew:+,.0f} s",
            "keep both right with NTP",
        )
    else:
        known = "" if skew is None else ", as is the graph server's"
        yield ok("clock", f"no sign that it is wrong{known}")


def _newest_span(loaded: Loaded) -> float:
    """Unix seconds; 0 where there is none."""
    from bdh_otel.reader import SpanReader

    reader = SpanReader(loaded.paths.spans)
    try:
        return (reader.status().newest_ns or 0) / 1e9
    except (FileNotFoundError, StoreError):
        return 0.0
    finally:
        reader.close()


def _server_skew(loaded: Loaded) -> float | None:
    """Seconds that the graph server's clock is ahead, by its ``Date`` header."""
    import httpx

    url = loaded.settings.api_url
    try:
        before = time.time()
        response = httpx.get(f"{url}/health", timeout=3.0, trust_env=False)
        moment = email.utils.parsedate_to_datetime(response.headers["date"]).timestamp()
    except (httpx.HTTPError, KeyError, ValueError, TypeError):
        return None
    # The header has whole seconds: it lies up to one second behind.
    middle = (before + time.time()) / 2
    difference = moment + 0.5 - middle
    return difference if abs(difference) > 1.0 else 0.0
