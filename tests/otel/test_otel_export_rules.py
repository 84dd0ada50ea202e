"""What may leave the machine, where to, and which traces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import StatusCode

from bdh_otel import attributes as attr
from bdh_otel import export, names
from bdh_otel.endpoints import capture_content, endpoints
from bdh_otel.export import Exporter
from bdh_otel.reader import SpanReader
from bdh_otel.store import SpanStore
from bdh_otel.tracer import LocalSpan, Tracer
from tests.support.otlp_receiver import HttpReceiver, Receiver

Conversation = Callable[..., LocalSpan]


@pytest.mark.parametrize(
    ("sampler", "argument", "sent"),
    [
        ("", "", 9),
        ("always_off", "", 0),
        ("parentbased_always_off", "", 0),
        ("traceidratio", "1.0", 9),
        ("parentbased_traceidratio", "0", 0),
        ("traceidratio", "nonsense", 9),
        ("of_my_own", "", 9),
    ],
)
def test_samplers_apply_to_the_export(
    http: HttpReceiver,
    exporter_for: Callable[..., Exporter],
    conversation: Conversation,
    reader: SpanReader,
    sampler: str,
    argument: str,
    sent: int,
) -> None:
    conversation()
    more = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument}
    result = exporter_for(http, **more).run_once()
    assert (result.sent, result.waiting) == (sent, 0)
    assert reader.status().spans == 9


def test_a_ratio_keeps_traces_whole_and_as_the_sdk_would(
    http: HttpReceiver, exporter_for: Callable[..., Exporter], tracer: Tracer
) -> None:
    from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

    expected = set()
    sampler = TraceIdRatioBased(0.3)
    for _ in range(200):
        root = tracer.start_span(names.TURN)
        tracer.start_span(names.ROUTE, parent=root).end()
        root.end()
        if sampler.should_sample(None, root.trace_id, "").decision is Decision.RECORD_AND_SAMPLE:
            expected.add(root.trace_id)
    assert tracer.flush(10)
    more = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.3"}
    exporter_for(http, **more).run_once()
    assert len(http.spans) == 2 * len(expected)
    assert {int(span.trace_id.hex(), 16) for span in http.spans} == expected


def test_an_unsampled_trace_of_another_plugin_stays_here(
    http: HttpReceiver, exporter_for: Callable[..., Exporter], tracer: Tracer
) -> None:
    parent = tracer.remote_parent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
    tracer.start_span(names.TURN, parent=parent).end()
    assert tracer.flush(10)
    result = exporter_for(http).run_once()
    assert (result.sent, result.waiting) == (0, 0)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": " "},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4318"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "ftp://x"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "TRUE"},
    ],
)
def test_without_a_usable_endpoint_nothing_is_exported(
    variables: dict[str, str], store_path: Path
) -> None:
    exporter = Exporter(store_path, variables)
    assert not exporter.enabled
    assert exporter.run_once() == export.ExportResult()
    assert not store_path.exists()


def test_endpoints_are_read_as_the_specification_says() -> None:
    (base,) = endpoints({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://host:4318/otel/?key=1"})
    assert base.url == "https://host:4318/otel/v1/traces?key=1"
    (own,) = endpoints(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://base",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://u:secret@host/path?key=secret",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "2.5",
            "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "deflate",
        }
    )
    assert own.url == "https://u:secret@host/path?key=secret"
    assert (own.timeout, own.compression, own.insecure) == (2.5, "deflate", False)
    assert "secret" not in own.shown + own.key + repr(own)
    (grpc,) = endpoints(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "host:4317",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            "OTEL_EXPORTER_OTLP_INSECURE": "true",
        }
    )
    assert (grpc.url, grpc.insecure) == ("http://host:4317", True)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("true", True), ("SPAN_ONLY", True), ("event_only", False), ("", False), ("1", False)],
)
def test_the_capture_variable(value: str, wanted: bool) -> None:
    name = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
    assert capture_content({name: value}) is wanted


def _marked(tracer: Tracer) -> dict[str, list[str]]:
    """A span with every attribute that there is, each text marked; returns marks by privacy."""
    marks: dict[str, list[str]] = {"exportable": [], "local": [], "content": []}
    values: dict[str, Any] = {}
    for number, (name, one) in enumerate(attr.TABLE.items()):
        mark = f"MARK{number:04d}"
        if one.type in ("string", "strings"):
            values[name] = mark if one.type == "string" else [mark]
            marks[one.privacy].append(mark)
    span = tracer.start_span(names.TURN, attributes=values)
    span.add_event("marked", values)
    span.record_exception(ValueError("MARK-EXCEPTION"))
    span.set_status(StatusCode.ERROR, "MARK-STATUS")
    linked = tracer.start_span(names.WRITE)
    linked.add_link(span.get_span_context(), values)
    linked.end()
    span.end()
    marks["local"].append("MARK-EXCEPTION")
    marks["content"].append("MARK-STATUS")
    assert tracer.flush(10)
    return marks


@pytest.mark.parametrize("content", [False, True])
def test_only_what_is_declared_exportable_is_on_the_wire(
    receiver: Receiver,
    exporter_for: Callable[..., Exporter],
    store_path: Path,
    content: bool,
) -> None:
    tracer = Tracer(
        store_path, {"service.version": "1", "secret.of.caller": "MARK-RESOURCE"}, strict=False
    )
    marks = _marked(tracer)
    # Stored by a version that knows more attributes than this one.
    store = SpanStore(store_path)
    store.connection.execute(
        "UPDATE spans SET attributes = json_set(attributes, '$.\"bdh.of.tomorrow\"', 'MARK-NEW')"
    )
    store.close()
    assert len(marks["local"]) > 5
    assert len(marks["content"]) > 5
    assert exporter_for(receiver, export_content=content).run_once().sent == 2
    wire = b"".join(receiver.raw).decode("utf-8", "replace")
    assert [mark for mark in marks["exportable"] if mark not in wire] == []
    assert [mark for mark in marks["local"] if mark in wire] == []
    leaked = [mark for mark in marks["content"] if mark in wire]
    assert leaked == (marks["content"] if content else [])
    assert "MARK-RESOURCE" not in wire
    assert "MARK-NEW" not in wire
    tracer.shutdown()
