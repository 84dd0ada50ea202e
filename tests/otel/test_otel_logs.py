"""Log records of the bridge lead to the trace that they belong to."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Iterator

import pytest

from bdh_otel import names
from bdh_otel.logs import IdFormatter, carry_ids, in_logs
from bdh_otel.tracer import Tracer


@pytest.fixture(autouse=True)
def factory() -> Iterator[None]:
    before = logging.getLogRecordFactory()
    carry_ids("bdh_bridge")
    yield
    logging.setLogRecordFactory(before)


def said(caplog: pytest.LogCaptureFixture, logger: str = "bdh_bridge.here") -> logging.LogRecord:
    logging.getLogger(logger).warning("[bdh-bridge] something happened")
    return caplog.records[-1]


def test_a_record_carries_the_ids_of_its_span(
    caplog: pytest.LogCaptureFixture, tracer: Tracer
) -> None:
    turn = tracer.start_span(names.TURN)
    with in_logs(turn):
        record = said(caplog)
        assert record.otelTraceID == f"{turn.trace_id:032x}"  # type: ignore[attr-defined]
        assert record.otelSpanID == f"{turn.span_id:016x}"  # type: ignore[attr-defined]
        assert record.otelTraceSampled is True  # type: ignore[attr-defined]
        with tracer.span(names.WRITE, parent=turn) as write:
            assert said(caplog).otelSpanID == f"{write.span_id:016x}"  # type: ignore[attr-defined]
        assert said(caplog).otelSpanID == f"{turn.span_id:016x}"  # type: ignore[attr-defined]
    assert said(caplog).otelTraceID == "0"  # type: ignore[attr-defined]


def test_a_span_of_another_process_is_carried_too(
    caplog: pytest.LogCaptureFixture, tracer: Tracer
) -> None:
    parent = tracer.remote_parent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    with in_logs(parent):
        assert said(caplog).otelTraceID == "0af7651916cd43dd8448eb211c80319c"  # type: ignore[attr-defined]


def test_records_of_others_pass_as_they_are(
    caplog: pytest.LogCaptureFixture, tracer: Tracer
) -> None:
    with in_logs(tracer.start_span(names.TURN)):
        assert not hasattr(said(caplog, "somebody.else"), "otelTraceID")


def test_asking_twice_wraps_once() -> None:
    first = logging.getLogRecordFactory()
    carry_ids("bdh_bridge", "bdh_otel")
    assert logging.getLogRecordFactory() is first


def test_threads_keep_apart_and_a_copied_context_goes_along(
    caplog: pytest.LogCaptureFixture, tracer: Tracer
) -> None:
    turn = tracer.start_span(names.TURN)
    found: list[str] = []

    def work() -> None:
        found.append(said(caplog).otelTraceID)  # type: ignore[attr-defined]

    with in_logs(turn):
        context = contextvars.copy_context()
        for target in (work, lambda: context.run(work)):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
    assert found == ["0", f"{turn.trace_id:032x}"]


def test_a_span_left_in_another_thread_does_no_harm(tracer: Tracer) -> None:
    span = tracer.span(names.WRITE)
    span.__enter__()
    thread = threading.Thread(target=lambda: span.__exit__(None, None, None))
    thread.start()
    thread.join()
    assert span.end_ns is not None


def test_the_workers_log_shows_the_ids(caplog: pytest.LogCaptureFixture, tracer: Tracer) -> None:
    formatter = IdFormatter("%(levelname)s %(message)s")
    with in_logs(tracer.remote_parent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")):
        inside = said(caplog)
    assert formatter.format(inside) == (
        "WARNING [bdh-bridge] something happened"
        " trace_id=0af7651916cd43dd8448eb211c80319c span_id=b7ad6b7169203331"
    )
    assert formatter.format(said(caplog)) == "WARNING [bdh-bridge] something happened"
