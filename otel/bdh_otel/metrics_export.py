"""Sending the metrics to OTLP receivers, by the worker.

There is nothing to queue: the totals are on disk, and the next report holds what a lost one said.
A receiver that wants differences (delta temporality) is told what was added since it last said
yes.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bdh_otel.crew import Crew
from bdh_otel.endpoints import Endpoint, disabled, endpoints, resource_attributes
from bdh_otel.lane import backoff, described
from bdh_otel.metrics import MetricStore, Snapshot
from bdh_otel.transport import Transport, connect

log = logging.getLogger(__name__)

#: Seconds after which a receiver that knows no metrics (Jaeger) is asked again.
UNSUPPORTED_PAUSE = 3_600.0


def interval(environment: Mapping[str, str]) -> float:
    """Seconds between two reports: ``OTEL_METRIC_EXPORT_INTERVAL``, which counts milliseconds."""
    try:
        milliseconds = float(environment.get("OTEL_METRIC_EXPORT_INTERVAL", "").strip() or 60_000)
    except ValueError:
        milliseconds = 60_000.0
    return min(3_600.0, max(1.0, milliseconds / 1_000)) if milliseconds == milliseconds else 60.0


def wants_delta(environment: Mapping[str, str]) -> bool:
    """``OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE``. ``lowmemory`` is ``delta``, too:
    what is counted here is counted when it happens."""
    name = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
    return environment.get(name, "").strip().lower() in ("delta", "lowmemory")


@dataclass(slots=True)
class _Receiver:
    endpoint: Endpoint
    transport: Transport | None = None
    failures: int = 0
    retry_at: float = 0.0
    """``time.monotonic()``."""
    position: int = -1
    """Up to which span the totals were that it took last."""
    down: bool = False


class MetricExporter:
    """Reports ``resource``'s metrics to what ``environment`` configures. Not for use by two
    threads at once."""

    def __init__(self, environment: Mapping[str, str], resource: Mapping[str, Any]) -> None:
        found = [] if disabled(environment) else endpoints(environment, "metrics")
        self._receivers = [_Receiver(endpoint) for endpoint in found]
        self._resource = {**resource, **resource_attributes(environment)}
        self._delta = wants_delta(environment)
        self._crew = Crew("bdh-metrics")

    @property
    def enabled(self) -> bool:
        """False if there is nowhere to send metrics to."""
        return bool(self._receivers)

    def run_once(
        self, store: MetricStore, deadline: float | None = None, *, force: bool = False
    ) -> bool:
        """Report the totals in ``store`` to everybody who is due. True if all who are not
        failing have taken them by ``deadline`` (``time.monotonic()``; default: in 10 s).

        ``force`` also tries receivers that are backing off. Never raises.
        """
        deadline = time.monotonic() + 10.0 if deadline is None else deadline
        try:
            position, snapshot = store.position(), store.snapshot()
            for one in self._receivers:
                if force or time.monotonic() >= one.retry_at:
                    body = self._encoded(one, store, snapshot)
                    report = partial(self._report, one, body, store.path, snapshot, position)
                    self._crew.start(one.endpoint.key, report)
            self._crew.wait(deadline)
        except Exception as error:
            log.warning("[bdh-bridge] metrics can't be exported now: %s", described(error))
            return True
        return not self._crew.busy()

    def outdated(self, position: int) -> bool:
        """Whether a receiver that is not failing has yet to hear of the span at ``position``."""
        return any(one.position < position and not one.failures for one in self._receivers)

    def failing(self) -> list[str]:
        """URLs, as they may be shown, of the receivers that did not take the last report."""
        return [one.endpoint.shown for one in self._receivers if one.failures]

    def close(self, patience: float = 1.0) -> None:
        self._crew.wait(time.monotonic() + patience)
        for one in self._receivers:
            if one.transport is not None and not self._crew.busy(one.endpoint.key):
                one.transport.close()
                one.transport = None

    def _report(
        self, one: _Receiver, body: bytes, path: Path, snapshot: Snapshot, position: int
    ) -> None:
        try:
            if one.transport is None:
                one.transport = connect(one.endpoint)
            answer = one.transport.send(body, one.endpoint.timeout)
        except Exception as error:  # a certificate that can't be read
            self._failed(one, type(error).__name__, None)
            return
        if answer.outcome != "accepted":
            self._failed(one, answer.detail, answer.retry_after, answer.unsupported)
            return
        one.failures, one.position = 0, position
        if self._delta:
            try:
                with contextlib.closing(MetricStore(path)) as store:
                    store.note_told(one.endpoint.key, snapshot)
            except Exception as error:
                log.warning("[bdh-bridge] metrics: %s", described(error))
        if one.down:
            one.down = False
            log.warning("[bdh-bridge] metrics are sent to %s again", one.endpoint.shown)

    def _encoded(self, one: _Receiver, store: MetricStore, snapshot: Snapshot) -> bytes:
        from bdh_otel.metrics_otlp import encode

        resource = {"service.instance.id": snapshot.instance, **self._resource}
        before = store.told(one.endpoint.key) if self._delta else None
        return encode(snapshot, resource, delta=self._delta, before=before)

    def _failed(
        self, one: _Receiver, detail: str, retry_after: float | None, unsupported: bool = False
    ) -> None:
        one.failures += 1
        pause = UNSUPPORTED_PAUSE if unsupported else backoff(one.failures, retry_after)
        one.retry_at = time.monotonic() + pause
        if one.down:
            return
        one.down = True
        shown = one.endpoint.shown
        if unsupported:
            log.info("[bdh-bridge] %s takes no metrics (%s)", shown, detail)
        else:
            log.warning("[bdh-bridge] metrics can't be sent to %s (%s)", shown, detail)
