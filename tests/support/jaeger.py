"""The real Jaeger, built from its Go modules by ``scripts/test-jaeger``, on loopback.

Jaeger 2 is a Collector with Jaeger's own components beside the usual ones, so the same program
also runs the Collector's configuration that the project ships.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

VERSION = "1.76.0"
READER_VERSION = "0.140.1"
START_SECONDS = 60.0

_CONFIG = """
extensions:
  jaeger_storage: {backends: {memory: {memory: {max_traces: 10000}}}}
  jaeger_query:
    storage: {traces: memory}
    http: {endpoint: "127.0.0.1:%(query)d"}
    grpc: {endpoint: "127.0.0.1:%(query_grpc)d"}
receivers:
  otlp:
    protocols:
      grpc: {endpoint: "127.0.0.1:%(grpc)d"}
      http: {endpoint: "127.0.0.1:%(http)d"}
exporters:
  jaeger_storage_exporter: {trace_storage: memory}
service:
  extensions: [jaeger_storage, jaeger_query]
  pipelines: {traces: {receivers: [otlp], exporters: [jaeger_storage_exporter]}}
  telemetry: {metrics: {level: none}, logs: {level: warn}}
"""


def program() -> Path:
    """Where Jaeger lies; skips the test if there is none."""
    return _built(f"jaeger-{VERSION}")


def line_reader() -> Path:
    """What the Collector's file receiver is made of, as a program (``otlpjsonfile/main.go``)."""
    return _built(f"otlpjsonfile-{READER_VERSION}")


def _built(name: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = cache / "bdh-hermes-bridge" / "jaeger" / name
    if not os.access(path, os.X_OK):
        pytest.skip(f"no {name}: ./scripts/test-jaeger builds it (with Go)")
    return path


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


@contextlib.contextmanager
def run_collector(
    config: Path, log: Path, environ: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """The program with ``config``; ends with the block. Says in ``log`` what went wrong."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(program()), "--config", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ.get("PATH", ""), **(environ or {})},
        )
        try:
            yield process
        finally:
            # It keeps nothing, and would wait for connections that are kept open.
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Jaeger:
    """``http`` and ``grpc`` are its OTLP endpoints."""

    http: str
    grpc: str
    query: str

    def trace(self, trace_id: str) -> list[dict[str, Any]]:
        """The spans of a trace as the query API has them, or none; tags as a dictionary, and
        the process put in."""
        answer = httpx.get(f"{self.query}/api/traces/{trace_id}", timeout=30)
        if answer.status_code == 404:
            return []
        answer.raise_for_status()
        spans = []
        for trace in answer.json()["data"] or []:
            for span in trace["spans"]:
                process = trace["processes"][span["processID"]]
                spans.append(
                    {
                        **span,
                        "tags": {tag["key"]: tag["value"] for tag in span["tags"]},
                        "service": process["serviceName"],
                        "resource": {tag["key"]: tag["value"] for tag in process["tags"]},
                    }
                )
        return spans

    def wait_for(self, trace_id: str, count: int) -> list[dict[str, Any]]:
        deadline = time.monotonic() + 60
        while True:
            spans = self.trace(trace_id)
            if len(spans) >= count:
                return spans
            assert time.monotonic() < deadline, (
                f"{len(spans)} of {count} spans: {json.dumps(spans)}"
            )
            time.sleep(0.1)


@contextlib.contextmanager
def running_jaeger(folder: Path, ports: list[int] | None = None) -> Iterator[Jaeger]:
    """``ports``: of the query API over HTTP and gRPC, of OTLP over gRPC and HTTP."""
    query, query_grpc, grpc, http = ports or free_ports(4)
    config = folder / "jaeger.yaml"
    config.write_text(
        _CONFIG % {"query": query, "query_grpc": query_grpc, "grpc": grpc, "http": http}
    )
    log = folder / "jaeger.log"
    with run_collector(config, log) as process:
        wait_until_listening([query, grpc, http], process, log)
        yield Jaeger(
            f"http://127.0.0.1:{http}", f"http://127.0.0.1:{grpc}", f"http://127.0.0.1:{query}"
        )


def wait_until_listening(ports: list[int], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    waiting = list(ports)
    while waiting:
        assert process.poll() is None, log.read_text(errors="replace")
        assert time.monotonic() < deadline, log.read_text(errors="replace")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", waiting[0]), 1):
            waiting.pop(0)
            continue
        time.sleep(0.05)
