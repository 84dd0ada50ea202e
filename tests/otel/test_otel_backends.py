"""The real thing: Jaeger keeps what was sent, and runs the Collector's configuration."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.export import Exporter
from bdh_otel.metrics import MetricStore
from bdh_otel.metrics_export import MetricExporter
from bdh_otel.otlp import Encoder
from bdh_otel.otlp_json import lines
from bdh_otel.reader import SpanReader, StoredSpan
from bdh_otel.tracer import LocalSpan, Tracer
from tests.otel.test_otel_deploy import COLLECTOR, series
from tests.support.jaeger import (
    Jaeger,
    free_ports,
    run_collector,
    running_jaeger,
    wait_until_listening,
)
from tests.support.otlp_receiver import GrpcReceiver
from tests.support.waiting import eventually

Conversation = Callable[..., LocalSpan]


@pytest.fixture(scope="module")
def jaeger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jaeger]:
    with running_jaeger(tmp_path_factory.mktemp("jaeger")) as running:
        yield running


def assert_same(found: list[dict[str, Any]], stored: list[StoredSpan]) -> None:
    """What the query API tells of a trace is what may leave the store, no more and no less."""
    by_id = {span["spanID"]: span for span in found}
    assert len(found) == len(stored)
    for span in stored:
        there = by_id[span.span_id]
        assert there["operationName"] == span.name
        assert there["service"] == "hermes-bdh-bridge"
        assert abs(there["startTime"] - span.start_ns // 1_000) <= 1
        assert span.duration_ns is not None
        assert abs(there["duration"] - span.duration_ns // 1_000) <= 1
        parents = [one["spanID"] for one in there["references"] if one["refType"] == "CHILD_OF"]
        assert parents == ([span.parent_id] if span.parent_id else [])
        links = [one["spanID"] for one in there["references"] if one["refType"] != "CHILD_OF"]
        assert links == [link.span_id for link in span.links]
        exportable = {
            name: value
            for name, value in span.attributes.items()
            if attr.TABLE[name].privacy == "exportable"
        }
        tags = dict(there["tags"])
        assert tags.pop("span.kind") == span.as_json()["kind"]
        assert tags.pop("otel.scope.name") in ("bdh_bridge", "hermes_borgee")
        tags.pop("otel.scope.version", None)
        tags.pop("otel.scope.schema_url", None)
        if span.failed:
            assert (tags.pop("otel.status_code"), tags.pop("error")) == ("ERROR", True)
        for name, value in exportable.items():
            there_is = tags.pop(name)
            if isinstance(value, list):
                there_is = json.loads(there_is)
            assert there_is == value, name
        assert tags == {}, span.name


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_jaeger_shows_what_was_stored(
    jaeger: Jaeger,
    conversation: Conversation,
    tracer: Tracer,
    reader: SpanReader,
    store_path: Path,
    protocol: str,
) -> None:
    root = conversation()
    late = tracer.start_span(
        names.DELIVER, links=[root], attributes={attr.DELIVERY_OUTCOME: "delivered"}
    )
    late.end()
    assert tracer.flush(10)
    exporter = Exporter(
        store_path,
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": jaeger.http if protocol != "grpc" else jaeger.grpc,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        },
    )
    assert exporter.run_once().sent == 10
    exporter.close()
    for span in (root, late):
        trace_id = f"{span.trace_id:032x}"
        stored = reader.trace(trace_id)
        assert_same(jaeger.wait_for(trace_id, len(stored)), stored)


def test_json_lines_are_read_as_what_they_are(
    jaeger: Jaeger, conversation: Conversation, tracer: Tracer, reader: SpanReader
) -> None:
    """Jaeger's receiver decodes JSON with the code of the Collector's file receiver."""
    root = conversation()
    other = tracer.start_span(names.TURN)
    tracer.start_span(names.DELIVER, links=[other], parent=root).end()
    assert tracer.flush(10)
    written = list(lines(reader, Encoder()))
    assert [count for count, _ in written] == [10]
    for _, line in written:
        assert "\n" not in line
        answer = httpx.post(
            f"{jaeger.http}/v1/traces",
            content=line,
            headers={"content-type": "application/json"},
        )
        assert answer.status_code == 200, answer.text
    trace_id = f"{root.trace_id:032x}"
    assert_same(jaeger.wait_for(trace_id, 10), reader.trace(trace_id))


@pytest.fixture
def backends() -> Iterator[tuple[GrpcReceiver, GrpcReceiver]]:
    """In the places of Jaeger and Tempo."""
    pair = GrpcReceiver(), GrpcReceiver()
    yield pair
    for one in pair:
        one.close()


@contextlib.contextmanager
def collector(
    folder: Path, backends: tuple[GrpcReceiver, GrpcReceiver], percent: int
) -> Iterator[tuple[str, str]]:
    """The shipped configuration, run as it is; (OTLP over HTTP, page of the metrics)."""
    grpc, http, page = free_ports(3)
    environ = {
        "BDH_COLLECTOR_GRPC": f"127.0.0.1:{grpc}",
        "BDH_COLLECTOR_HTTP": f"127.0.0.1:{http}",
        "BDH_COLLECTOR_PROMETHEUS": f"127.0.0.1:{page}",
        "BDH_COLLECTOR_JAEGER": f"127.0.0.1:{backends[0].port}",
        "BDH_COLLECTOR_TEMPO": f"127.0.0.1:{backends[1].port}",
        "BDH_COLLECTOR_SAMPLE_PERCENT": str(percent),
        "BDH_COLLECTOR_DECISION_WAIT": "1s",
    }
    log = folder / "collector.log"
    with run_collector(COLLECTOR, log, environ) as process:
        wait_until_listening([grpc, http, page], process, log)
        yield f"http://127.0.0.1:{http}", f"http://127.0.0.1:{page}/metrics"


def test_the_collector_keeps_what_must_not_be_missed(
    backends: tuple[GrpcReceiver, GrpcReceiver],
    tracer: Tracer,
    store_path: Path,
    tmp_path: Path,
) -> None:
    def trace(**attributes: Any) -> str:
        root = tracer.start_span(names.TURN)
        child = tracer.start_span(names.ROUTE, parent=root)
        child.set_attributes({getattr(attr, name): value for name, value in attributes.items()})
        child.end()
        root.end()
        return f"{root.trace_id:032x}"

    failed = tracer.start_span(names.WRITE)
    failed.fail("unavailable")
    failed.end()
    kept = {
        f"{failed.trace_id:032x}",
        trace(DELIVERY_OUTCOME="in_doubt"),
        trace(REWRITE_FALLBACK=True),
        trace(ROUTE_ROUTER="fallback"),
        trace(TURN_CLOSE_REASON="process_died"),
        trace(WRITE_OUTCOME="refused"),
    }
    for _ in range(20):
        trace(DELIVERY_OUTCOME="delivered", REWRITE_FALLBACK=False, ROUTE_ROUTER="rewrite")
    assert tracer.flush(10)
    with collector(tmp_path, backends, percent=0) as (endpoint, _):
        exporter = Exporter(store_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint})
        assert exporter.run_once().waiting == 0
        exporter.close()
        for backend in backends:
            eventually(
                lambda backend=backend: kept <= {one.trace_id.hex() for one in backend.spans}
            )
        time.sleep(0.5)  # whatever else would come
        for backend in backends:
            assert {one.trace_id.hex() for one in backend.spans} == kept
            assert len(backend.spans) == 2 * len(kept) - 1, "traces are kept whole"


def test_the_dashboards_ask_for_what_prometheus_will_see(
    backends: tuple[GrpcReceiver, GrpcReceiver],
    conversation: Conversation,
    reader: SpanReader,
    store_path: Path,
    tmp_path: Path,
) -> None:
    conversation()
    totals = MetricStore(tmp_path / "metrics.sqlite3")
    totals.tally(reader)
    for instrument, values in _gauges():
        totals.show(instrument, values)
    with collector(tmp_path, backends, percent=100) as (endpoint, page):
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
        exporter = Exporter(store_path, variables)
        assert exporter.run_once().sent == 9
        exporter.close()
        metrics = MetricExporter(variables, {"service.name": "hermes-bdh-bridge"})
        assert metrics.run_once(totals)
        assert metrics.failing() == []
        metrics.close()
        seen: dict[str, set[str]] = {}

        def scraped() -> bool:
            seen.clear()
            for line in httpx.get(page).text.splitlines():
                if line and not line.startswith("#"):
                    name, _, rest = line.partition("{")
                    labels = rest.partition("}")[0]
                    found = {one.partition("=")[0] for one in labels.split('",')}
                    seen.setdefault(name.partition(" ")[0], set()).update(found - {""})
            return "bdh_span_calls_total" in seen and "bdh_spans_stored_total" in seen

        eventually(scraped)
    known = series()
    here = {name for name in seen if name.startswith(("bdh_", "gen_ai_"))}
    assert here <= set(known)
    assert len(here) > 20
    for name in here:
        assert known[name] <= seen[name] | {"error_type", "bdh_rewrite_fallback"}, name
        assert {"job", "instance"} <= seen[name] or name.startswith("bdh_span_")
    totals.close()


def _gauges() -> Iterator[tuple[Any, list[tuple[dict[str, Any], float]]]]:
    from bdh_otel import instruments as metric

    where = {attr.EXPORT_ENDPOINT: "collector"}
    yield metric.OUTBOX_WRITES, [({attr.OUTBOX_STATE: "pending"}, 1)]
    yield metric.OUTBOX_OLDEST, [({}, 1.5)]
    yield metric.BREAKERS, [({attr.BREAKER_KEY: "graph", attr.BREAKER_STATE: "open"}, 1)]
    for instrument in (metric.SPANS_EXPORTED, metric.SPANS_REFUSED, metric.SPANS_WAITING):
        yield instrument, [(where, 3)]


def test_an_outage_leaves_no_gap(
    conversation: Conversation, store_path: Path, tmp_path: Path
) -> None:
    turns = int(os.environ.get("BDH_TEST_OUTAGE_TURNS", "100"))
    *_, http = ports = free_ports(4)
    exporter = Exporter(store_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{http}"})
    traces = []
    for number in range(turns):
        traces.append(f"{conversation(turn_id=f't-{number}').trace_id:032x}")
        if number % 100 == 0:
            assert exporter.run_once(force=True).sent == 0, "nobody is there"
    with running_jaeger(tmp_path, ports) as back:
        result = exporter.run_once(time.monotonic() + 60, force=True)
        assert (result.sent, result.failed, result.waiting) == (9 * turns, 0, 0)
        counts = [len({one["spanID"] for one in back.wait_for(trace, 9)}) for trace in traces]
        assert counts == [9] * turns
        print(f"\n{turns} turns without a backend, then {sum(counts)} spans in Jaeger")
    exporter.close()
