"""The worker's duties beside delivery: spans go out, stores stay in bounds, turns get closed."""

from __future__ import annotations

import time
from collections.abc import Callable

from bdh_bridge.outbox.upkeep import Upkeep
from bdh_bridge.settings import Loaded
from bdh_bridge.worker.duties import Duty
from bdh_otel.abandoned import close_abandoned
from bdh_otel.endpoints import capture_content
from bdh_otel.export import Exporter
from bdh_otel.retention import Bounds, prune
from bdh_otel.store import SpanStore

#: Seconds for which a write that ended stays listed, and a span is kept.
RETENTION = 30 * 86_400.0
#: Longest that one round of a duty may take, in seconds.
_ROUND = 10.0


def duties_of(loaded: Loaded, upkeep: Upkeep) -> list[Duty]:
    settings, path = loaded.settings, loaded.paths.spans
    bounds = Bounds(settings.otel_store_max_rows, settings.otel_store_max_bytes, RETENTION)
    exporter = Exporter(
        path,
        loaded.environment,
        # Both have to be set: one of them is easily inherited from another tool.
        export_content=settings.otel_export_content and capture_content(loaded.environment),
    )

    def with_store(work: Callable[[SpanStore], object]) -> Callable[[], bool]:
        def run() -> bool:
            if path.exists():
                store = SpanStore(path)
                try:
                    work(store)
                finally:
                    store.close()
            return False

        return run

    def export() -> bool:
        return exporter.run_once(time.monotonic() + _ROUND).waiting > 0

    def prune_outbox() -> bool:
        upkeep.prune(older_than=RETENTION)
        return False

    duties = [
        Duty("close_abandoned", 30.0, with_store(close_abandoned)),
        Duty("prune_spans", 300.0, with_store(lambda store: prune(store, bounds))),
        Duty("prune_outbox", 3_600.0, prune_outbox),
    ]
    if exporter.enabled:
        duties.insert(0, Duty("export", 2.0, export))
    return duties
