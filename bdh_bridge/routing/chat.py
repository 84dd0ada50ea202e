"""One chat completion over HTTP, under a deadline that covers everything.

Name resolution, connecting, the TLS handshake, trickling headers and bodies: the waiting thread
comes back in time whatever happens (:mod:`bdh_bridge.deadline`), and the connection of an
abandoned exchange is shut down, so that its thread ends too. Nothing is pooled: a connection a
turn costs little beside a model, and there is no state that a fork or a dead peer could spoil.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import ipaddress
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from bdh_bridge.deadline import BoundedCalls, Deadline, DeadlineExceededError
from bdh_bridge.routing.hop import HopError, HopOutcome
from bdh_bridge.routing.text import clean, clip
from bdh_bridge.text import flatten

if TYPE_CHECKING:
    import ssl

    import httpx

Message = Mapping[str, str]
T = TypeVar("T")

BODY_LIMIT = 262_144
"""Most bytes read of a body; an answer is a few hundred."""
ANSWER_TOKENS = 2_048
"""Room for a model that thinks before it answers."""
RETRY_AFTER_LIMIT = 3_600.0
_DETAIL_LIMIT = 300


@dataclass(frozen=True, slots=True)
class ChatReply:
    """What a model said. Tokens are None where the provider did not count them."""

    text: str
    model: str | None = None
    finish_reason: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A call of ``{base_url}/chat/completions``. ``api_key`` is empty where none is needed."""

    base_url: str
    model: str
    messages: Sequence[Message]
    api_key: str = field(default="", repr=False)
    json_mode: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)


class Exchange:
    """The connections of one call; :meth:`abandon` shuts them down from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._abandoned = False

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """httpx's ``trace`` extension: notes each new connection before it is used."""
        if not event.endswith("connect_tcp.complete"):
            return
        with self._lock:
            if self._abandoned:
                raise DeadlineExceededError("abandoned")
            connected = info["return_value"].get_extra_info("socket")
            # A duplicate: it still names the connection when TLS has taken the first one over.
            self._sockets.append(connected.dup())

    def abandon(self) -> None:
        with self._lock:
            self._abandoned = True
            for connection in self._sockets:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._lock:
            for connection in self._sockets:
                connection.close()
            self._sockets.clear()


_calls = BoundedCalls("bdh-rewrite", limit=32)


def within(seconds: float, call: Callable[[Exchange], T]) -> T:
    """Run ``call`` on a thread of its own, in the caller's context, for at most ``seconds``.

    Raises: :class:`HopError` with ``timeout``, or what ``call`` raised.
    """
    exchange = Exchange()
    context = contextvars.copy_context()

    def run() -> T:
        try:
            return context.run(call, exchange)
        finally:
            exchange.close()

    try:
        return _calls.run(run, Deadline(seconds))
    except DeadlineExceededError as error:
        exchange.abandon()
        raise HopError(HopOutcome.TIMEOUT, f"{error} ({seconds:.1f} s)") from None


def post_chat(request: ChatRequest, seconds: float, exchange: Exchange) -> ChatReply:
    """Send ``request`` and read the answer; to be run by :func:`within`.

    ``seconds`` bounds each socket operation. Raises: :class:`HopError`.
    """
    import httpx

    local = is_loopback(request.base_url)
    secure = request.base_url.startswith("https:")
    try:
        with (
            httpx.Client(
                verify=_tls_context() if secure else False,
                trust_env=not local,  # a proxy can't reach this machine's own loopback
                timeout=seconds,
            ) as client,
            client.stream(
                "POST",
                f"{request.base_url}/chat/completions",
                headers=_headers(request),
                content=_body(request),
                extensions={"trace": exchange.trace},
            ) as response,
        ):
            # A redirect is not followed: it would carry the key and the message elsewhere.
            body = _read(response)
            if response.status_code == 200:
                return _parse(body, response)
            _fail(response, body, request.api_key)
    except httpx.TimeoutException as error:
        raise HopError(HopOutcome.TIMEOUT, type(error).__name__) from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        detail = clip(clean(f"{type(error).__name__}: {error}"), _DETAIL_LIMIT)
        raise HopError(HopOutcome.NETWORK, detail) from None


def is_loopback(url: str) -> bool:
    """Whether ``url`` names this machine."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _headers(request: ChatRequest) -> dict[str, str]:
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json",
        "Accept-Encoding": "identity",  # so that the bound on the body holds for its text, too
        **request.headers,
    }
    if request.api_key:
        headers["Authorization"] = f"Bearer {request.api_key}"
    return headers


def _body(request: ChatRequest) -> bytes:
    body: dict[str, Any] = {
        "model": request.model,
        "messages": [dict(message) for message in request.messages],
        "temperature": 0,
        "max_tokens": ANSWER_TOKENS,
        "stream": False,
    }
    if request.json_mode:
        body["response_format"] = {"type": "json_object"}
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


@functools.lru_cache(maxsize=1)
def _tls_context() -> ssl.SSLContext:
    import httpx

    return httpx.create_ssl_context()  # reads the trust store: some 10 ms, once


def _read(response: httpx.Response) -> bytes:
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise HopError(
            HopOutcome.HTTP_ERROR,
            "compressed although identity was asked",
            status_code=response.status_code,
        )
    body = bytearray()
    for chunk in response.iter_raw():
        body += chunk
        if len(body) > BODY_LIMIT:
            raise HopError(
                HopOutcome.TOO_LARGE,
                f"over {BODY_LIMIT} bytes",
                status_code=response.status_code,
            )
    return bytes(body)


def _decode(body: bytes, response: httpx.Response) -> str:
    """JSON is UTF-8 whatever the header says; the header counts only where it is not."""
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError:
        try:
            return body.decode(response.charset_encoding or "utf-8", "replace")
        except LookupError:
            return body.decode("utf-8", "replace")


def _parse(body: bytes, response: httpx.Response) -> ChatReply:
    text = _decode(body, response).strip()
    status = response.status_code
    if not text:
        raise HopError(HopOutcome.EMPTY, "empty body", status_code=status)
    try:
        completion = _from_stream(text) if text.startswith(("data:", ":")) else json.loads(text)
    except (ValueError, RecursionError):
        kind = "an HTML page" if text.startswith("<") else "no JSON"
        raise HopError(
            HopOutcome.INVALID_JSON, f"{kind}: {clip(clean(text), 80)}", status_code=status
        ) from None
    if not isinstance(completion, Mapping):
        raise HopError(HopOutcome.INVALID_JSON, "not a completion", status_code=status)
    choices = completion.get("choices")
    if not choices and isinstance(completion.get("error"), Mapping):
        _fail_inside(completion["error"], response)
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, Mapping) else None
    content = flatten(message.get("content")) if isinstance(message, Mapping) else ""
    if not content.strip():
        raise HopError(HopOutcome.EMPTY, "no content", status_code=status)
    usage = completion.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    assert isinstance(choice, Mapping)
    return ChatReply(
        content,
        _short(completion.get("model")),
        _short(choice.get("finish_reason")),
        _count(usage.get("prompt_tokens")),
        _count(usage.get("completion_tokens")),
    )


def _from_stream(text: str) -> dict[str, Any]:
    """A server-sent stream, although none was asked, as the completion that it spells."""
    content: list[str] = []
    whole: dict[str, Any] = {}
    finish = None
    for line in text.splitlines():
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            break
        chunk = json.loads(data)
        if not isinstance(chunk, dict):
            raise ValueError("a chunk is no object")
        whole.update({key: chunk[key] for key in ("model", "usage", "error") if chunk.get(key)})
        for choice in chunk.get("choices") or ():
            if not isinstance(choice, Mapping):
                continue
            finish = choice.get("finish_reason") or finish
            part = choice.get("delta") or choice.get("message")
            if isinstance(part, Mapping):
                content.append(flatten(part.get("content")))
    if content:
        message = {"content": "".join(content)}
        whole["choices"] = [{"message": message, "finish_reason": finish}]
    return whole


def _fail(response: httpx.Response, body: bytes, api_key: str) -> NoReturn:
    status = response.status_code
    text = clip(clean(_decode(body[:2_000], response)), _DETAIL_LIMIT)
    if api_key:
        text = text.replace(api_key, "[key]")
    raise HopError(
        HopOutcome.RATE_LIMITED if status == 429 else HopOutcome.HTTP_ERROR,
        f"HTTP {status} {text}".rstrip(),
        status_code=status,
        retry_after=retry_after(response.headers.get("retry-after"), time.time()),
    )


def _fail_inside(error: Mapping[str, Any], response: httpx.Response) -> NoReturn:
    """Some gateways answer 200 and put the failure into the body."""
    code = str(error.get("code"))
    is_status = len(code) == 3 and code.isascii() and code.isdigit()
    status = int(code) if is_status else response.status_code
    raise HopError(
        HopOutcome.RATE_LIMITED if status == 429 else HopOutcome.HTTP_ERROR,
        clip(clean(f"error {code}: {error.get('message')}"), _DETAIL_LIMIT),
        status_code=status,
        retry_after=retry_after(response.headers.get("retry-after"), time.time()),
    )


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds from a ``Retry-After`` header (RFC 9110 10.2.3: seconds or a date), 1 to 3600."""
    if not value:
        return None
    value = value.strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - now
        except (ValueError, OverflowError):
            return None
    if seconds != seconds:  # NaN
        return None
    return min(max(seconds, 1.0), RETRY_AFTER_LIMIT)


def _short(value: Any) -> str | None:
    return clip(clean(value), 100) if isinstance(value, str) and value else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
