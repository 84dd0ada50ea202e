"""One request to the graph, and what can be said of it afterwards.

What matters is not that a request failed but whether it may have arrived. httpcore's ``trace``
extension tells how far it came: a failure before ``send_request_headers.started`` never left
this machine; one after ``send_request_body.complete`` left it in full (httpcore hides a broken
connection while sending and tries to read an answer, so the exception alone can't tell).
Every write has a connection of its own: a pooled one that the server closed a moment ago looks
exactly like a server that died over our request.
"""

from __future__ import annotations

import contextlib
import email.utils
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from bdh_bridge import __version__
from bdh_bridge.graph.client import certificates
from bdh_bridge.outbox.queue import Server
from bdh_bridge.outbox.states import State, Write
from bdh_bridge.outbox.transitions import Result
from bdh_bridge.text import without_secret

CONNECT_TIMEOUT = 2.0
HEALTH_TIMEOUT = 2.0
#: Most bytes of an answer that are read.
MAX_ANSWER = 4 * 1024 * 1024
_KEY_HEADER = "Idempotency-Key"
#: Our own mistakes: no such request can be made.
_NOT_SENDABLE = (httpx.LocalProtocolError, httpx.InvalidURL, httpx.UnsupportedProtocol, ValueError)


@dataclass(frozen=True, slots=True)
class Health:
    """``problem`` is set if the server could not be asked; ``unreachable`` if it surely gets
    nothing now."""

    server: Server | None = None
    problem: Result | None = None
    unreachable: bool = False


class Client:
    """Delivers to one graph server. Used by one thread; :meth:`abort` by any."""

    def __init__(self, destination: str, token: str, *, timeout: float) -> None:
        self._destination = destination
        self._timeout = timeout
        self._token = token
        headers = {
            "User-Agent": f"bdh-hermes-bridge/{__version__}",
            "Accept": "application/json",
            "Accept-Encoding": "identity",  # a few kilobytes can unpack to gigabytes
        }
        if token:
            headers["Authorization"] = f"Bearer {token}"
        # Like the agent's reads: no proxy of the environment between this machine and its graph.
        self._http = httpx.Client(
            headers=headers,
            trust_env=False,
            verify=certificates(destination),
            follow_redirects=False,
            limits=httpx.Limits(max_connections=2, max_keepalive_connections=0),
        )
        self._running: _Progress | None = None

    def close(self) -> None:
        self._http.close()

    def abort(self) -> None:
        """End the request in flight now, as if its time were up."""
        running = self._running
        if running is not None:
            running.expire()

    def health(self) -> Health:
        """Whether the server is there, and whether it honours keys."""
        progress = _Progress()
        try:
            with progress.limit(HEALTH_TIMEOUT):
                answer = self._send(progress, "GET", "/health", HEALTH_TIMEOUT, None, {})
        except Exception as error:
            problem = _classify(error, progress)
            return Health(problem=problem, unreachable=not progress.started)
        if answer.status in (429, 503):
            return Health(problem=_judge(answer), unreachable=True)
        if answer.status not in (200, 404):  # 404: a server from before there was /health
            return Health(problem=_judge(answer))
        return Health(server=_declared(answer))

    def deliver(self, write: Write) -> Result:
        """Send ``write`` once."""
        body: dict[str, str] = {
            "query": write.query,
            "user_prompt": write.user_prompt,
            "source": write.source,
        }
        if write.vault_id:
            body["vault_id"] = write.vault_id
        headers = {
            "Content-Type": "application/json",
            _KEY_HEADER: write.id,
            **({"traceparent": write.traceparent} if write.traceparent else {}),
        }
        content = json.dumps(body, ensure_ascii=False).encode()
        progress = _Progress()
        self._running = progress
        try:
            with progress.limit(self._timeout):
                answer = self._send(progress, "POST", "/api/query", self._timeout, content, headers)
        except Exception as error:
            return _classify(error, progress)
        finally:
            self._running = None
        return _judge(answer)

    def _send(
        self,
        progress: _Progress,
        method: str,
        path: str,
        timeout: float,
        content: bytes | None,
        headers: dict[str, str],
    ) -> _Answer:
        request = self._http.build_request(
            method,
            self._destination + path,
            content=content,
            headers=headers,
            timeout=httpx.Timeout(timeout, connect=min(CONNECT_TIMEOUT, timeout)),
            extensions={"trace": progress.trace},
        )
        response = self._http.send(request, stream=True)
        try:
            progress.status = response.status_code
            received = bytearray()
            for chunk in response.iter_raw():
                received += chunk
                if len(received) > MAX_ANSWER:
                    raise _TooLong
        finally:
            response.close()
        body = without_secret(bytes(received), self._token)
        return _Answer(response.status_code, response.headers, body)


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: httpx.Headers
    body: bytes


class _TooLong(Exception):
    """The answer has no end in sight."""


class _Progress:
    """How far a request came; and its deadline, which no trickle of bytes can move."""

    def __init__(self) -> None:
        self.started = False
        self.sent = False
        self.expired = False
        self.status: int | None = None
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    def trace(self, event: str, info: dict[str, Any]) -> None:
        """httpcore's ``trace`` extension."""
        _, _, step = event.partition(".")
        if step in ("connect_tcp.complete", "start_tls.complete"):
            stream = info.get("return_value")
            found = stream.get_extra_info("socket") if stream is not None else None
            with self._lock:
                self._socket = found
                late = self.expired
            if late:
                self.expire()
        elif step == "send_request_headers.started":
            # A tunnel's CONNECT is a request, too, but carries nothing of ours.
            self.started = getattr(info.get("request"), "method", b"") != b"CONNECT"
        elif step == "send_request_body.complete":
            self.sent = self.started

    def expire(self) -> None:
        with self._lock:
            self.expired = True
            if self._socket is not None:
                with contextlib.suppress(OSError, ValueError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        timer = threading.Timer(seconds, self.expire)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _classify(error: Exception, progress: _Progress) -> Result:
    """What became of a request that got no whole answer."""
    detail = str(error) or type(error).__name__
    timed_out = progress.expired or isinstance(error, httpx.TimeoutException)
    if isinstance(error, _NOT_SENDABLE) and not progress.sent:
        # It never becomes better, and must not hold up its lane for a week.
        return Result(State.FAILED, "not_sendable", detail)
    if not progress.started:
        return Result(State.PENDING, _before_sending(error, timed_out), detail)
    if not progress.sent:
        return Result(State.IN_DOUBT, "broken_while_sending", detail)
    if progress.status is not None and 200 <= progress.status < 300:
        # The status line comes after the work: only the answer's text is lost.
        kind = "answer_timeout" if timed_out else "answer_broken"
        return Result(State.UNCONFIRMED, kind, detail, progress.status)
    if progress.status is not None:
        return _by_status(progress.status, detail, None)
    if timed_out:
        return Result(State.UNCONFIRMED, "timeout", f"no answer in time ({detail})")
    return Result(State.IN_DOUBT, "connection_lost", detail)


def _before_sending(error: Exception, timed_out: bool) -> str:
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    text = " ".join(str(cause) for cause in causes).lower()
    if any(isinstance(cause, socket.gaierror) for cause in causes):
        return "dns"
    if any(type(cause).__module__ == "ssl" for cause in causes) or "ssl" in text:
        return "tls"
    if timed_out:
        return "connect_timeout"
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        return "refused"
    if isinstance(error, httpx.ProxyError):
        return "proxy"
    return "connect_failed"


def _judge(answer: _Answer) -> Result:
    """What a whole answer says."""
    if not 200 <= answer.status < 300:
        return _by_status(answer.status, _message(answer), _retry_after(answer.headers))
    try:
        values = json.loads(answer.body)
    except (ValueError, RecursionError):
        values = None
    known = ("response", "activated_notes", "hebbian_updates", "new_concepts", "routing")
    if not isinstance(values, dict) or not any(name in values for name in known):
        # Something answered, but hardly the graph: a proxy's page, a half-started server.
        return Result(State.IN_DOUBT, "not_a_graph_answer", _excerpt(answer.body), answer.status)
    text = values.get("response")
    routing = values.get("routing")
    return Result(
        State.DELIVERED,
        http_status=answer.status,
        degraded=(isinstance(text, str) and text.startswith("[LLM error")) or routing == {},
        new_concepts=_count(values.get("new_concepts")),
        hebbian_updates=_count(values.get("hebbian_updates")),
    )


def _by_status(status: int, detail: str, retry_after: float | None) -> Result:
    if status in (429, 503):
        return Result(State.PENDING, str(status), detail, status, retry_after)
    if status >= 500:
        return Result(State.IN_DOUBT, str(status), detail, status)
    return Result(State.FAILED, str(status), detail, status)


def _declared(answer: _Answer) -> Server | None:
    """What ``/health`` says about keys: ``{"instance": …, "idempotency": {"header": …,
    "window_seconds": …}}``."""
    if answer.status != 200:
        return None
    try:
        values = json.loads(answer.body)
        instance = values["instance"]
        header = values["idempotency"]["header"]
        window = float(values["idempotency"]["window_seconds"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not isinstance(instance, str) or not instance or str(header).lower() != _KEY_HEADER.lower():
        return None
    return Server(instance, window) if window > 0 else None


def _message(answer: _Answer) -> str:
    """The server's own words: ``{"error": …}``, or the start of the body."""
    with contextlib.suppress(ValueError, RecursionError):
        values = json.loads(answer.body)
        if isinstance(values, dict) and isinstance(values.get("error"), str):
            return f"HTTP {answer.status}: {values['error'][:1_000]}"
    return f"HTTP {answer.status}: {_excerpt(answer.body)}"


def _excerpt(body: bytes) -> str:
    return body[:300].decode("utf-8", "replace")


def _retry_after(headers: httpx.Headers) -> float | None:
    """Seconds, from a number or from an HTTP date."""
    value = headers.get("retry-after", "").strip()
    if value.isdigit() and len(value) < 10:
        return float(value)
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    return None


def _count(value: Any) -> int:
    if isinstance(value, list):
        return len(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
