"""Several backends at once: how they are named, and that none of them holds up another."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bdh_otel import names
from bdh_otel.endpoints import endpoints
from bdh_otel.export import Exporter
from bdh_otel.tracer import LocalSpan, Tracer
from tests.support.otlp_receiver import GrpcReceiver, HttpReceiver
from tests.support.waiting import eventually

Conversation = Callable[..., LocalSpan]


def test_listed_endpoints_stand_beside_the_standard_one() -> None:
    found = endpoints(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://standard:4318",
            "OTEL_EXPORTER_OTLP_HEADERS": "api-key=of-the-standard-one",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "3",
            "OTEL_EXPORTER_OTLP_CLIENT_KEY": "/standard.key",
            "BDH_OTEL_ENDPOINTS": "http://a:4318/otel/, vendor=grpcs://b:4317\n c=https://c/v1/traces",
            "BDH_OTEL_ENDPOINT_VENDOR_HEADERS": "api-key=of-the-vendor",
            "BDH_OTEL_ENDPOINT_VENDOR_TIMEOUT": "7000",
            "BDH_OTEL_ENDPOINT_C_COMPRESSION": "gzip",
        }
    )
    assert [(one.url, one.protocol, one.insecure, one.name) for one in found] == [
        ("http://standard:4318/v1/traces", "http/protobuf", True, ""),
        ("http://a:4318/otel/v1/traces", "http/protobuf", True, ""),
        ("https://b:4317", "grpc", False, "vendor"),
        ("https://c/v1/traces", "http/protobuf", False, "c"),
    ]
    assert [one.timeout for one in found] == [3, 3, 7, 3], "milliseconds, too, as specified"
    assert [one.compression for one in found] == ["none", "none", "none", "gzip"]
    # Nobody gets another one's key.
    assert [dict(one.headers) for one in found] == [
        {"api-key": "of-the-standard-one"},
        {},
        {"api-key": "of-the-vendor"},
        {},
    ]
    assert [one.client_key for one in found] == ["/standard.key", "", "", ""]


def test_an_endpoint_may_take_one_signal_only() -> None:
    variables = {
        "BDH_OTEL_ENDPOINTS": "jaeger=http://j:4318 prom=http://p:9090/api/v1/otlp both=http://b",
        "BDH_OTEL_ENDPOINT_JAEGER_SIGNALS": "traces",
        "BDH_OTEL_ENDPOINT_PROM_SIGNALS": "metrics",
    }
    assert [one.name for one in endpoints(variables)] == ["jaeger", "both"]
    metrics = endpoints(variables, "metrics")
    assert [one.url for one in metrics] == [
        "http://p:9090/api/v1/otlp/v1/metrics",
        "http://b/v1/metrics",
    ]
    assert [one.label for one in metrics] == ["prom", "both"]
    assert endpoints({**variables, "OTEL_TRACES_EXPORTER": "none"}) == []
    assert len(endpoints({**variables, "OTEL_TRACES_EXPORTER": "console,otlp"})) == 2


def test_an_endpoint_that_is_named_twice_is_sent_to_once() -> None:
    found = endpoints(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318",
            "OTEL_EXPORTER_OTLP_HEADERS": "key=1",
            "BDH_OTEL_ENDPOINTS": "http://a:4318 http://a:4318/v1/traces",
        }
    )
    assert [dict(one.headers) for one in found] == [{"key": "1"}]


def test_what_is_no_url_is_left_out_and_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = endpoints({"BDH_OTEL_ENDPOINTS": "http://u:secret@[ localhost:4318, , http://ok"})
    assert [one.url for one in found] == ["http://ok/v1/traces"]
    assert len(caplog.records) == 2
    assert "secret" not in caplog.text


@contextmanager
def exporting(path: Path, **variables: str) -> Iterator[Exporter]:
    exporter = Exporter(path, variables)
    try:
        yield exporter
    finally:
        exporter.close(10)


def test_every_endpoint_gets_everything(
    http: HttpReceiver, conversation: Conversation, store_path: Path
) -> None:
    conversation()
    grpc = GrpcReceiver()
    try:
        listed = f"{http.url} second=grpc://127.0.0.1:{grpc.port}"
        with exporting(store_path, BDH_OTEL_ENDPOINTS=listed) as exporter:
            result = exporter.run_once()
            assert (result.sent, result.waiting, result.unfinished) == (18, 0, 0)
        assert len(http.spans) == len(grpc.spans) == 9
    finally:
        grpc.close()


def test_a_slow_backend_holds_up_no_other_and_gets_its_time(
    http: HttpReceiver, conversation: Conversation, store_path: Path
) -> None:
    """It answers, but only after our round is over: that is no failure, and nothing is sent to
    it twice."""
    conversation()
    go_on = threading.Event()
    slow = HttpReceiver()
    slow.refuse = lambda request: not go_on.wait(60)
    try:
        with exporting(store_path, BDH_OTEL_ENDPOINTS=f"{slow.url} {http.url}") as exporter:

            def fast_one_has(count: int) -> bool:
                assert exporter.run_once(time.monotonic() + 0.2).unfinished >= 1
                return len(http.spans) == count

            eventually(lambda: fast_one_has(9))
            conversation(turn_id="t-2")
            eventually(lambda: fast_one_has(18))
            with exporting(store_path, BDH_OTEL_ENDPOINTS=http.url) as other:
                assert other.run_once().busy, "a request is still on its way"
            go_on.set()
            eventually(lambda: exporter.run_once().waiting == 0)
        assert len(slow.spans) == 18
        assert len({span.span_id for span in slow.spans}) == 18
        assert len(http.spans) == 18
    finally:
        go_on.set()
        slow.close()


def test_a_batch_that_begins_in_time_may_end_later(
    http: HttpReceiver, tracer: Tracer, store_path: Path
) -> None:
    tracer.start_span(names.ROUTE).end()
    assert tracer.flush(10)
    deadline = time.monotonic() + 3
    http.refuse = lambda request: bool(time.sleep(max(0.0, deadline + 0.1 - time.monotonic())))
    with exporting(store_path, OTEL_EXPORTER_OTLP_ENDPOINT=http.url) as exporter:
        assert exporter.run_once(deadline).sent == 1
    assert len(http.raw) == 1


_SEND = """
import sys, time
from pathlib import Path
from bdh_otel import lane
from bdh_otel.export import Exporter
lane.BATCH = 20
exporter = Exporter(Path(sys.argv[1]), {"OTEL_EXPORTER_OTLP_ENDPOINT": sys.argv[2]})
print(exporter.run_once(time.monotonic() + 60, force=True).waiting)
"""


def test_a_killed_worker_repeats_no_more_than_the_batch_in_flight(
    http: HttpReceiver, tracer: Tracer, store_path: Path
) -> None:
    for number in range(100):
        tracer.start_span(f"span-{number}").end()
    assert tracer.flush(10)
    taken, stuck = threading.Event(), threading.Event()

    def third_hangs(request: object) -> bool:
        if len(http.raw) == 3 and not stuck.is_set():
            taken.set()
            stuck.wait(60)  # it has the spans, and its sender will never know
        return False

    http.refuse = third_hangs
    command = [sys.executable, "-c", _SEND, str(store_path), http.url]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert taken.wait(60)
    worker.kill()
    worker.communicate()
    stuck.set()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "0"
    names = [span.name for span in http.spans]
    assert sorted(set(names), key=lambda name: int(name[5:])) == [f"span-{n}" for n in range(100)]
    twice = {name for name in names if names.count(name) > 1}
    assert twice <= {f"span-{n}" for n in range(40, 60)}
