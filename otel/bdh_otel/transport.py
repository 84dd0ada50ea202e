"""One request to an OTLP receiver, over HTTP or gRPC, and what its answer means.

A request is made once: when to try again is the exporter's business, which keeps the spans.
"""

from __future__ import annotations

import email.utils
import gzip
import math
import ssl
import time
import zlib
from collections.abc import Mapping
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
        self._headers = {**endpoint.headers, "content-type": "application/x-protobuf"}
        if endpoint.compression != "none":
            self._headers["content-encoding"] = endpoint.compression
        verify: ssl.SSLContext | bool = True
        if endpoint.certificate or endpoint.client_certificate:
            verify = ssl.create_default_context(cafile=endpoint.certificate or None)
            if endpoint.client_certificate:
                verify.load_cert_chain(endpoint.client_certificate, endpoint.client_key or None)
        self._client = httpx.Client(verify=verify, follow_redirects=False)

    def send(self, body: bytes, timeout: float) -> Answer:
        deadline = time.monotonic() + timeout
        try:
            with self._client.stream(
                "POST",
                self._endpoint.url,
                content=self._compressed(body),
                headers=self._headers,
                timeout=timeout,
            ) as response:
                answer = bytearray()
                for chunk in response.iter_bytes(4_096):
                    answer += chunk
                    if len(answer) > _MAX_ANSWER or time.monotonic() > deadline:
                        break
        except (self._httpx.HTTPError, self._httpx.InvalidURL, OSError) as error:
            return Answer("later", type(error).__name__)
        except UnicodeEncodeError:
            return Answer("later", "a header that can't be sent")
        return _judge_http(response.status_code, response.headers, bytes(answer))

    def _compressed(self, body: bytes) -> bytes:
        if self._endpoint.compression == "gzip":
            return gzip.compress(body, 6)
        return zlib.compress(body) if self._endpoint.compression == "deflate" else body

    def close(self) -> None:
        self._client.close()


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
            from google.rpc.error_details_pb2 import RetryInfo

            delay = RetryInfo.FromString(value).retry_delay
            return float(delay.seconds + delay.nanos / 1e9)
    return None


def _read(path: str) -> bytes | None:
    if not path:
        return None
    with open(path, "rb") as file:  # noqa: PTH123 - a str from the environment
        return file.read()
