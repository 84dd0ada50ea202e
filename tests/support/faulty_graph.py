"""A graph server that misbehaves to order, on a raw socket, and counts what it has learned.

It speaks enough HTTP for one request a connection, so that every byte of an answer, and the
moment at which a connection dies, are the test's to choose.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ANSWER = {
    "response": "",
    "activated_notes": [],
    "new_concepts": [{"id": "a", "title": "A", "source_notes": []}],
    "hebbian_synapses": 4,
    "hebbian_updates": [{"pair": "a|b"}, {"pair": "a|c"}],
    "routing": {"hybrid_top_score": 0.4, "hybrid_enabled": True},
}


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(self.body)
        return values


#: What to do with a write: gets the connection before anything is read from it.
Behaviour = Callable[["FaultyGraph", socket.socket], None]


@dataclass
class FaultyGraph:
    """``behave`` handles the next write; see the functions below. ``keys`` makes it honour
    ``Idempotency-Key`` and declare so; ``health`` False answers 404 there."""

    behave: Behaviour
    keys: bool = False
    health: bool = True
    port: int = 0
    instance: str = field(default_factory=lambda: str(uuid.uuid4()))
    window: float = 86_400.0
    learned: Counter[str] = field(default_factory=Counter)
    """How often each query was learned."""
    requests: list[Request] = field(default_factory=list)
    """The writes that were read in full, also those that taught nothing."""

    def __enter__(self) -> FaultyGraph:
        self._answers: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._open: set[socket.socket] = set()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.go_down()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, on the same port as before."""
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", self.port))
        self._listener.listen(128)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def go_down(self) -> None:
        """Refuse connections from now on; those that are open break."""
        # close() alone leaves an accept() in another thread listening.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._open:
                reset(self, connection)

    def restart(self, *, same_instance: bool) -> None:
        """Come back; another instance has forgotten every key."""
        self.go_down()
        if not same_instance:
            self.instance = str(uuid.uuid4())
            self._answers.clear()
        self.start()

    def learn(self, request: Request) -> bytes:
        """Learn from a write, and make the answer; with ``keys``, once for each key."""
        key = request.headers.get("idempotency-key", "")
        with self._lock:
            if self.keys and key in self._answers:
                return self._answers[key]
            self.learned[request.json["query"]] += 1
            answer = response(200, ANSWER)
            self._answers[key] = answer
            return answer

    def wait(self, seconds: float = 60.0) -> None:
        """Hang, until the server is stopped."""
        self._stopped.wait(seconds)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            first = connection.recv(4, socket.MSG_PEEK | socket.MSG_WAITALL)
            if first == b"GET ":
                read_request(connection)
                connection.sendall(self._health())
            elif first:
                self.behave(self, connection)
        with self._lock:
            self._open.discard(connection)
        connection.close()

    def _health(self) -> bytes:
        if not self.health:
            return response(404, {"error": "Not found"})
        values: dict[str, Any] = {"status": "ok"}
        if self.keys:
            values["instance"] = self.instance
            values["idempotency"] = {"header": "Idempotency-Key", "window_seconds": self.window}
        return response(200, values)


def response(status: int, body: Any, **headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Whatever", f"content-length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "connection: close", "", ""]).encode() + content


def read_request(connection: socket.socket) -> Request:
    received = b""
    while b"\r\n\r\n" not in received:
        chunk = connection.recv(65_536)
        if not chunk:
            raise ValueError("the client went away")
        received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    while len(body) < int(headers.get("content-length", "0")):
        chunk = connection.recv(65_536)
        if not chunk:
            raise ValueError("the client went away")
        body += chunk
    method, path, _ = first.split(" ")
    return Request(method, path, headers, body)


def _read(graph: FaultyGraph, connection: socket.socket) -> Request:
    request = read_request(connection)
    graph.requests.append(request)
    return request


# Behaviours


def learns(graph: FaultyGraph, connection: socket.socket) -> None:
    connection.sendall(graph.learn(_read(graph, connection)))


def answers(status: int, body: Any = b"", **headers: str) -> Behaviour:
    """Reads, learns nothing, and answers so."""

    def behave(graph: FaultyGraph, connection: socket.socket) -> None:
        _read(graph, connection)
        connection.sendall(response(status, body, **headers))

    return behave


def learns_and_answers(status: int, body: Any = b"") -> Behaviour:
    def behave(graph: FaultyGraph, connection: socket.socket) -> None:
        graph.learn(_read(graph, connection))
        connection.sendall(response(status, body))

    return behave


def hangs_before_reading(graph: FaultyGraph, _: socket.socket) -> None:
    graph.wait()


def hangs_after_reading(graph: FaultyGraph, connection: socket.socket) -> None:
    _read(graph, connection)
    graph.wait()


def learns_and_hangs(graph: FaultyGraph, connection: socket.socket) -> None:
    graph.learn(_read(graph, connection))
    graph.wait()


def resets_at_once(graph: FaultyGraph, connection: socket.socket) -> None:
    connection.recv(100)
    reset(graph, connection)


def closes_after_reading(graph: FaultyGraph, connection: socket.socket) -> None:
    _read(graph, connection)


def learns_and_closes(graph: FaultyGraph, connection: socket.socket) -> None:
    graph.learn(_read(graph, connection))


def answers_half(graph: FaultyGraph, connection: socket.socket) -> None:
    answer = graph.learn(_read(graph, connection))
    connection.sendall(answer[: len(answer) - 40])


def answers_half_a_header(graph: FaultyGraph, connection: socket.socket) -> None:
    graph.learn(_read(graph, connection))
    connection.sendall(b"HTTP/1.1 200 O")


def trickles(graph: FaultyGraph, connection: socket.socket) -> None:
    """A byte now and then: no single read ever times out."""
    answer = graph.learn(_read(graph, connection))
    for byte in answer:
        connection.sendall(bytes([byte]))
        time.sleep(0.1)


def never_stops_answering(graph: FaultyGraph, connection: socket.socket) -> None:
    _read(graph, connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
    while True:
        connection.sendall(b" " * 65_536)


def reset(_: FaultyGraph, connection: socket.socket) -> None:
    """Close so that the peer sees a reset."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RD)
        connection.close()
