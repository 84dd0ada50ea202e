"""One request to an OTLP receiver, over HTTP or gRPC, and what its answer means.

A request is made once: when to try again is the exporter's business, which keeps the spans.
"""

from __future__ import annotations

import contextlib
import email.utils
import gzip
import math
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from bdh_otel.endpoints import Endpoint

#: HTTP answers that say that these spans will never be accepted. Others (a missing token, a
#: wrong path, an overload) can be mended while the spans wait.
_REFUSALS = frozenset({400, 413, 422})
_MAX_ANSWER = 65_536
_GRPC_METHODS = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """``later``: the same spans may be accepted another time; ``refused``: never.

    ``detail`` names the reason without anything that the peer said. ``retry_after`` is in
    seconds. ``rejected`` spans (or data points) of an accepted request were not taken (partial
    success). ``unsupported``: the receiver knows no such signal.
    """

    outcome: Literal["accepted", "refused", "later"]
    detail: str = ""
    retry_after: float | None = None
    rejected: int = 0
    unsupported: bool = False


class Transport(Protocol):
    def send(self, body: bytes, timeout: float) -> Answer:
        """Send an encoded request of the endpoint's signal; never raises for what a peer does."""
        ...

    def close(self) -> None: ...


def connect(endpoint: Endpoint) -> Transport:
    """Raises: OSError, ValueError or ssl.SSLError if a certificate can't be used."""
    return GrpcTransport(endpoint) if endpoint.protocol == "grpc" else HttpTransport(endpoint)


class HttpTransport:
    def __init__(self, endpoint: Endpoint) -> None:
        import httpx

        self._httpx = httpx
        self._endpoint = endpoint
        # Answers are small; one that is packed anyway is unpacked within bounds.
        self._headers = {
            **endpoint.headers,
            "content-type": "application/x-protobuf",
            "accept-encoding": "identity",
        }
        if endpoint.compression != "none":
            self._headers["content-encoding"] = endpoint.compression
        verify: ssl.SSLContext | bool = True
        if endpoint.certificate or endpoint.client_certificate:
            verify = ssl.create_default_context(cafile=endpoint.certificate or None)
            if endpoint.client_certificate:
                verify.load_cert_chain(endpoint.client_certificate, endpoint.client_key or None)
        # One connection: the one that is cut is the one in use.
        limits = httpx.Limits(max_connections=1)
        self._client = httpx.Client(verify=verify, follow_redirects=False, limits=limits)
        self._wire = _Wire()

    def send(self, body: bytes, timeout: float) -> Answer:
        answer, response = bytearray(), None
        with self._wire.cut_after(timeout) as overdue:
            try:
                with self._client.stream(
                    "POST",
                    self._endpoint.url,
                    content=self._compressed(body),
                    headers=self._headers,
                    timeout=timeout,
                    extensions={"trace": self._wire.trace},
                ) as response:
                    for chunk in response.iter_raw():
                        answer += chunk
                        if len(answer) > _MAX_ANSWER:
                            break
            except (self._httpx.HTTPError, self._httpx.InvalidURL, OSError) as error:
                if not overdue.is_set():
                    return Answer("later", type(error).__name__)
            except UnicodeEncodeError:
                return Answer("later", "a header that can't be sent")
        if response is None:
            return Answer("later", "no answer in time")
        # The verdict stands in the first line, whatever became of the rest.
        body = _unpacked(response.headers.get("content-encoding", ""), bytes(answer))
        return _judge_http(response.status_code, response.headers, body)

    def _compressed(self, body: bytes) -> bytes:
        if self._endpoint.compression == "gzip":
            return gzip.compress(body, 6)
        return zlib.compress(body) if self._endpoint.compression == "deflate" else body

    def close(self) -> None:
        self._client.close()


class _Wire:
    """The connection in use, so that it can be cut: timeouts of a socket are for each operation,
    and a peer that sends a byte now and then would hold the worker for hours."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """httpcore's ``trace`` extension."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")

    @contextlib.contextmanager
    def cut_after(self, seconds: float) -> Iterator[threading.Event]:
        """The event is set when the time was up."""
        overdue = threading.Event()
        timer = threading.Timer(seconds, self._cut, (overdue,))
        timer.daemon = True
        timer.start()
        try:
            yield overdue
        finally:
            timer.cancel()

    def _cut(self, overdue: threading.Event) -> None:
        overdue.set()
        with self._lock, contextlib.suppress(OSError, ValueError):
            if self._socket is not None:
                # Below TLS, whose own shutdown is not for a second thread.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class GrpcTransport:
    def __init__(self, endpoint: Endpoint) -> None:
        import grpc

        self._grpc = grpc
        self._metadata = tuple(endpoint.headers.items())
        target = endpoint.url.partition("://")[2].partition("/")[0]
        compression = {
            "gzip": grpc.Compression.Gzip,
            "deflate": grpc.Compression.Deflate,
        }.get(endpoint.compression, grpc.Compression.NoCompression)
        # No retries below ours, and no service configuration looked up for each target.
        options = (("grpc.enable_retries", 0), ("grpc.service_config_disable_resolution", 1))
        if endpoint.insecure:
            self._channel = grpc.insecure_channel(target, options, compression)
        else:
            credentials = grpc.ssl_channel_credentials(
                _read(endpoint.certificate),
                _read(endpoint.client_key),
                _read(endpoint.client_certificate),
            )
            self._channel = grpc.secure_channel(target, credentials, options, compression)
        # The body is already encoded, so it passes as it is.
        self._export = self._channel.unary_unary(_GRPC_METHODS[endpoint.signal])

    def send(self, body: bytes, timeout: float) -> Answer:
        grpc = self._grpc
        try:
            answer = self._export(body, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            code = error.code()
            refusals = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE)
            outcome: Literal["refused", "later"] = "refused" if code in refusals else "later"
            return Answer(
                outcome,
                code.name,
                _grpc_delay(error.trailing_metadata()),
                unsupported=code is grpc.StatusCode.UNIMPLEMENTED,
            )
        except (ValueError, TypeError):
            return Answer("later", "a header that can't be sent")
        return Answer("accepted", rejected=_rejected(answer))

    def close(self) -> None:
        self._channel.close()


def _judge_http(status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    if 200 <= status < 300:
        # A page of some other server is no receipt.
        if "html" in headers.get("content-type", ""):
            return Answer("later", "the endpoint is no OTLP receiver")
        return Answer("accepted", rejected=_rejected(body))
    outcome: Literal["refused", "later"] = "refused" if status in _REFUSALS else "later"
    return Answer(
        outcome,
        f"HTTP {status}",
        _http_delay(headers.get("retry-after", "")),
        unsupported=status in (404, 405, 501),
    )


def _unpacked(encoding: str, body: bytes) -> bytes:
    """The start of an answer, at most ``_MAX_ANSWER`` bytes of it; empty if it can't be had."""
    if not encoding or encoding.strip().lower() == "identity":
        return body
    try:
        return zlib.decompressobj(wbits=47).decompress(body, _MAX_ANSWER)
    except zlib.error:
        return b""


def _rejected(body: bytes) -> int:
    """``partial_success.rejected_spans`` of an ``ExportTraceServiceResponse``; the answer to
    metrics has the same layout, with data points in its place."""
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceResponse,
    )

    try:
        response = ExportTraceServiceResponse.FromString(body)
    except DecodeError:  # JSON, or something else that means well
        return 0
    return max(0, int(response.partial_success.rejected_spans))


def _http_delay(value: str) -> float | None:
    """``Retry-After``: seconds, or a date."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (TypeError, ValueError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _grpc_delay(metadata: Any) -> float | None:
    """``google.rpc.RetryInfo`` of the status details, where a receiver sends it."""
    for key, value in metadata or ():
        if key == "google.rpc.retryinfo-bin":
            from google.protobuf.message import DecodeError
            from google.rpc.error_details_pb2 import RetryInfo

            try:
                delay = RetryInfo.FromString(value).retry_delay
            except DecodeError:
                return None
            return float(delay.seconds + delay.nanos / 1e9)
    return None


def _read(path: str) -> bytes | None:
    if not path:
        return None
    with open(path, "rb") as file:  # noqa: PTH123 - a str from the environment
        return file.read()
