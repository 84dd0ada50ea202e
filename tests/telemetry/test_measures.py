"""Metrics of a whole home: what turns add up to, and what its stores show."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bdh_bridge.metrics import snapshot
from bdh_bridge.worker.housekeeping import export_duties
from bdh_otel import attributes as attr
from bdh_otel import instruments as metric
from bdh_otel.instruments import Instrument
from tests.support import faulty_graph as behave
from tests.support.faulty_graph import FaultyGraph
from tests.support.otlp_receiver import HttpReceiver
from tests.telemetry.stage import KNOWN, Stage


@pytest.fixture
def graph() -> Iterator[FaultyGraph]:
    with FaultyGraph(behave.answers(200, KNOWN)) as running:
        yield running


def shown(stage: Stage, instrument: Instrument) -> dict[str, float]:
    """Value by the values of the attributes."""
    return {
        " ".join(str(one.attributes.get(name)) for name in instrument.attributes): one.value
        for one in snapshot(stage.loaded).series
        if one.instrument is instrument
    }


def test_a_home_adds_up(tmp_path: Path, graph: FaultyGraph) -> None:
    with Stage(tmp_path, graph.url) as stage:
        stage.turn()
        stage.turn("thanks!", "You are welcome.")
        assert shown(stage, metric.WRITES) == {"queued": 1}
        assert shown(stage, metric.OUTBOX_WRITES) == {"pending": 1, "spooled": 0}
        assert 0 <= shown(stage, metric.OUTBOX_OLDEST)[""] < 600
        assert shown(stage, metric.TURNS) == {
            "retrieve_and_store end_of_turn cli": 1,
            "skip end_of_turn cli": 1,
        }
        graph.behave = behave.learns
        stage.deliver()
        assert shown(stage, metric.DELIVERIES) == {"delivered None": 1}
        outbox = shown(stage, metric.OUTBOX_WRITES)
        assert (outbox["pending"], outbox["delivered"]) == (0, 1)


def test_a_breaker_is_shown_until_it_closes(tmp_path: Path, graph: FaultyGraph) -> None:
    with Stage(tmp_path, graph.url) as stage:
        stage.turn()
        assert shown(stage, metric.BREAKERS) == {}
        for key in (f"graph:{graph.url}", "provider:local"):
            stage.bridge.state.record_failure(key, retry_after=60)
        found = shown(stage, metric.BREAKERS)
        assert found["graph open"] == found["provider:local open"] == 1
        assert found["graph closed"] == found["graph probe"] == 0
        assert str(graph.port) not in json.dumps(found)
        assert stage.bridge.state.breaker_allows("nobody").allowed
        stage.bridge.state.record_success("provider:local")
        found = shown(stage, metric.BREAKERS)
        assert (found["provider:local closed"], found["provider:local open"]) == (1, 0)
        assert set(attr.TABLE[attr.BREAKER_STATE].codes) == {
            one.partition(" ")[2] for one in found if one.startswith("graph ")
        }


def test_the_worker_reports_spans_and_metrics_and_then_need_not_stay(
    tmp_path: Path, graph: FaultyGraph
) -> None:
    with contextlib.closing(HttpReceiver()) as receiver:
        listed = f"named={receiver.url}"
        with Stage(tmp_path, graph.url, BDH_OTEL_ENDPOINTS=listed) as stage:
            stage.turn()
            duties = {duty.name: duty for duty in export_duties(stage.loaded)}
            assert set(duties) == {"export", "metrics"}
            assert duties["metrics"].interval == 60.0
            for duty in duties.values():
                assert duty.run() is False
            assert shown(stage, metric.SPANS_EXPORTED) == {"named": len(receiver.spans)}
            assert shown(stage, metric.SPANS_WAITING) == {"named": 0}
            assert "bdh.turns" in receiver.metrics()


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with contextlib.closing(HttpReceiver()) as running:
        yield running


def test_a_worker_does_not_stay_for_a_receiver_that_fails(
    tmp_path: Path, graph: FaultyGraph, receiver: HttpReceiver
) -> None:
    with Stage(tmp_path, graph.url, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url) as stage:
        stage.turn()
        (_, metrics) = export_duties(stage.loaded)
        receiver.metric_answers = [(503, {}, b"")]
        assert metrics.run() is False
        assert len(receiver.raw_metrics) == 1


def test_a_damaged_file_of_totals_is_set_aside(
    tmp_path: Path, graph: FaultyGraph, receiver: HttpReceiver
) -> None:
    with Stage(tmp_path, graph.url, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url) as stage:
        stage.turn()
        snapshot(stage.loaded)
        path = stage.loaded.paths.metrics
        for companion in path.parent.glob("metrics.sqlite3-*"):
            companion.unlink()
        path.write_bytes(b"\xff" * 8_192)
        (_, metrics) = export_duties(stage.loaded)
        assert metrics.run() is True
        assert metrics.run() is False
        assert len(list(path.parent.glob("metrics.sqlite3.corrupt-*"))) == 1
        assert receiver.metrics()["bdh.turns"].sum.data_points[0].as_int == 1
