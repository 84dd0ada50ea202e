"""``--source otlp``: listens for OTLP, over HTTP (protobuf or JSON) and over gRPC."""

from __future__ import annotations

import threading
import zlib
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from bdh_otel.database import StoreError
from bdh_tui.sources import SourceError
from bdh_tui.sources.feed import FeedSource
from bdh_tui.sources.wire import Batch, from_otlp_json, from_protobuf, loads

DEFAULT_PORT = 4318
MAX_BODY = 32 << 20
#: Seconds for which a client may keep a connection silent.
_IDLE = 60.0


class OtlpSource(FeedSource):
    """HTTP on ``port``, gRPC on the one below, as the standard's 4318 and 4317."""

    def __init__(self, host: str = "127.0.0.1", port: int = DEFAULT_PORT) -> None:
        super().__init__(f"otlp {host}:{port} (gRPC {port - 1})")
        self.host, self.port = host, port
        self._http: ThreadingHTTPServer | None = None
        self._grpc: Any = None

    def start(self) -> None:
        try:
            self._http = _Server((self.host, self.port), _Handler, self)
        except OSError as error:
            self.stop()
            raise SourceError(f"can't listen on {self.host}:{self.port}: {error}") from error
        self._grpc = self._start_grpc()
        threading.Thread(target=self._http.serve_forever, name="bdh-tui-otlp", daemon=True).start()

    def stop(self) -> None:
        if self._http is not None:
            # Shutting down waits for the serving loop's next look at most.
            threading.Thread(target=self._http.shutdown, daemon=True).start()
            self._http.server_close()
            self._http = None
        if self._grpc is not None:
            self._grpc.stop(grace=0.2)
            self._grpc = None
        super().stop()

    def _start_grpc(self) -> Any:
        import grpc
        from opentelemetry.proto.collector.trace.v1 import (
            trace_service_pb2,
            trace_service_pb2_grpc,
        )

        source = self

        class Service(trace_service_pb2_grpc.TraceServiceServicer):
            def Export(self, request: Any, context: Any) -> Any:
                try:
                    source.take(from_protobuf(request))
                except StoreError as error:
                    # The client keeps them and comes again.
                    context.abort(grpc.StatusCode.UNAVAILABLE, error.reason)
                return trace_service_pb2.ExportTraceServiceResponse()

        server = grpc.server(
            futures.ThreadPoolExecutor(2, thread_name_prefix="bdh-tui-grpc"),
            options=(("grpc.max_receive_message_length", MAX_BODY), ("grpc.so_reuseport", 0)),
        )
        add: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
        add(Service(), server)
        address = f"{self.host}:{self.port - 1}"
        try:
            server.add_insecure_port(address)
        except RuntimeError as error:
            self.stop()
            raise SourceError(f"can't listen on {address} for gRPC: {error}") from error
        server.start()
        return server


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: Any, source: OtlpSource) -> None:
        self.source = source
        super().__init__(address, handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no news, and stderr belongs to the screen."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE
    server: _Server
    _SIGNALS: ClassVar[frozenset[str]] = frozenset({"/v1/metrics", "/v1/logs"})

    def do_POST(self) -> None:
        try:
            body = self._body()
        except ValueError as error:
            self._answer(413 if "large" in str(error) else 400, b"")
            self.close_connection = True
            return
        if self.path in self._SIGNALS:  # taken, so that their exporter doesn't complain
            self._answer(200, b"{}" if self._is_json() else b"")
        elif self.path != "/v1/traces":
            self._answer(404, b"")
        else:
            self._traces(body)

    def _traces(self, body: bytes) -> None:
        try:
            batch = self._decoded(body)
        except ValueError:
            self._answer(400, b"")
            return
        try:
            self.server.source.take(batch)
        except StoreError:
            self._answer(503, b"")  # the client keeps them and comes again
            return
        self._answer(200, b"{}" if self._is_json() else b"")

    def _decoded(self, body: bytes) -> Batch:
        if self._is_json():
            return from_otlp_json(loads(body))
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        try:
            return from_protobuf(ExportTraceServiceRequest.FromString(body))
        except DecodeError as error:
            raise ValueError("no OTLP") from error

    def _body(self) -> bytes:
        """Raises: ValueError for a body that is too large, absent or damaged."""
        length = int(self.headers.get("Content-Length", ""))
        if length < 0:
            raise ValueError("no length")  # reading would go on until the client leaves
        if length > MAX_BODY:
            raise ValueError("too large")
        body = self.rfile.read(length)
        encoding = self.headers.get("Content-Encoding", "")
        if encoding not in ("gzip", "deflate"):
            return body
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
        try:
            unpacked = unpacker.decompress(body, MAX_BODY)
        except zlib.error as error:
            raise ValueError("damaged") from error
        if unpacker.unconsumed_tail:
            raise ValueError("too large")
        if not unpacker.eof:
            raise ValueError("cut off")
        return unpacked

    def _is_json(self) -> bool:
        return "json" in self.headers.get("Content-Type", "")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        kind = "application/json" if self._is_json() else "application/x-protobuf"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the library's own name)
        """stderr belongs to the screen."""
