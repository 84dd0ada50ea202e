"""One exchange with a provider that behaves, and with each kind that does not."""

from __future__ import annotations

import email.utils
import gzip
import json
import socket
import threading
import time
from typing import Any

import pytest

from bdh_bridge.routing.chat import (
    BODY_LIMIT,
    ChatReply,
    ChatRequest,
    is_loopback,
    post_chat,
    retry_after,
    within,
)
from bdh_bridge.routing.hop import HopError, HopOutcome
from tests.routing.conftest import MakeServer
from tests.support import model_server as ms

MESSAGES = [{"role": "system", "content": "sort"}, {"role": "user", "content": "ciao — è qui?"}]
PATIENT = 30.0


def ask(url: str, seconds: float = PATIENT, **fields: Any) -> ChatReply:
    request = ChatRequest(url, "small-model", MESSAGES, **fields)
    return within(seconds, lambda exchange: post_chat(request, seconds, exchange))


def failure(url: str, seconds: float = PATIENT, **fields: Any) -> HopError:
    with pytest.raises(HopError) as caught:
        ask(url, seconds, **fields)
    return caught.value


def no_thread_left() -> bool:
    """Whether every exchange ended, the abandoned ones too."""
    deadline = time.monotonic() + PATIENT
    while time.monotonic() < deadline:
        if not any(thread.name == "bdh-rewrite" for thread in threading.enumerate()):
            return True
        time.sleep(0.01)
    return False


def test_a_completion_is_asked_for_and_read(server: MakeServer) -> None:
    peer = server(ms.answer("the text"))
    reply = ask(peer.url, api_key="sk-1", headers={"X-Title": "Bridge"})
    assert reply == ChatReply("the text", "served-model", "stop", 812, 77)
    (request,) = peer.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer sk-1"
    assert request.headers["x-title"] == "Bridge"
    assert request.body["messages"] == MESSAGES
    assert request.body["model"] == "small-model"
    assert request.body["stream"] is False
    assert request.body["temperature"] == 0
    assert request.body["response_format"] == {"type": "json_object"}


def test_no_key_and_no_json_mode_are_not_sent(server: MakeServer) -> None:
    peer = server(ms.answer("x"))
    ask(peer.url, json_mode=False)
    assert "authorization" not in peer.requests[0].headers
    assert "response_format" not in peer.requests[0].body


def test_content_in_blocks_is_joined(server: MakeServer) -> None:
    blocks = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    peer = server(ms.body(json.dumps(ms.completion(blocks)).encode()))
    assert ask(peer.url).text == "one\ntwo"


def test_a_stream_that_nobody_asked_for_is_put_together(server: MakeServer) -> None:
    text = json.dumps(ms.ANSWER, ensure_ascii=False)
    assert ask(server(ms.stream(text)).url) == ChatReply(text, "served-model", "stop", 5, 6)


@pytest.mark.parametrize(
    "declared", ["application/json; charset=utf-16", "text/plain; charset=nonsense", "x"]
)
def test_json_is_utf8_whatever_the_header_says(server: MakeServer, declared: str) -> None:
    data = json.dumps(ms.completion("è già così"), ensure_ascii=False).encode()
    assert ask(server(ms.body(data, content_type=declared)).url).text == "è già così"


def test_the_declared_charset_counts_where_it_is_not_utf8(server: MakeServer) -> None:
    data = json.dumps(ms.completion("già"), ensure_ascii=False).encode("latin-1")
    declared = "application/json; charset=iso-8859-1"
    assert ask(server(ms.body(data, content_type=declared)).url).text == "già"
    assert ask(server(ms.body(data)).url).text == "gi\ufffd"


@pytest.mark.parametrize(
    ("reply", "outcome", "status"),
    [
        (ms.rate_limited(), HopOutcome.RATE_LIMITED, 429),
        (ms.body(b"oops", 500), HopOutcome.HTTP_ERROR, 500),
        (ms.body(b"\xff\xfe" * 9_000, 502), HopOutcome.HTTP_ERROR, 502),
        (ms.body(b"{}", 401), HopOutcome.HTTP_ERROR, 401),
        (ms.body(b"", 302, location="http://127.0.0.1:9/"), HopOutcome.HTTP_ERROR, 302),
        (ms.body(b'{"choices": []}', 204), HopOutcome.HTTP_ERROR, 204),
        (ms.html(), HopOutcome.INVALID_JSON, 200),
        (ms.body(b'{"choices": [{"mess'), HopOutcome.INVALID_JSON, 200),
        (ms.body(b"[" * 50_000), HopOutcome.INVALID_JSON, 200),
        (ms.body(b'"text"'), HopOutcome.INVALID_JSON, 200),
        (ms.body(b"data: {broken\n\n"), HopOutcome.INVALID_JSON, 200),
        (ms.body(b""), HopOutcome.EMPTY, 200),
        (ms.body(b"{}"), HopOutcome.EMPTY, 200),
        (ms.body(b'{"choices": []}'), HopOutcome.EMPTY, 200),
        (ms.body(b'{"choices": [null]}'), HopOutcome.EMPTY, 200),
        (ms.body(b'{"choices": {"a": 1}}'), HopOutcome.EMPTY, 200),
        (ms.answer(""), HopOutcome.EMPTY, 200),
        (ms.answer(None), HopOutcome.EMPTY, 200),
        (ms.body(b": ping\n\ndata: [DONE]\n\n"), HopOutcome.EMPTY, 200),
        (ms.body(b'{"error": {"code": 429, "message": "busy"}}'), HopOutcome.RATE_LIMITED, 429),
        (ms.body(b'{"error": {"code": "x", "message": "no"}}'), HopOutcome.HTTP_ERROR, 200),
        (ms.oversized(), HopOutcome.TOO_LARGE, 200),
        (ms.close_at_once(), HopOutcome.NETWORK, None),
        (lambda handler: handler.wfile.write(b"SMTP ready\r\n\r\n"), HopOutcome.NETWORK, None),
    ],
)
def test_a_bad_answer_has_its_outcome(
    server: MakeServer, reply: ms.Reply, outcome: HopOutcome, status: int | None
) -> None:
    error = failure(server(reply).url)
    assert (error.outcome, error.status_code) == (outcome, status)
    assert len(error.detail) < 400
    assert no_thread_left()


def test_a_compressed_bomb_is_not_unpacked(server: MakeServer) -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    assert len(bomb) < BODY_LIMIT
    error = failure(server(ms.body(bomb, content_encoding="gzip")).url)
    assert error.outcome is HopOutcome.HTTP_ERROR


def test_the_pause_that_was_asked_for_is_passed_on(server: MakeServer) -> None:
    assert failure(server(ms.rate_limited("17")).url).retry_after == 17.0
    assert failure(server(ms.rate_limited(None)).url).retry_after is None


def test_retry_after_is_seconds_or_a_date_and_bounded() -> None:
    now = 1_800_000_000.0
    assert retry_after("90", now) == 90.0
    assert retry_after(email.utils.formatdate(now + 120, usegmt=True), now) == 120.0
    assert retry_after(email.utils.formatdate(now - 120, usegmt=True), now) == 1.0
    assert retry_after("1e12", now) == retry_after("inf", now) == 3_600.0
    assert retry_after("-5", now) == 1.0
    for nothing in (None, "", "soon", "nan", "Wed, 99 Foo"):
        assert retry_after(nothing, now) is None


def test_a_key_that_the_provider_repeats_is_masked(server: MakeServer) -> None:
    peer = server(ms.body(b'{"error": "bad key sk-secret-1"}', 401))
    error = failure(peer.url, api_key="sk-secret-1")
    assert "sk-secret" not in f"{error} {error.detail}"
    assert "[key]" in error.detail
    assert "sk-secret" not in repr(ChatRequest("http://x", "m", [], api_key="sk-secret-1"))


@pytest.mark.parametrize("reply", [ms.hang(), ms.trickle_headers(), ms.trickle_body()])
def test_the_deadline_holds_whatever_the_peer_does(server: MakeServer, reply: ms.Reply) -> None:
    started = time.monotonic()
    assert failure(server(reply).url, seconds=0.3).outcome is HopOutcome.TIMEOUT
    # Left alone, the trickles would last for many minutes.
    assert time.monotonic() - started < PATIENT
    assert no_thread_left(), "the abandoned exchange ends, too"


def test_the_deadline_covers_a_peer_that_never_accepts() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:  # the backlog is full: the next connection waits
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        error = failure(f"http://127.0.0.1:{port}/v1", seconds=0.3)
        assert error.outcome is HopOutcome.TIMEOUT
        for filler in fillers:
            filler.close()


def test_the_deadline_covers_a_tls_handshake_that_trickles() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def trickle() -> None:
            connection, _ = listener.accept()
            with connection:
                # The start of a long handshake record, then a byte at a time.
                connection.sendall(b"\x16\x03\x03\x3f\xff")
                while not stop.wait(0.02):
                    try:
                        connection.sendall(b"\x02")
                    except OSError:
                        return

        thread = threading.Thread(target=trickle)
        thread.start()
        port = listener.getsockname()[1]
        assert failure(f"https://127.0.0.1:{port}/v1", seconds=0.3).outcome is HopOutcome.TIMEOUT
        assert no_thread_left()
        thread.join(PATIENT)
        assert not thread.is_alive(), "the connection was shut down"
        stop.set()


def test_the_deadline_covers_name_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def resolve(*args: Any, **kwargs: Any) -> Any:
        released.wait(PATIENT)
        raise socket.gaierror("no answer")

    # No resolver that hangs can be had here, so the function that would hang is replaced.
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    started = time.monotonic()
    assert failure("http://models.invalid/v1", seconds=0.2).outcome is HopOutcome.TIMEOUT
    assert time.monotonic() - started < PATIENT / 2
    released.set()
    assert no_thread_left()


def test_nobody_there_is_a_network_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert failure(f"http://127.0.0.1:{port}/v1").outcome is HopOutcome.NETWORK


def test_a_proxy_is_not_asked_for_this_machine(
    server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert ask(server(ms.answer("direct")).url).text == "direct"


def test_loopback_is_recognised() -> None:
    for url in ("http://localhost:1/v1", "http://127.8.8.8/v1", "http://[::1]:9/v1"):
        assert is_loopback(url)
    for url in ("http://localhost.example.com/v1", "http://10.0.0.1/v1", "https://ollama.com/v1"):
        assert not is_loopback(url)
