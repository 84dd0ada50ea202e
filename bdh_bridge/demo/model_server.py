"""A model server with scripted answers: no language model runs here.

It speaks enough of the OpenAI-compatible chat API for Hermes to talk to it (streamed and plain
completions, tool calls, usage) and gives the answer that the script holds for the user's last
message. Every chat request is appended to a log, one JSON object a line: what the log holds is
what a model would have been sent, so it proves whether a context block arrived.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from bdh_bridge.text import flatten

#: The name under which the server offers itself, so that nobody takes it for a real model.
MODEL = "scripted-demo-model"

_UNSCRIPTED = "This model server only gives scripted answers, and its script has none for this."
_MAX_BODY = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """What is answered to a user message that contains ``when``.

    With a ``tool``, the first request is answered by a call of it with ``arguments``, and the
    request that brings its result back by ``text``.
    """

    when: str
    text: str
    tool: str = ""
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A chat request as the server received it."""

    time: float
    """When it arrived, in seconds since the epoch."""
    scripted: str | None
    """``when`` of the answer that was given; None for one that the script doesn't hold."""
    messages: tuple[dict[str, Any], ...]
    tools: tuple[str, ...]
    """Names of the tools that were offered."""

    @property
    def user_message(self) -> str:
        """The text of the last user message, injected context included."""
        return _last_user_message(self.messages)

    @property
    def tool_results(self) -> tuple[str, ...]:
        """The texts of tool results that came back after the last user message."""
        texts: list[str] = []
        for message in reversed(self.messages):
            if message.get("role") == "user":
                break
            if message.get("role") == "tool":
                texts.append(flatten(message.get("content")))
        return tuple(reversed(texts))


class ScriptedModelServer:
    """Serves on a free port of the loopback interface, in threads of this process.

    ``log`` is the file of requests; ``pause`` are the seconds between the lines of a streamed
    answer. Use as a context manager, or call :meth:`close`.
    """

    def __init__(self, answers: Sequence[ScriptedAnswer], log: Path, *, pause: float = 0) -> None:
        self.answers = tuple(answers)
        self.log = log
        self.pause = pause
        self._held: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        log.touch(mode=0o600)

        class Handler(_Handler):
            model_server = self

        self._http = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()

    @property
    def base_url(self) -> str:
        """The URL for an OpenAI client: ends in ``/v1``."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def requests(self) -> list[LoggedRequest]:
        """The log's requests so far, oldest first."""
        with self._lock:
            lines = self.log.read_text(encoding="utf-8").splitlines()
        return [_logged(json.loads(line)) for line in lines]

    def hold(self, when: str) -> threading.Event:
        """From now on, log requests for the answer to ``when``, but let them wait for it until
        the event is set: a model that thinks for long."""
        event = self._held[when] = threading.Event()
        return event

    def close(self) -> None:
        for event in self._held.values():
            event.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(timeout=5)

    def __enter__(self) -> ScriptedModelServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """Log a chat request and return the assistant message for it."""
        messages = [message for message in body.get("messages", []) if isinstance(message, dict)]
        answer = self._find(_last_user_message(messages).casefold())
        tools = [_tool_name(tool) for tool in body.get("tools") or []]
        record = {
            "time": time.time(),
            "scripted": answer.when if answer else None,
            "stream": bool(body.get("stream")),
            "tools": tools,
            "messages": messages,
        }
        with self._lock, self.log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(record, ensure_ascii=False) + "\n")
        if answer is None:
            return {"role": "assistant", "content": _UNSCRIPTED}
        if held := self._held.get(answer.when):
            held.wait()
        called = bool(messages) and messages[-1].get("role") == "tool"
        if answer.tool and answer.tool in tools and not called:
            call = {
                "id": f"call_{uuid.uuid4().hex[:12]}",
                "type": "function",
                "function": {"name": answer.tool, "arguments": answer.arguments},
            }
            return {"role": "assistant", "content": None, "tool_calls": [call]}
        return {"role": "assistant", "content": answer.text}

    def _find(self, asked: str) -> ScriptedAnswer | None:
        # The first in the text counts: a context block behind it may quote another one.
        found = [
            (place, answer)
            for answer in self.answers
            if (place := asked.find(answer.when.casefold())) >= 0
        ]
        return min(found, key=lambda pair: pair[0])[1] if found else None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away, as agents do that are stopped in mid-answer, is no news."""


class _Handler(BaseHTTPRequestHandler):
    model_server: ScriptedModelServer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        if self.path.rstrip("/") == "/v1/models":
            entry = {"id": MODEL, "object": "model", "created": 0, "owned_by": "demo"}
            self._send_json(200, {"object": "list", "data": [entry]})
        else:
            self._not_found()

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if length > _MAX_BODY:
            self.close_connection = True
            self._send_json(413, {"error": {"message": "The request is too large"}})
            return
        raw = self.rfile.read(length)
        if self.path != "/v1/chat/completions":
            self._not_found()
            return
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
            self._send_json(400, {"error": {"message": "A JSON object with messages is needed"}})
            return
        message = self.model_server.answer(body)
        if body.get("stream"):
            self._send_stream(_chunks(message, body))
        else:
            self._send_json(200, _completion(message, body))

    def _not_found(self) -> None:
        self._send_json(404, {"error": {"message": "Not found"}})

    def _send_json(self, status: int, value: dict[str, Any]) -> None:
        payload = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def _send_stream(self, chunks: Iterator[dict[str, Any]]) -> None:
        self.close_connection = True  # the stream ends with the connection
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for chunk in chunks:
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            if self.model_server.pause and _content(chunk):
                time.sleep(self.model_server.pause)
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the base's name
        """Keep the terminal for the demo; the request log is a file."""


def _chunks(message: dict[str, Any], body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    head = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": MODEL,
    }

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    for index, call in enumerate(message.get("tool_calls") or []):
        yield chunk({"tool_calls": [{"index": index, **call}]})
    for piece in (message["content"] or "").splitlines(keepends=True):
        yield chunk({"content": piece})
    yield chunk({}, _finish_reason(message))
    yield {**head, "choices": [], "usage": _usage(message, body)}


def _content(chunk: dict[str, Any]) -> str:
    """The piece of the answer that the chunk carries, if it does."""
    return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])


def _completion(message: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": _finish_reason(message)}],
        "usage": _usage(message, body),
    }


def _finish_reason(message: dict[str, Any]) -> str:
    return "tool_calls" if message.get("tool_calls") else "stop"


def _usage(message: dict[str, Any], body: dict[str, Any]) -> dict[str, int]:
    # About four characters a token: nothing here counts on the exact number.
    prompt = len(json.dumps(body.get("messages"))) // 4
    completion = len(json.dumps(message)) // 4
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _last_user_message(messages: Sequence[dict[str, Any]]) -> str:
    for message in reversed(messages):
        if message.get("role") == "user":
            return flatten(message.get("content"))
    return ""


def _tool_name(tool: object) -> str:
    function = tool.get("function") if isinstance(tool, dict) else None
    return str(function.get("name", "")) if isinstance(function, dict) else ""


def _logged(record: dict[str, Any]) -> LoggedRequest:
    return LoggedRequest(
        time=record["time"],
        scripted=record["scripted"],
        messages=tuple(record["messages"]),
        tools=tuple(record["tools"]),
    )
