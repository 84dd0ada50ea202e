"""The bounds of the store, kept by whoever runs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bdh_otel import attributes as attr
from bdh_otel import names, writer
from bdh_otel.reader import SpanReader
from bdh_otel.retention import Bounds, prune, prune_if_far_over, size
from bdh_otel.store import SpanStore
from bdh_otel.tracer import Tracer
from tests.support.waiting import DEADLINE, eventually


def fill(tracer: Tracer, count: int, *, text: str = "") -> None:
    for start in range(0, count, 1_000):
        for _ in range(min(1_000, count - start)):
            attributes = {attr.TURN_MESSAGE: text} if text else None
            tracer.start_span(names.ROUTE, attributes=attributes).end()
        assert tracer.flush(30)


def test_retention_by_rows_keeps_the_newest_and_gives_space_back(
    tracer: Tracer, reader: SpanReader, store_path: Path
) -> None:
    fill(tracer, 5_000, text="x" * 300)
    first = reader.status()
    store = SpanStore(store_path)
    result = prune(store, Bounds(rows=1_500, bytes=None), time_limit=DEADLINE)
    assert (result.rows, result.done) == (3_500, True)
    spans = reader.after(0, limit=10_000)
    assert len(spans) == 1_500
    assert spans[0].seq == 3_501
    assert reader.status().bytes < first.bytes * 0.5
    assert result.bytes_freed > first.bytes * 0.5
    assert store_path.stat().st_size == size(store)
    assert prune(store, Bounds(rows=1_500), time_limit=DEADLINE).rows == 0
    store.close()


def test_retention_by_bytes(tracer: Tracer, store_path: Path) -> None:
    fill(tracer, 4_000, text="x" * 300)
    store = SpanStore(store_path)
    bound = size(store) // 2
    result = prune(store, Bounds(rows=None, bytes=bound), time_limit=DEADLINE)
    assert result.done
    assert 0 < result.rows < 4_000
    assert size(store) <= bound
    store.close()


def test_retention_by_age(tracer: Tracer, reader: SpanReader, store_path: Path) -> None:
    now = time.time()
    for age in (500, 400, 300, 20, 10):
        start = int((now - age) * 1e9)
        tracer.start_span(f"{age}", start_time=start).end(end_time=start + 1)
    assert tracer.flush(10)
    store = SpanStore(store_path)
    assert prune(store, Bounds(None, None, age=100), now=now, time_limit=DEADLINE).rows == 3
    assert [span.name for span in reader.after(0)] == ["20", "10"]
    store.close()


def test_a_span_that_came_late_takes_no_young_ones_with_it(
    tracer: Tracer, reader: SpanReader, store_path: Path
) -> None:
    """Stored last, though it began long ago: a turn that was closed for its dead process."""
    fill(tracer, 20)
    long_ago = int((time.time() - 90 * 86_400) * 1e9)
    tracer.start_span("late", start_time=long_ago).end(end_time=long_ago + 1)
    fill(tracer, 5)
    store = SpanStore(store_path)
    assert prune(store, Bounds(age=30 * 86_400), time_limit=DEADLINE).rows == 1
    store.close()
    spans = reader.after(0)
    assert len(spans) == 25
    assert "late" not in {span.name for span in spans}


def test_retention_that_runs_out_of_time_says_so(tracer: Tracer, store_path: Path) -> None:
    fill(tracer, 3_000)
    store = SpanStore(store_path)
    assert not prune(store, Bounds(rows=10), time_limit=0.0).done
    assert prune(store, Bounds(rows=10), time_limit=DEADLINE).done
    store.close()


def test_the_agent_prunes_only_when_far_over(tracer: Tracer, store_path: Path) -> None:
    fill(tracer, 2_000)
    store = SpanStore(store_path)
    assert prune_if_far_over(store, Bounds(rows=1_900), time_limit=DEADLINE).rows == 0
    assert prune_if_far_over(store, Bounds(rows=1_000), time_limit=DEADLINE).rows == 1_000
    store.close()


def test_the_agents_writer_keeps_the_bound_when_nobody_else_does(
    store_path: Path, reader: SpanReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_CHECKPOINT_ROWS", 1_000)
    tracer = Tracer(store_path, max_rows=1_000, strict=True)
    fill(tracer, 4_000)
    tracer.start_span("last").end()  # wakes the thread
    assert tracer.flush(30)
    eventually(lambda: reader.status().spans <= 1_250)
    assert reader.after(reader.last_seq() - 1)[0].name == "last"
    tracer.shutdown()


def test_a_process_whose_record_was_pruned_registers_again(
    tracer: Tracer, reader: SpanReader, store_path: Path
) -> None:
    tracer.start_span("a").end()
    assert tracer.flush(10)
    store = SpanStore(store_path)
    assert prune(store, Bounds(rows=0), time_limit=DEADLINE).rows == 1
    assert reader.resources() == {}
    tracer.start_span("b").end()
    assert tracer.flush(10)
    (span,) = reader.after(0)
    assert span.resource in reader.resources()
    assert span.seq == 2
    store.close()
