"""Export to a real OTLP receiver: what arrives, what must not, and what a bad backend costs."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from bdh_otel import attributes as attr
from bdh_otel import lane, names
from bdh_otel.abandoned import close_abandoned
from bdh_otel.endpoints import endpoints
from bdh_otel.export import Exporter
from bdh_otel.store import SpanStore
from bdh_otel.tracer import LocalSpan, Tracer
from tests.support.otlp_receiver import GrpcReceiver, HttpReceiver, Receiver

Conversation = Callable[..., LocalSpan]


def attributes(span: Any) -> dict[str, Any]:
    found = {}
    for item in span.attributes:
        kind = item.value.WhichOneof("value")
        value = getattr(item.value, kind)
        if kind == "array_value":
            value = [one.string_value for one in value.values]
        found[item.key] = value
    return found


def test_a_conversation_arrives_whole(
    receiver: Receiver, exporter_for: Callable[..., Exporter], conversation: Conversation
) -> None:
    root = conversation()
    exporter = exporter_for(receiver, OTEL_RESOURCE_ATTRIBUTES="team=graph,deployment=a%20b")
    result = exporter.run_once()
    assert (result.sent, result.failed, result.waiting, result.retry_at) == (9, 0, 0, None)
    spans = {span.name: span for span in receiver.spans}
    assert len(receiver.spans) == 9
    turn, chat = spans[names.TURN], spans["chat router-model"]
    assert turn.trace_id.hex() == f"{root.trace_id:032x}"
    assert (turn.parent_span_id, chat.parent_span_id) == (b"", turn.span_id)
    assert (turn.kind, chat.kind) == (1, 3)  # OTLP's INTERNAL and CLIENT
    assert turn.end_time_unix_nano == root.end_ns
    assert (turn.status.code, chat.status.code) == (0, 2)
    assert chat.status.message == ""
    assert attributes(chat) == {
        "gen_ai.conversation.id": "s-1",
        "bdh.turn.id": "t-1",
        "bdh.platform": "cli",
        "gen_ai.request.model": "router-model",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openrouter",
        "bdh.hop.index": 1,
        "bdh.hop.outcome": "timeout",
        "error.type": "timeout",
    }
    assert attributes(spans["retrieval notes"])[attr.RETRIEVAL_HYBRID_TOP] == 0.8061
    (resource,) = receiver.resources
    described = attributes(resource.resource)
    assert described["service.name"] == "hermes-bdh-bridge"
    assert described["service.version"] == "1.2.3"
    assert (described["team"], described["deployment"]) == ("graph", "a b")
    assert set(described) - {"team", "deployment"} <= set(attr.RESOURCE)
    assert resource.schema_url == attr.SCHEMA_URL
    assert (resource.scope_spans[0].scope.name, resource.scope_spans[0].scope.version) == (
        "bdh_bridge",
        "1.2.3",
    )
    # Nothing is sent twice, and what is new is sent.
    assert exporter.run_once().sent == 0
    conversation(turn_id="t-2")
    assert exporter.run_once().sent == 9
    assert len({span.span_id for span in receiver.spans}) == 18


def test_open_spans_wait_for_their_end(
    http: HttpReceiver, exporter_for: Callable[..., Exporter], tracer: Tracer
) -> None:
    turn = tracer.start_span(names.TURN)
    turn.save_provisional()
    tracer.start_span(names.ROUTE, parent=turn).end()
    assert tracer.flush(10)
    exporter = exporter_for(http)
    result = exporter.run_once()
    assert (result.sent, result.waiting) == (1, 0)
    assert exporter.run_once().sent == 0
    turn.end()
    assert tracer.flush(10)
    assert exporter.run_once().sent == 1
    assert [span.name for span in http.spans] == [names.ROUTE, names.TURN]


def test_abandoned_turns_are_sent_once_closed(
    http: HttpReceiver, exporter_for: Callable[..., Exporter], tracer: Tracer, store_path: Path
) -> None:
    turn = tracer.start_span(names.TURN)
    turn.save_provisional()
    assert tracer.flush(10)
    exporter = exporter_for(http)
    assert exporter.run_once().sent == 0
    store = SpanStore(store_path)
    assert close_abandoned(store, lambda process: False) == 1
    store.close()
    turn.end()
    assert tracer.flush(10)
    assert exporter.run_once().sent == 1
    assert exporter.run_once().sent == 0
    assert attributes(http.spans[0])[attr.TURN_CLOSE_REASON] == "process_died"


def test_after_an_outage_everything_arrives_once_and_in_order(
    exporter_for: Callable[..., Exporter],
    tracer: Tracer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(lane, "BATCH", 50)
    receiver = HttpReceiver()
    port = receiver.port
    receiver.close()  # the port is free again: connections are refused
    exporter = exporter_for(receiver)
    expected = []
    with caplog.at_level(logging.WARNING):
        for number in range(10):
            for index in range(20):
                tracer.start_span(f"{number}-{index}").end()
                expected.append(f"{number}-{index}")
            assert tracer.flush(10)
            result = exporter.run_once(force=True)
            assert (result.sent, result.waiting) == (0, 20 * (number + 1))
            assert result.retry_at is not None
    assert len([r for r in caplog.records if "can't be sent" in r.getMessage()]) == 1
    # Backing off: not due yet, so nothing is tried.
    receiver = HttpReceiver(port)
    try:
        assert exporter.run_once().sent == 0
        assert receiver.raw == []
        result = exporter.run_once(force=True)
        assert (result.sent, result.waiting, result.retry_at) == (200, 0, None)
        assert [span.name for span in receiver.spans] == expected
    finally:
        receiver.close()


def test_a_dead_endpoint_holds_up_no_other(
    http: HttpReceiver, exporter_for: Callable[..., Exporter], conversation: Conversation
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = endpoints(
            {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free.getsockname()[1]}"}
        )
    exporter = exporter_for(http)
    exporter.endpoints = [*dead, *exporter.endpoints]
    conversation()
    result = exporter.run_once()
    assert (result.sent, result.waiting) == (9, 9)
    assert result.retry_at is not None
    assert len(http.spans) == 9


def test_a_backend_that_never_answers_costs_its_timeout_and_no_more(
    exporter_for: Callable[..., Exporter], conversation: Conversation
) -> None:
    class Silent:
        def __init__(self, port: int) -> None:
            self.url = f"http://127.0.0.1:{port}"

    conversation()
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        exporter = exporter_for(Silent(server.getsockname()[1]), OTEL_EXPORTER_OTLP_TIMEOUT="0.2")
        before = time.monotonic()
        result = exporter.run_once()
        assert (result.sent, result.waiting) == (0, 9)
        assert 0.2 <= time.monotonic() - before < 30


@pytest.mark.parametrize("status", [429, 500, 503, 401, 404, 302])
def test_answers_that_may_change_keep_the_spans(
    http: HttpReceiver,
    exporter_for: Callable[..., Exporter],
    conversation: Conversation,
    status: int,
) -> None:
    conversation()
    http.answers = [(status, {"retry-after": "120"}, b"private words of the peer")]
    exporter = exporter_for(http)
    result = exporter.run_once()
    assert (result.sent, result.failed, result.waiting) == (0, 0, 9)
    assert result.retry_at is not None
    assert 100 < result.retry_at - time.time() <= 120
    assert len(http.raw) == 1  # one attempt, no sleeping inside
    assert exporter.run_once().sent == 0
    assert exporter.run_once(force=True).sent == 9


def test_an_html_page_is_no_receipt(
    http: HttpReceiver, exporter_for: Callable[..., Exporter], conversation: Conversation
) -> None:
    conversation()
    http.answers = [(200, {"content-type": "text/html"}, b"<html>login</html>")]
    assert exporter_for(http).run_once().sent == 0


def test_partial_success_is_counted(
    http: HttpReceiver, exporter_for: Callable[..., Exporter], conversation: Conversation
) -> None:
    conversation()
    partial = ExportTraceServiceResponse()
    partial.partial_success.rejected_spans = 2
    http.answers = [(200, {}, partial.SerializeToString())]
    result = exporter_for(http).run_once()
    assert (result.sent, result.failed, result.waiting) == (7, 2, 0)


def test_a_span_that_is_refused_for_good_is_found_and_left_out(
    receiver: Receiver, exporter_for: Callable[..., Exporter], tracer: Tracer
) -> None:
    for number in range(40):
        tracer.start_span("poison" if number == 17 else "good").end()
    assert tracer.flush(10)
    receiver.refuse = lambda request: "poison" in str(request)
    result = exporter_for(receiver).run_once()
    assert (result.sent, result.failed, result.waiting, result.retry_at) == (39, 1, 0, None)
    assert [span.name for span in receiver.spans] == ["good"] * 39


def test_a_backend_that_refuses_everything_is_not_flooded(
    http: HttpReceiver, exporter_for: Callable[..., Exporter], tracer: Tracer
) -> None:
    for _ in range(500):
        tracer.start_span("a").end()
    assert tracer.flush(10)
    http.refuse = lambda request: True
    result = exporter_for(http).run_once()
    assert result.waiting > 400
    assert result.retry_at is not None
    assert len(http.raw) < 100


def test_grpc_failures_keep_the_spans(
    exporter_for: Callable[..., Exporter], conversation: Conversation
) -> None:
    import grpc

    conversation()
    receiver = GrpcReceiver()
    try:
        receiver.answers = [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED]
        exporter = exporter_for(receiver)
        for _ in range(2):
            assert exporter.run_once(force=True).waiting == 9
        assert exporter.run_once(force=True).sent == 9
        assert len(receiver.raw) == 3
    finally:
        receiver.close()


def test_headers_compression_and_paths(
    receiver: Receiver, exporter_for: Callable[..., Exporter], conversation: Conversation
) -> None:
    conversation()
    more = {
        "OTEL_EXPORTER_OTLP_HEADERS": "Api-Key=a%20b, x-other = 1",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
    }
    assert exporter_for(receiver, **more).run_once().sent == 9
    assert receiver.headers[0]["api-key"] == "a b"
    assert receiver.headers[0]["x-other"] == "1"
    if isinstance(receiver, HttpReceiver):
        assert receiver.headers[0]["content-encoding"] == "gzip"
        assert receiver.headers[0]["content-type"] == "application/x-protobuf"
        assert receiver.headers[0][":path"] == "/v1/traces"


def test_a_new_endpoint_gets_the_last_hour(
    http: HttpReceiver, exporter_for: Callable[..., Exporter], tracer: Tracer
) -> None:
    old = int((time.time() - 7_200) * 1e9)
    tracer.start_span("old", start_time=old).end(end_time=old + 1)
    tracer.start_span("young").end()
    assert tracer.flush(10)
    assert exporter_for(http).run_once().sent == 1
    assert [span.name for span in http.spans] == ["young"]


def test_cursors_survive_the_process(
    http: HttpReceiver, exporter_for: Callable[..., Exporter], conversation: Conversation
) -> None:
    conversation()
    assert exporter_for(http).run_once().sent == 9
    assert exporter_for(http).run_once().sent == 0
    # Another endpoint has a cursor of its own.
    assert exporter_for(http, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{http.url}/b").run_once().sent


def test_only_one_process_exports_at_a_time(
    http: HttpReceiver, exporter_for: Callable[..., Exporter], conversation: Conversation
) -> None:
    conversation()
    first, second = exporter_for(http), exporter_for(http)
    assert first._alone()
    assert second.run_once().busy
    first._release_when_idle()
    assert not second.run_once().busy


def test_a_certificate_that_is_not_there_is_a_failure_like_any_other(
    http: HttpReceiver, exporter_for: Callable[..., Exporter], conversation: Conversation
) -> None:
    conversation()
    exporter = exporter_for(http, OTEL_EXPORTER_OTLP_CERTIFICATE="/nowhere/ca.pem")
    result = exporter.run_once()
    assert (result.sent, result.waiting) == (0, 9)
    assert result.retry_at is not None


def test_a_damaged_store_raises_nothing(
    http: HttpReceiver, exporter_for: Callable[..., Exporter], store_path: Path
) -> None:
    SpanStore(store_path).close()
    store_path.write_bytes(b"\xff" * 8_192)
    result = exporter_for(http).run_once()
    assert result.sent == 0
    assert result.retry_at is not None
