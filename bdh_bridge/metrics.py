"""The bridge's metrics: what the spans add up to, and what the other stores show now.

>>> for series in snapshot(load()).series:
...     print(series.instrument.name, dict(series.attributes), series.value)
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from bdh_bridge.outbox.store import Outbox
from bdh_bridge.settings import Loaded
from bdh_bridge.state import SharedState
from bdh_otel import attributes as attr
from bdh_otel import instruments as metric
from bdh_otel.database import StoreError
from bdh_otel.endpoints import endpoints
from bdh_otel.lane import waiting
from bdh_otel.metrics import MetricStore, Snapshot
from bdh_otel.reader import SpanReader

log = logging.getLogger(__name__)

BREAKER_STATES = ("closed", "open", "probe")


def snapshot(loaded: Loaded) -> Snapshot:
    """Tally and measure now; for screens and commands. Raises: StoreError."""
    store = MetricStore(loaded.paths.metrics)
    try:
        measure(loaded, store)
        return store.snapshot()
    finally:
        store.close()


def measure(loaded: Loaded, store: MetricStore, deadline: float | None = None) -> bool:
    """Bring ``store`` up to date. False if ``deadline`` (``time.monotonic()``) passed before all
    spans were tallied.

    A store that can't be read shows nothing new; the others do. Raises: StoreError if ``store``
    itself can't be written.
    """
    done = True
    with contextlib.closing(SpanReader(loaded.paths.spans)) as spans:
        with _tolerant(loaded):
            done = store.tally(spans, deadline)
        with _tolerant(loaded):
            _show_export(loaded, store, spans)
    with _tolerant(loaded):
        _show_outbox(loaded, store)
    with _tolerant(loaded):
        _show_breakers(loaded, store)
    return done


@contextlib.contextmanager
def _tolerant(loaded: Loaded) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        pass  # nothing has been stored yet
    except StoreError as error:
        if error.path == loaded.paths.metrics:
            raise
        log.debug("[bdh-bridge] metrics: %s", error)


def _show_export(loaded: Loaded, store: MetricStore, spans: SpanReader) -> None:
    labels = {one.key: one.label for one in endpoints(loaded.environment)}
    rows = [
        row
        for row in spans.rows("SELECT endpoint, seq, sent, refused FROM cursors")
        if row["endpoint"] in labels
    ]
    shown: dict[Any, list[tuple[dict[str, Any], float]]] = {
        metric.SPANS_EXPORTED: [],
        metric.SPANS_REFUSED: [],
        metric.SPANS_WAITING: [],
    }
    for row in rows:
        where = {attr.EXPORT_ENDPOINT: labels[row["endpoint"]]}
        shown[metric.SPANS_EXPORTED].append((where, row["sent"]))
        shown[metric.SPANS_REFUSED].append((where, row["refused"]))
        left = spans.ask(partial(waiting, seq=row["seq"]))
        shown[metric.SPANS_WAITING].append((where, left))
    for instrument, values in shown.items():
        store.show(instrument, values)


def _show_outbox(loaded: Loaded, store: MetricStore) -> None:
    paths = loaded.paths
    if not paths.outbox.exists():
        return
    outbox = Outbox(paths.outbox, spool=paths.outbox_spool)
    try:
        stats = outbox.stats()
    finally:
        outbox.close()
    counts = {str(state): count for state, count in stats.by_state.items()}
    counts["spooled"] = stats.spooled
    store.show(
        metric.OUTBOX_WRITES,
        [({attr.OUTBOX_STATE: state}, count) for state, count in counts.items()],
    )
    store.show(metric.OUTBOX_OLDEST, [({}, stats.oldest_pending_age or 0.0)])


def _show_breakers(loaded: Loaded, store: MetricStore) -> None:
    if not loaded.paths.state.exists():
        return
    state = SharedState(loaded.paths.state, busy_timeout=1.0)
    try:
        breakers = state.breakers()
    finally:
        state.close()
    now: dict[str, str] = {}
    # One that is closed again is no longer on record: it was shown before.
    for series in store.snapshot().series:
        if series.instrument is metric.BREAKERS:
            now[str(series.attributes[attr.BREAKER_KEY])] = "closed"
    for breaker in breakers:
        # The graph's key holds its URL: which graph it is does not matter here.
        key = "graph" if breaker.key.startswith("graph:") else breaker.key
        now[key] = "probe" if breaker.probing else "open" if breaker.open else "closed"
    values: Counter[tuple[str, str]] = Counter(now.items())
    store.show(
        metric.BREAKERS,
        [
            ({attr.BREAKER_KEY: key, attr.BREAKER_STATE: one}, values[key, one])
            for key in sorted(now)
            for one in BREAKER_STATES
        ],
    )
