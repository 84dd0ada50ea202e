"""The graph client against real sockets that misbehave."""

from __future__ import annotations

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
