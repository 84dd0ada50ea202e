"""A snapshot of the metrics as OTLP protobuf.

Only attributes that are declared exportable pass, as for spans (:mod:`bdh_otel.otlp`).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from bdh_otel import attributes as attr
from bdh_otel.metrics import Series, Snapshot

_EXPORTABLE = frozenset(one.name for one in attr.TABLE.values() if one.privacy == "exportable")


def encode(
    snapshot: Snapshot,
    resource: Mapping[str, Any],
    *,
    delta: bool = False,
    before: Snapshot | None = None,
) -> bytes:
    """The bytes of an ``ExportMetricsServiceRequest``.

    Counters and histograms tell all that there ever was (cumulative temporality), or with
    ``delta`` what has been added since ``before`` was told.
    """
    known = {_place(one): one for one in before.series} if delta and before else {}
    start_ns = before.time_ns if delta and before else snapshot.start_ns
    metrics = [
        _metric(list(series), known, delta, start_ns, snapshot.time_ns)
        for _, series in groupby(snapshot.series, key=lambda one: one.instrument.name)
    ]
    scope = InstrumentationScope("bdh_bridge", str(resource.get("service.version", "")))
    scoped = ScopeMetrics(scope, metrics, attr.SCHEMA_URL)
    whole = ResourceMetrics(Resource(dict(resource), attr.SCHEMA_URL), [scoped], attr.SCHEMA_URL)
    return bytes(encode_metrics(MetricsData([whole])).SerializeToString())


def _metric(
    series: list[Series],
    known: Mapping[tuple[str, str], Series],
    delta: bool,
    start_ns: int,
    time_ns: int,
) -> Metric:
    instrument = series[0].instrument
    temporality = AggregationTemporality.DELTA if delta else AggregationTemporality.CUMULATIVE
    data: Sum | Gauge | Histogram
    if instrument.kind == "histogram":
        data = Histogram(
            [_histogram(one, known.get(_place(one)), start_ns, time_ns) for one in series],
            temporality,
        )
    elif instrument.kind == "counter":
        points = [
            NumberDataPoint(
                _attributes(one), start_ns, time_ns, int(_added(one, known.get(_place(one))))
            )
            for one in series
        ]
        data = Sum(points, temporality, is_monotonic=True)
    else:
        number = float if instrument.unit == "s" else int
        data = Gauge(
            [NumberDataPoint(_attributes(one), 0, time_ns, number(one.value)) for one in series]
        )
    return Metric(instrument.name, instrument.meaning, instrument.unit, data)


def _histogram(one: Series, before: Series | None, start_ns: int, time_ns: int) -> Any:
    if before is not None and before.count > one.count:
        before = None  # it has begun anew
    earlier = (0,) * len(one.buckets) if before is None else before.buckets
    counts = [now - then for now, then in zip(one.buckets, earlier, strict=True)]
    # The extremes of a difference are not known; the fields are optional.
    low: Any = one.low if before is None else None
    high: Any = one.high if before is None else None
    return HistogramDataPoint(
        attributes=_attributes(one),
        start_time_unix_nano=start_ns,
        time_unix_nano=time_ns,
        count=sum(counts),
        sum=_added(one, before),
        bucket_counts=counts,
        explicit_bounds=one.instrument.bounds,
        min=low,
        max=high,
    )


def _added(one: Series, before: Series | None) -> float:
    """A total that went down has begun anew."""
    if before is None or before.value > one.value:
        return one.value
    return one.value - before.value


def _place(one: Series) -> tuple[str, str]:
    return one.instrument.name, repr(sorted(one.attributes.items()))


def _attributes(one: Series) -> dict[str, Any]:
    return {name: value for name, value in one.attributes.items() if name in _EXPORTABLE}
