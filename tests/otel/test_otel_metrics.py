"""Metrics: totals that no span is missing from or counted in twice, and their way out."""

from __future__ import annotations

import json
import logging
import multiprocessing
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bdh_otel import attributes as attr
from bdh_otel import instruments as metric
from bdh_otel import names
from bdh_otel.instruments import Instrument
from bdh_otel.metrics import MAX_SERIES, MetricStore
from bdh_otel.metrics_export import MetricExporter, interval
from bdh_otel.reader import SpanReader
from bdh_otel.tracer import LocalSpan, Tracer
from tests.otel.conftest import otlp_environment
from tests.support.otlp_receiver import GrpcReceiver, HttpReceiver, Receiver

Conversation = Callable[..., LocalSpan]
RESOURCE = {"service.name": "hermes-bdh-bridge", "service.version": "1.2.3"}


@pytest.fixture
def totals(tmp_path: Path) -> Iterator[MetricStore]:
    store = MetricStore(tmp_path / "bdh-bridge" / "metrics.sqlite3")
    yield store
    store.close()


def values(store: MetricStore, instrument: Instrument) -> dict[tuple[Any, ...], float]:
    """By the values of the instrument's attributes."""
    return {
        tuple(one.attributes.get(name) for name in instrument.attributes): one.value
        for one in store.snapshot().series
        if one.instrument is instrument
    }


def test_every_instrument_is_made_of_declared_exportable_attributes() -> None:
    for instrument in metric.TABLE.values():
        for name in instrument.attributes:
            assert attr.TABLE[name].privacy == "exportable", (instrument.name, name)
            assert attr.TABLE[name].type in ("string", "bool"), "few values only"
        assert bool(instrument.bounds) == (instrument.kind == "histogram")
        assert list(instrument.bounds) == sorted(set(instrument.bounds))


def test_genai_instruments_are_those_of_the_conventions() -> None:
    from opentelemetry.semconv._incubating.metrics import gen_ai_metrics as conventions

    assert metric.OPERATION_DURATION.name == conventions.GEN_AI_CLIENT_OPERATION_DURATION
    assert metric.TOKEN_USAGE.name == conventions.GEN_AI_CLIENT_TOKEN_USAGE


def test_a_conversation_adds_up(
    totals: MetricStore, reader: SpanReader, conversation: Conversation
) -> None:
    conversation()
    assert totals.tally(reader)
    assert values(totals, metric.TURNS) == {("retrieve_only", "end_of_turn", "cli"): 1}
    decisions = values(totals, metric.DECISIONS)
    assert decisions["answer", "write", "skip", "short_answer"] == 1
    assert decisions["relevance", "read", "allow", "terms_matched"] == 1
    assert sum(decisions.values()) == 5
    assert values(totals, metric.HOPS) == {("openrouter", "timeout"): 1}
    assert values(totals, metric.SPANS_STORED) == {(): 9}
    (score,) = [one for one in totals.snapshot().series if one.instrument is metric.HYBRID_TOP]
    assert (score.count, score.value, score.low, score.high) == (1, 0.8061, 0.8061, 0.8061)
    assert score.buckets[metric.HYBRID_TOP.bounds.index(0.9)] == 1
    (took,) = [
        one for one in totals.snapshot().series if one.instrument is metric.OPERATION_DURATION
    ]
    assert took.attributes[attr.ERROR_TYPE] == "timeout"
    assert took.count == 1


def test_a_hop_that_nobody_was_asked_for_has_no_duration(
    totals: MetricStore, reader: SpanReader, tracer: Tracer
) -> None:
    for outcome in ("no_credential", "circuit_open", "ok"):
        tracer.start_span(
            names.chat("m"),
            attributes={
                attr.PROVIDER_NAME: "ollama",
                attr.HOP_OUTCOME: outcome,
                attr.INPUT_TOKENS: 100 if outcome == "ok" else None,
            },
        ).end()
    assert tracer.flush(10)
    totals.tally(reader)
    counts = {
        one.instrument.name: one.count
        for one in totals.snapshot().series
        if one.instrument.kind == "histogram"
    }
    assert sum(values(totals, metric.HOPS).values()) == 3
    assert counts == {metric.OPERATION_DURATION.name: 1, metric.TOKEN_USAGE.name: 1}


def test_nothing_counts_twice_whoever_tallies_and_whenever_it_ends(
    totals: MetricStore, reader: SpanReader, tracer: Tracer, conversation: Conversation
) -> None:
    turn = tracer.start_span(names.TURN, attributes={attr.TURN_ROUTE: "skip"})
    turn.save_provisional()
    assert tracer.flush(10)
    conversation()
    other = MetricStore(totals.path)
    for store in (totals, other, totals):
        assert store.tally(reader)
    assert values(totals, metric.SPANS_STORED) == {(): 9}, "an open span is not there yet"
    turn.end()
    assert tracer.flush(10)
    for store in (other, totals):
        assert store.tally(reader)
    assert values(totals, metric.SPANS_STORED) == {(): 10}
    other.close()


def _tally(totals_path: Path, spans_path: Path) -> None:
    store, reader = MetricStore(totals_path), SpanReader(spans_path)
    for _ in range(20):
        store.tally(reader)


def test_processes_that_tally_at_once_agree(
    totals: MetricStore, reader: SpanReader, tracer: Tracer, store_path: Path
) -> None:
    for _ in range(3_000):
        tracer.start_span(names.ROUTE).end()
    assert tracer.flush(30)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_tally, args=(totals.path, store_path)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert values(totals, metric.SPANS_STORED) == {(): 3_000}


def test_a_new_span_store_is_tallied_from_its_beginning(
    totals: MetricStore, reader: SpanReader, tracer: Tracer, store_path: Path
) -> None:
    for _ in range(20):
        tracer.start_span(names.ROUTE).end()
    assert tracer.flush(10)
    totals.tally(reader)
    tracer.shutdown()
    for path in store_path.parent.glob("spans.sqlite3*"):
        path.unlink()
    for _ in range(25):  # more than the old one held
        tracer.start_span(names.ROUTE).end()
    assert tracer.flush(10)
    totals.tally(reader)
    assert values(totals, metric.SPANS_STORED) == {(): 45}


def test_lost_spans_stay_lost_when_their_process_is_forgotten(
    totals: MetricStore, reader: SpanReader, conversation: Conversation, store_path: Path
) -> None:
    conversation()
    with sqlite3.connect(store_path) as connection:
        connection.execute("UPDATE resources SET dropped = 7")
    for _ in range(2):
        totals.tally(reader)
    assert values(totals, metric.SPANS_DROPPED) == {(): 7}
    with sqlite3.connect(store_path) as connection:
        connection.execute("DELETE FROM resources")
    totals.tally(reader)
    assert values(totals, metric.SPANS_DROPPED) == {(): 7}


def test_series_are_bounded(totals: MetricStore, reader: SpanReader, tracer: Tracer) -> None:
    for number in range(MAX_SERIES + 50):
        tracer.start_span(
            names.execute_tool("x"), attributes={attr.TOOL_NAME: f"tool-{number}"}
        ).end()
    assert tracer.flush(30)
    totals.tally(reader)
    counted = values(totals, metric.TOOL_CALLS)
    assert sum(counted.values()) == MAX_SERIES + 50
    assert len(counted) <= MAX_SERIES + 1
    assert counted[None, None] >= 49


def test_a_gauge_shows_what_is_now(totals: MetricStore) -> None:
    totals.show(metric.OUTBOX_WRITES, [({attr.OUTBOX_STATE: "pending"}, 3)])
    totals.show(metric.OUTBOX_WRITES, [({attr.OUTBOX_STATE: "delivered"}, 2)])
    assert values(totals, metric.OUTBOX_WRITES) == {("pending",): 0, ("delivered",): 2}


def report(totals: MetricStore, receiver: Receiver, **more: str) -> MetricExporter:
    exporter = MetricExporter(otlp_environment(receiver, **more), RESOURCE)
    assert exporter.run_once(totals)
    return exporter


def numbers(found: Any) -> list[float]:
    return [point.as_int or point.as_double for point in found.data_points]


def test_a_report_arrives_whole(
    receiver: Receiver, totals: MetricStore, reader: SpanReader, conversation: Conversation
) -> None:
    conversation()
    totals.tally(reader)
    totals.show(metric.OUTBOX_OLDEST, [({}, 2.5)])
    exporter = report(totals, receiver, OTEL_RESOURCE_ATTRIBUTES="team=graph")
    assert exporter.failing() == []
    assert not exporter.outdated(totals.position())
    found = receiver.metrics()
    assert set(found) <= set(metric.TABLE)
    stored = found["bdh.spans.stored"].sum
    assert (stored.aggregation_temporality, stored.is_monotonic) == (2, True)
    assert numbers(stored) == [9]
    assert numbers(found["bdh.outbox.oldest_age"].gauge) == [2.5]
    scores = found["bdh.retrieval.hybrid_top"].histogram.data_points[0]
    assert list(scores.explicit_bounds) == list(metric.HYBRID_TOP.bounds)
    assert (scores.count, sum(scores.bucket_counts)) == (1, 1)
    (whole,) = receiver.accepted_metrics[-1].resource_metrics
    resource = {one.key: one.value.string_value for one in whole.resource.attributes}
    assert resource["service.name"] == "hermes-bdh-bridge"
    assert resource["service.instance.id"] == totals.snapshot().instance
    assert resource["team"] == "graph"
    exporter.close()


@pytest.mark.parametrize("preference", ["delta", "LowMemory"])
def test_differences_are_told_where_they_are_wanted(
    http: HttpReceiver,
    totals: MetricStore,
    reader: SpanReader,
    conversation: Conversation,
    preference: str,
) -> None:
    more = {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": preference}
    told = []
    for number in range(3):
        conversation(turn_id=f"t-{number}")
        totals.tally(reader)
        if number == 1:  # a report that is lost is made up for by the next one
            http.metric_answers = [(503, {}, b"")]
        report(totals, http, **more).close()
        told.append(http.metrics())
    counts = [numbers(one["bdh.spans.stored"].sum) for one in told]
    assert counts == [[9], [9], [18]]
    (first, *_, last) = (one["bdh.spans.stored"].sum for one in told)
    assert first.aggregation_temporality == last.aggregation_temporality == 1
    assert last.data_points[0].start_time_unix_nano == first.data_points[0].time_unix_nano
    scores = told[-1]["bdh.retrieval.hybrid_top"].histogram.data_points[0]
    assert (scores.count, scores.HasField("max")) == (2, False)


def test_a_receiver_without_metrics_is_left_in_peace(
    receiver: Receiver, totals: MetricStore, caplog: pytest.LogCaptureFixture
) -> None:
    import grpc

    unknown: Any = (404, {}, b"")
    if isinstance(receiver, GrpcReceiver):
        unknown = grpc.StatusCode.UNIMPLEMENTED
    receiver.metric_answers = [unknown]
    with caplog.at_level(logging.INFO):
        exporter = report(totals, receiver)
        for _ in range(3):
            exporter.run_once(totals)
    assert len(receiver.raw_metrics) == 1
    ours = [record for record in caplog.records if record.name.startswith("bdh_")]
    assert [record.levelname for record in ours] == ["INFO"]
    assert not exporter.outdated(1 << 40), "nobody has to stay for it"
    exporter.close()


def test_a_failing_receiver_is_told_again_later(
    http: HttpReceiver, totals: MetricStore, caplog: pytest.LogCaptureFixture
) -> None:
    http.metric_answers = [(503, {"retry-after": "30"}, b"private words")] * 2
    exporter = report(totals, http)
    exporter.run_once(totals)
    assert len(http.raw_metrics) == 1
    exporter.run_once(totals, force=True)
    exporter.run_once(totals, force=True)
    assert len(http.accepted_metrics) == 1
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2, "that it failed, and that it is well again"
    assert "private" not in json.dumps(texts)
    exporter.close()


@pytest.mark.parametrize(
    ("variables", "enabled"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x/v1/traces"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://x/m"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_METRICS_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}, False),
        ({"BDH_OTEL_ENDPOINTS": "grpc://x:4317"}, True),
    ],
)
def test_where_metrics_go(variables: dict[str, str], enabled: bool) -> None:
    assert MetricExporter(variables, RESOURCE).enabled is enabled


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("", 60), ("15000", 15), ("0", 1), ("nonsense", 60), ("nan", 60), ("1e12", 3_600)],
)
def test_the_interval(value: str, seconds: float) -> None:
    assert interval({"OTEL_METRIC_EXPORT_INTERVAL": value}) == seconds
