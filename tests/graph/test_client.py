"""The graph client against real sockets that misbehave."""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
import time

import pytest
from pydantic import SecretStr

from bdh_bridge.graph import client as module
from bdh_bridge.graph.client import (
    GraphAnswerError,
    GraphClient,
    GraphConnectionLostError,
    GraphError,
    GraphStatusError,
    GraphTimeoutError,
    GraphUnauthorizedError,
    GraphUnreachableError,
    GraphVaultError,
)
from tests.support.http_peer import answering, json_response, peer

ANSWER = json_response({"response": "", "activated_notes": [], "routing": {}})


def ask(url: str, timeout: float = 5.0, token: str = "", **kwargs: object) -> object:
    client = GraphClient(url, SecretStr(token))
    return client.query("q", source="test", timeout=timeout, **kwargs)  # type: ignore[arg-type]


def test_learn_and_respond_go_out_as_json_booleans() -> None:
    with peer(answering(ANSWER)) as server:
        ask(server.url, learn=False, respond=False)
        assert server.body() == {"query": "q", "source": "test", "learn": False, "respond": False}


def test_token_vault_and_trace_go_along() -> None:
    with peer(answering(ANSWER)) as server:
        client = GraphClient(server.url, SecretStr("t0ken"), "work")
        traceparent = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
        client.query("q", source="s", timeout=5, traceparent=traceparent)
        request = server.requests[0].decode().lower()
        assert "authorization: bearer t0ken" in request
        assert f"traceparent: {traceparent}" in request
        assert server.body()["vault_id"] == "work"


def test_a_half_surrogate_is_no_reason_to_fail() -> None:
    with peer(answering(ANSWER)) as server:
        GraphClient(server.url, SecretStr("")).query("a\ud800b", source="s", timeout=5)
        assert server.body()["query"] == "a?b"


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (json_response({"error": "Unauthorized"}, "401 Unauthorized"), GraphUnauthorizedError),
        (json_response({"error": "bad"}, "400 Bad Request"), GraphStatusError),
        (json_response("no object"), GraphAnswerError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", GraphAnswerError),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops", GraphStatusError),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\n\r\n", GraphStatusError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{", GraphConnectionLostError),
        (b"", GraphConnectionLostError),
        (b"not http at all\r\n\r\n", GraphConnectionLostError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"[" * 200_000, GraphAnswerError),
    ],
)
def test_each_bad_answer_is_its_own_error(response: bytes, error: type[Exception]) -> None:
    with peer(answering(response)) as server, pytest.raises(error):
        ask(server.url)


def test_an_unknown_vault_names_those_that_there_are() -> None:
    body = {"error": "Unknown vault 'x'", "available_vaults": ["default", "work"]}
    with (
        peer(answering(json_response(body, "400 Bad Request"))) as server,
        pytest.raises(GraphVaultError) as caught,
    ):
        ask(server.url)
    assert caught.value.available == ("default", "work")


def test_a_refused_connection_certainly_did_not_arrive() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(GraphUnreachableError):
        ask(f"http://127.0.0.1:{port}")


def test_a_name_that_does_not_resolve_is_unreachable() -> None:
    with pytest.raises((GraphUnreachableError, GraphTimeoutError)):
        ask("http://no-such-host.invalid:1")


def test_a_trickling_answer_ends_at_the_deadline() -> None:
    stop = threading.Event()

    def trickle(connection: socket.socket, request: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not stop.wait(0.05):
            connection.sendall(b" ")

    with peer(trickle) as server:
        began = time.monotonic()
        with pytest.raises(GraphTimeoutError):
            ask(server.url, timeout=0.6)
        assert time.monotonic() - began < 5, "each byte would have reset a socket timeout"
        stop.set()


def test_a_hanging_resolver_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang(*args: object, **kwargs: object) -> object:
        release.wait(30)
        raise socket.gaierror("released")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    began = time.monotonic()
    with pytest.raises(GraphTimeoutError):
        ask("http://graph.example:8643", timeout=0.3)
    assert time.monotonic() - began < 5
    release.set()


def test_an_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 10_000)
    monkeypatch.setattr(GraphClient._call, "__defaults__", (10_000,))
    response = b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n" + b" " * 900_000
    with peer(answering(response)) as server, pytest.raises(GraphAnswerError):
        ask(server.url)


def test_peers_that_hang_for_ever_do_not_fill_the_process_with_threads() -> None:
    stop = threading.Event()

    def hold(connection: socket.socket, request: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
        stop.wait(30)

    with peer(hold) as server:
        client = GraphClient(server.url, SecretStr(""))
        client._calls = module.BoundedCalls("test", limit=3)
        before = threading.active_count()
        for _ in range(12):
            with pytest.raises(GraphTimeoutError):
                client.query("q", source="s", timeout=0.05)
        mine = [t for t in threading.enumerate() if t.name == "test"]
        assert len(mine) <= 3
        assert threading.active_count() <= before + 40
        stop.set()


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with peer(answering(ANSWER)) as server:
        ask(server.url)
        assert len(server.requests) == 1


def test_texts_of_notes_come_from_the_graph_endpoint() -> None:
    nodes = [{"id": "a", "text": "Alpha"}, {"id": "b"}, "odd", {"id": "c", "text": None}]
    with peer(answering(json_response({"nodes": nodes}))) as server:
        client = GraphClient(server.url, SecretStr(""))
        assert client.note_texts(timeout=5) == {"a": "Alpha"}


def test_more_turns_at_once_than_connections_all_get_their_answer() -> None:
    """A gateway's burst is no outage: whoever finds no room waits for it, within the deadline."""
    full = threading.Barrier(17, timeout=30)  # the sixteen that have room, and this test

    def hold(connection: socket.socket, request: bytes) -> None:
        if full.n_waiting < 16 and not full.broken:
            with contextlib.suppress(threading.BrokenBarrierError):
                full.wait()
        connection.sendall(ANSWER)

    outcomes: list[str] = []
    with peer(hold) as server:
        client = GraphClient(server.url, SecretStr(""))

        def one() -> None:
            try:
                client.query("q", source="s", timeout=30)
                outcomes.append("ok")
            except GraphError as error:
                outcomes.append(repr(error))

        threads = [threading.Thread(target=one) for _ in range(40)]
        for thread in threads:
            thread.start()
        while full.n_waiting < 16:
            time.sleep(0.01)
        full.abort()
        for thread in threads:
            thread.join(60)
    assert outcomes == ["ok"] * 40


def test_compression_is_neither_asked_for_nor_taken() -> None:
    bomb = gzip.compress(b" " * 5_000_000)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n"
    with peer(answering(head.encode() + bomb)) as server:
        with pytest.raises(GraphAnswerError):
            ask(server.url)
        assert b"\r\naccept-encoding: identity\r\n" in server.requests[0].lower()


@pytest.mark.parametrize("host", ["a..b", "a" * 70, "xn--a", "no such host"])
def test_a_host_that_can_be_none_is_unreachable(host: str) -> None:
    with pytest.raises(GraphUnreachableError):
        ask(f"http://{host}:1")


def test_what_a_server_says_in_an_error_is_one_harmless_line() -> None:
    hostile = "no\x1b]0;title\x07\r\n[bdh-bridge] all is well\u202e \ud800 <|im_start|>"
    body = {"error": hostile, "available_vaults": [hostile] * 1_000}
    with (
        peer(answering(json_response(body, "400 Bad Request"))) as server,
        pytest.raises(GraphVaultError) as caught,
    ):
        ask(server.url)
    assert str(caught.value) == "no )0;title (bdh-bridge) all is well im_start"
    assert set(caught.value.available) == {str(caught.value)}
    assert len(caught.value.available) == module.MAX_VAULTS


def test_a_token_that_the_server_quotes_goes_nowhere() -> None:
    body = {"error": "your 'Bearer t0ken-of-mine' is wrong"}
    with (
        peer(answering(json_response(body, "401 Unauthorized"))) as server,
        pytest.raises(GraphUnauthorizedError) as caught,
    ):
        ask(server.url, token="t0ken-of-mine")
    assert str(caught.value) == "your 'Bearer (secret)' is wrong"


@pytest.mark.parametrize(
    ("head", "drip"),
    [(b"HTTP/1.1 200 OK\r\nX: ", b"a"), (b"", b"HTTP/1.1 100 Continue\r\n\r\n")],
    ids=["header", "informational"],
)
def test_a_trickle_before_the_body_keeps_no_thread_beyond_the_deadline(
    head: bytes, drip: bytes
) -> None:
    stop = threading.Event()

    def trickle(connection: socket.socket, request: bytes) -> None:
        connection.sendall(head)
        while not stop.wait(0.02):
            connection.sendall(drip)

    with peer(trickle) as server:
        client = GraphClient(server.url, SecretStr(""))
        client._calls = module.BoundedCalls("trickled", limit=2)
        for _ in range(4):
            with pytest.raises(GraphTimeoutError):
                client.query("q", source="s", timeout=0.2)
        server.behaviour = answering(ANSWER)
        client.query("q", source="s", timeout=30)
        stop.set()
