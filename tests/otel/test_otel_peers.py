"""Backends that trickle, flood, lie, or pack a gigabyte into an answer: the lane goes on."""

from __future__ import annotations

import contextlib
import socket
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bdh_bridge.cli import main
from bdh_otel import transport
from bdh_otel.endpoints import Endpoint
from bdh_otel.export import Exporter
from bdh_otel.store import SpanStore
from bdh_otel.tracer import LocalSpan, Tracer
from tests.support.http_peer import Behaviour, Peer, answering

Conversation = Callable[..., LocalSpan]
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\nconnection: close\r\n"


@pytest.fixture
def peer() -> Iterator[Peer]:
    one = Peer(answering(OK + b"content-length: 0\r\n\r\n"))
    yield one
    one.close()


def trickle(start: bytes, drop: bytes) -> Behaviour:
    """A byte now and then, until the other side has had enough."""

    def behave(connection: socket.socket, request: bytes) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(start)
            for _ in range(6_000):
                connection.sendall(drop)
                time.sleep(0.02)

    return behave


@pytest.mark.parametrize(
    ("start", "drop", "outcome"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", "later"),
        (b"HTTP/1.1 200 OK\r\nx: ", b"y", "later"),
        # It has said that it took them; the rest of the answer is not worth a second sending.
        (OK + b"content-length: 9999\r\n\r\n", b"\0", "accepted"),
    ],
    ids=["continues", "headers", "body"],
)
def test_a_trickle_ends_with_the_timeout(
    peer: Peer, start: bytes, drop: bytes, outcome: str
) -> None:
    peer.behaviour = trickle(start, drop)
    sender = transport.connect(Endpoint(f"{peer.url}/v1/traces"))
    answers: list[transport.Answer] = []
    # The drops would go on for two minutes, and every one of them is in time for the socket.
    thread = threading.Thread(target=lambda: answers.append(sender.send(b"x", 0.5)), daemon=True)
    thread.start()
    thread.join(60)
    assert [one.outcome for one in answers] == [outcome]
    peer.behaviour = answering(OK + b"content-length: 0\r\n\r\n")
    assert sender.send(b"x", 30.0).outcome == "accepted"
    sender.close()


def test_an_answer_is_not_unpacked_beyond_its_bounds(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = packer.compress(bytes(32 * 1024**2)) + packer.flush()
    head = OK + f"content-encoding: gzip\r\ncontent-length: {len(packed)}\r\n\r\n".encode()
    peer.behaviour = answering(head + packed)
    seen: list[int] = []
    judge = transport._judge_http
    monkeypatch.setattr(
        transport, "_judge_http", lambda *given: (seen.append(len(given[2])), judge(*given))[1]
    )
    sender = transport.connect(Endpoint(f"{peer.url}/v1/traces"))
    assert sender.send(b"x", 60.0).outcome == "accepted"
    sender.close()
    assert b"accept-encoding: identity" in peer.requests[0].lower()
    assert seen == [65_536]


def test_a_packed_answer_is_still_read(peer: Peer) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = packer.compress(b"\x0a\x02\x08\x03") + packer.flush()  # 3 rejected
    head = OK + f"content-encoding: gzip\r\ncontent-length: {len(packed)}\r\n\r\n".encode()
    peer.behaviour = answering(head + packed)
    sender = transport.connect(Endpoint(f"{peer.url}/v1/traces"))
    assert sender.send(b"x", 60.0) == transport.Answer("accepted", rejected=3)
    sender.close()


def test_more_rejected_than_sent_is_not_believed(
    peer: Peer, tracer: Tracer, store_path: Path, conversation: Conversation
) -> None:
    conversation()
    tracer.flush()
    body = b"\x0a\x06\x08\xff\xff\xff\xff\x0f"  # 4,294,967,295 rejected
    peer.behaviour = answering(OK + f"content-length: {len(body)}\r\n\r\n".encode() + body)
    exporter = Exporter(store_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": peer.url})
    result = exporter.run_once()
    exporter.close()
    assert (result.sent, result.failed, result.waiting) == (0, 9, 0)
    with contextlib.closing(SpanStore(store_path)) as store:
        row = store.connection.execute("SELECT sent, refused FROM cursors").fetchone()
    assert tuple(row) == (0, 9)


def test_a_push_does_not_throw_everything_at_a_backend_that_refuses_it(
    peer: Peer,
    tracer: Tracer,
    store_path: Path,
    conversation: Conversation,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for number in range(6):
        conversation(f"s-{number}", f"t-{number}")
    tracer.flush()
    peer.behaviour = answering(
        b"HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    )
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{peer.url}/v1/traces")
    assert main(["--home", str(store_path.parents[1]), "spans", "push"]) == 1
    assert "20 refused" in capsys.readouterr().out
    with contextlib.closing(SpanStore(store_path)) as store:
        assert store.connection.execute("SELECT seq FROM cursors").fetchone()[0] == 20


def test_a_push_from_a_store_that_can_not_be_read_is_no_success(
    peer: Peer,
    tracer: Tracer,
    store_path: Path,
    conversation: Conversation,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    conversation()
    tracer.shutdown()
    with contextlib.closing(sqlite3.connect(store_path)) as connection:
        connection.execute("PRAGMA user_version=99")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{peer.url}/v1/traces")
    assert main(["--home", str(store_path.parents[1]), "spans", "push"]) == 1
    assert capsys.readouterr().out == "0 spans sent\n"
