"""The worker's duties beside delivery: telemetry goes out, stores stay in bounds, turns end."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

from bdh_bridge.metrics import measure
from bdh_bridge.outbox.upkeep import Upkeep
from bdh_bridge.settings import Loaded
from bdh_bridge.telemetry import describe_process
from bdh_bridge.worker.duties import Duty
from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.abandoned import close_abandoned
from bdh_otel.database import CorruptFile, set_aside
from bdh_otel.endpoints import capture_content
from bdh_otel.export import Exporter
from bdh_otel.metrics import MetricStore
from bdh_otel.metrics_export import MetricExporter, interval
from bdh_otel.process import this_process
from bdh_otel.retention import Bounds, prune
from bdh_otel.store import SpanStore
from bdh_otel.tracer import SERVICE_NAME, Tracer

log = logging.getLogger(__name__)

#: Seconds for which a write that ended stays listed, and a span is kept.
RETENTION = 30 * 86_400.0
#: Longest that one round of a duty may take, in seconds.
_ROUND = 10.0


def duties_of(loaded: Loaded, upkeep: Upkeep, tracer: Tracer, *, export: bool = True) -> list[Duty]:
    """``export`` is False in a worker that is a thread of the agent: what it would load there
    (protobuf, gRPC) has no place in that process."""
    settings, path = loaded.settings, loaded.paths.spans
    bounds = Bounds(settings.otel_store_max_rows, settings.otel_store_max_bytes, RETENTION)

    def with_store(duty: str, work: Callable[[SpanStore], int]) -> Callable[[], bool]:
        def run() -> bool:
            if path.exists():
                store = SpanStore(path)
                try:
                    _record(tracer, duty, work(store))
                finally:
                    store.close()
            return False

        return run

    def prune_outbox() -> bool:
        _record(tracer, "prune_outbox", upkeep.prune(older_than=RETENTION))
        return False

    return [
        *(export_duties(loaded) if export else []),
        Duty("close_abandoned", 30.0, with_store("close_abandoned", close_abandoned)),
        Duty(
            "prune_spans",
            300.0,
            with_store("prune_spans", lambda store: prune(store, bounds).rows),
        ),
        Duty("prune_outbox", 3_600.0, prune_outbox),
    ]


def export_duties(loaded: Loaded) -> list[Duty]:
    """Spans and metrics to the OTLP endpoints; empty where none is configured."""
    duties = []
    spans = span_exporter(loaded)
    if spans.enabled:

        def send_spans() -> bool:
            result = spans.run_once(time.monotonic() + _ROUND)
            return result.busy or result.waiting > 0 or result.unfinished > 0

        duties.append(Duty("export", 2.0, send_spans))
    metrics = metric_exporter(loaded)
    if metrics.enabled:

        def send_metrics() -> bool:
            try:
                with contextlib.closing(MetricStore(loaded.paths.metrics)) as store:
                    measure(loaded, store, time.monotonic() + _ROUND)
                    metrics.run_once(store, time.monotonic() + _ROUND)
                    return metrics.outdated(store.position())
            except CorruptFile as error:
                moved = set_aside(error.path)
                log.warning("[bdh-bridge] %s; it is kept as %s", error, moved.name)
                return True

        duties.append(Duty("metrics", interval(loaded.environment), send_metrics))
    return duties


def span_exporter(loaded: Loaded) -> Exporter:
    return Exporter(loaded.paths.spans, loaded.environment, export_content=exports_content(loaded))


def exports_content(loaded: Loaded) -> bool:
    """Both have to be set: one of them is easily inherited from another tool."""
    return loaded.settings.otel_export_content and capture_content(loaded.environment)


def metric_exporter(loaded: Loaded) -> MetricExporter:
    described = {
        "service.name": SERVICE_NAME,
        "host.name": this_process().host,
        **describe_process(loaded, "worker"),
    }
    return MetricExporter(loaded.environment, described)


def _record(tracer: Tracer, duty: str, items: int) -> None:
    """A span for a duty that found something to do."""
    if items:
        with tracer.span(names.DUTY, attributes={attr.WORKER_DUTY: duty, attr.WORKER_ITEMS: items}):
            pass
