"""A real OTLP receiver on loopback, over HTTP and gRPC, that can misbehave."""

from __future__ import annotations

import gzip
import threading
import zlib
from collections.abc import Callable
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Receiver:
    """``answers`` are given one after the other, then everything is accepted.

    An answer is (status, headers, body) over HTTP and a ``grpc.StatusCode`` over gRPC.
    ``refuse`` is asked for each request first: True means 400 or INVALID_ARGUMENT.
    Metrics are taken beside that, with answers of their own.
    """

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.refuse: Callable[[ExportTraceServiceRequest], bool] = lambda request: False
        self.raw: list[bytes] = []
        """Bodies of all requests, accepted or not, as bytes after decompression."""
        self.headers: list[dict[str, str]] = []
        self.accepted: list[ExportTraceServiceRequest] = []
        self.metric_answers: list[Any] = []
        self.raw_metrics: list[bytes] = []
        self.accepted_metrics: list[ExportMetricsServiceRequest] = []

    def take_metrics(self, body: bytes) -> Any:
        self.raw_metrics.append(body)
        answer = self.metric_answers.pop(0) if self.metric_answers else None
        if answer is None:
            self.accepted_metrics.append(ExportMetricsServiceRequest.FromString(body))
        return answer

    def metrics(self, index: int = -1) -> dict[str, Any]:
        """The metrics of one accepted report, by name."""
        return {
            metric.name: metric
            for resource in self.accepted_metrics[index].resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def take(self, body: bytes, headers: dict[str, str]) -> Any:
        self.raw.append(body)
        self.headers.append(headers)
        request = ExportTraceServiceRequest.FromString(body)
        if self.refuse(request):
            return "refuse"
        answer = self.answers.pop(0) if self.answers else None
        if answer is None or (isinstance(answer, tuple) and answer[0] == 200):
            self.accepted.append(request)
        return answer

    @property
    def resources(self) -> list[Any]:
        return [one for request in self.accepted for one in request.resource_spans]

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for resource in self.resources
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class HttpReceiver(Receiver):
    def __init__(self, port: int = 0) -> None:
        super().__init__()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                encoding = self.headers.get("content-encoding")
                if encoding:
                    body = gzip.decompress(body) if encoding == "gzip" else zlib.decompress(body)
                headers = {key.lower(): value for key, value in self.headers.items()}
                if self.path.partition("?")[0].endswith("/v1/metrics"):
                    answer = receiver.take_metrics(body)
                else:
                    answer = receiver.take(body, {**headers, ":path": self.path})
                if answer == "refuse":
                    answer = (400, {}, b"")
                status, extra, content = answer or (200, {}, b"")
                self.send_response(status)
                for name, value in extra.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class GrpcReceiver(Receiver):
    def __init__(self) -> None:
        super().__init__()

        def export(body: bytes, context: Any) -> bytes:
            answer = self.take(body, dict(context.invocation_metadata()))
            if answer == "refuse":
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "private words")
            if answer is not None:
                context.abort(answer, "private words")
            return bytes(ExportTraceServiceResponse().SerializeToString())

        def export_metrics(body: bytes, context: Any) -> bytes:
            answer = self.take_metrics(body)
            if answer is not None:
                context.abort(answer, "private words")
            return bytes(ExportMetricsServiceResponse().SerializeToString())

        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        for service, method in (
            ("opentelemetry.proto.collector.trace.v1.TraceService", export),
            ("opentelemetry.proto.collector.metrics.v1.MetricsService", export_metrics),
        ):
            handler = grpc.method_handlers_generic_handler(
                service, {"Export": grpc.unary_unary_rpc_method_handler(method)}
            )
            self._server.add_generic_rpc_handlers((handler,))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self.url = f"http://127.0.0.1:{self.port}"
        self._server.start()

    def close(self) -> None:
        self._server.stop(0).wait()
