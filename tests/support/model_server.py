"""A real OpenAI-compatible HTTP server on loopback that can misbehave in every way that counts.

A *reply* is a function of the request's handler that writes to the connection what it likes.
``server.reply`` may be changed at any time; ``server.requests`` is what was asked so far.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

ANSWER: dict[str, Any] = {
    "schema_version": 2,
    "should_retrieve": True,
    "store_candidate": False,
    "query": "Perché il ponte radio usa due antenne?",
    "search_query": "radio bridge two antennas reason",
    "sub_queries": [],
    "knowledge_types": ["architecture"],
    "confidence": 0.9,
}
"""A good answer, as a model should give it."""


@dataclass(frozen=True, slots=True)
class Request:
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: dict[str, Any]


class Handler(BaseHTTPRequestHandler):
    server: _Server
    asked: Request
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        body = json.loads(self.rfile.read(length))
        headers = {name.lower(): value for name, value in self.headers.items()}
        owner = self.server.owner
        self.asked = Request(self.path, headers, body)
        owner.requests.append(self.asked)
        self.close_connection = True
        with contextlib.suppress(OSError):
            owner.reply(self)

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """A complete, well-formed response."""
        self.send_response(status)
        given = {"Content-Type": "application/json", **(headers or {})}
        for name, value in given.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def trickle(self, data: bytes, interval: float) -> None:
        """One byte every ``interval`` seconds, until the peer or the server closes."""
        for position in range(len(data)):
            if self.server.owner.closing.wait(interval):
                return
            self.wfile.write(data[position : position + 1])
            self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base's name)
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # else a burst of connections waits for a retransmission
    owner: ModelServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that gives up is what these tests are about


Reply = Callable[[Handler], None]


class ModelServer:
    """Serves on a free port until closed. ``url`` ends in ``/v1``."""

    def __init__(self, reply: Reply | None = None) -> None:
        self.reply: Reply = reply or answer(ANSWER)
        self.requests: list[Request] = []
        self.closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.owner = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> ModelServer:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self.close()


def completion(content: Any, finish_reason: str = "stop") -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "served-model",
        "choices": [
            {
                "index": 0,
                "finish_reason": finish_reason,
                "message": {"role": "assistant", "content": content},
            }
        ],
        "usage": {"prompt_tokens": 812, "completion_tokens": 77, "total_tokens": 889},
    }


def answer(content: Any) -> Reply:
    """A completion whose content is ``content``; a dict is sent as JSON text."""
    text = json.dumps(content, ensure_ascii=False) if isinstance(content, dict) else content
    return body(json.dumps(completion(text), ensure_ascii=False).encode())


def body(data: bytes, status: int = 200, **headers: str) -> Reply:
    """Exactly these bytes; ``content_type="text/html"`` sets a header."""
    named = {name.replace("_", "-").title(): value for name, value in headers.items()}
    return lambda handler: handler.send(status, data, named)


def rate_limited(retry_after: str | None = "30") -> Reply:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return lambda handler: handler.send(429, b'{"error": {"message": "slow down"}}', headers)


def html() -> Reply:
    return body(b"<!doctype html><title>Sign in to the Wi-Fi</title>", content_type="text/html")


def hang() -> Reply:
    """Read the request and say nothing."""

    def reply(handler: Handler) -> None:
        handler.server.owner.closing.wait()

    return reply


def trickle_headers(interval: float = 0.02) -> Reply:
    """Header lines without end: every read succeeds, the head is never complete."""

    def reply(handler: Handler) -> None:
        handler.trickle(b"HTTP/1.1 200 OK\r\n" + b"X-Filler: abcdefgh\r\n" * 4_000, interval)

    return reply


def trickle_body(interval: float = 0.02) -> Reply:
    def reply(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        handler.trickle(b" " * 100_000, interval)

    return reply


def oversized(size: int = 5_000_000) -> Reply:
    return answer("x" * size)


def close_at_once() -> Reply:
    """Reset the connection without an answer."""

    def reply(handler: Handler) -> None:
        # Linger 0: the close is a RST, as from a crashed peer.
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        handler.connection.close()

    return reply


def stream(content: str, size: int = 7) -> Reply:
    """Server-sent chunks of ``size`` characters, although none were asked for."""

    def events() -> Iterator[str]:
        yield ": keep-alive\n\n"
        for start in range(0, len(content), size):
            delta = {"choices": [{"delta": {"content": content[start : start + size]}}]}
            yield f"data: {json.dumps(delta)}\n\n"
        last = {
            "model": "served-model",
            "choices": [{"delta": {}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 6},
        }
        yield f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n"

    def reply(handler: Handler) -> None:
        handler.send(200, "".join(events()).encode(), {"Content-Type": "text/event-stream"})

    return reply
