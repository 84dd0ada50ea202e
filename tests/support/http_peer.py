"""A raw HTTP peer on loopback that answers each connection as a test says."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

Behaviour = Callable[[socket.socket, bytes], None]


def json_response(body: Any, status: str = "200 OK") -> bytes:
    payload = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}"
    return head.encode() + b"\r\nConnection: close\r\n\r\n" + payload


def answering(response: bytes) -> Behaviour:
    """Send ``response`` as it is."""

    def answer(connection: socket.socket, request: bytes) -> None:
        connection.sendall(response)

    return answer


class Peer:
    """``behaviour`` may be changed at any time; ``requests`` holds what came in, raw."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.requests: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(30)
            request = b""
            while b"\r\n\r\n" not in request:
                if not (chunk := connection.recv(65536)):
                    return
                request += chunk
            head, _, body = request.partition(b"\r\n\r\n")
            length = 0
            for line in head.lower().splitlines():
                if line.startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            while len(body) < length:
                body += connection.recv(65536)
            self.requests.append(head + b"\r\n\r\n" + body)
            self.behaviour(connection, self.requests[-1])

    def body(self, index: int = -1) -> Any:
        """The JSON body of a request."""
        return json.loads(self.requests[index].partition(b"\r\n\r\n")[2])

    def close(self) -> None:
        self._listener.close()


@contextlib.contextmanager
def peer(behaviour: Behaviour) -> Iterator[Peer]:
    server = Peer(behaviour)
    try:
        yield server
    finally:
        server.close()
