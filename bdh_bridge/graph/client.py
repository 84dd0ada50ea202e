"""The graph server over HTTP, each call under one hard deadline.

Reads of the automatic path, the two tools and the command line go through here; automatic
writes don't: the worker delivers them from the outbox.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bdh_bridge.deadline import BoundedCalls, Deadline, DeadlineExceededError
from bdh_bridge.graph.models import QueryResult, parse_query
from bdh_bridge.text import one_line, without_secret

if TYPE_CHECKING:
    import httpx
    from pydantic import SecretStr

#: No answer of the graph is near this size; more is a wrong server or a hostile one.
MAX_ANSWER_BYTES = 4 * 1024 * 1024
MAX_GRAPH_BYTES = 64 * 1024 * 1024
#: Characters of a note's text that are kept.
MAX_TEXT_CHARS = 2_000
#: Names of vaults that an error passes on.
MAX_VAULTS = 50


class GraphError(Exception):
    """The graph gave no usable answer. ``kind`` is a low-cardinality code for spans."""

    kind = "graph_error"

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class GraphUnreachableError(GraphError):
    """Nothing was sent: refused, no such host, no route, TLS failed, connect timed out."""

    kind = "unreachable"


class GraphTimeoutError(GraphError):
    """No full answer in time. The server may still work on the request."""

    kind = "timeout"


class GraphConnectionLostError(GraphError):
    """The connection broke after the request may have arrived."""

    kind = "connection_lost"


class GraphUnauthorizedError(GraphError):
    """401 or 403."""

    kind = "unauthorized"


class GraphVaultError(GraphError):
    """The vault does not exist; ``available`` names those that do."""

    kind = "unknown_vault"

    def __init__(self, message: str, available: tuple[str, ...]) -> None:
        super().__init__(message, status=400)
        self.available = available


class GraphStatusError(GraphError):
    """Any other status than 200."""

    kind = "http_error"


class GraphAnswerError(GraphError):
    """A 200 whose body is not what the API promises, or too large."""

    kind = "bad_answer"


class GraphClient:
    """One server, one pool of kept connections, usable from any thread."""

    def __init__(self, api_url: str, token: SecretStr, vault_id: str = "") -> None:
        self.api_url = api_url
        self.vault_id = vault_id
        self._token = token
        self._calls = BoundedCalls("bdh-graph")
        self._lock = threading.Lock()
        self._http: httpx.Client | None = None

    def query(
        self,
        query: str,
        *,
        source: str,
        timeout: float,
        learn: bool | None = None,
        respond: bool | None = None,
        vault_id: str | None = None,
        traceparent: str = "",
    ) -> QueryResult:
        """``POST /api/query``, one attempt within ``timeout`` seconds.

        Raises: a :class:`GraphError`.
        """
        payload: dict[str, Any] = {"query": query, "source": source}
        if learn is not None:
            payload["learn"] = learn
        if respond is not None:
            payload["respond"] = respond
        vault = self.vault_id if vault_id is None else vault_id
        if vault:
            payload["vault_id"] = vault
        body = self._call("POST", "/api/query", timeout, payload, traceparent)
        return parse_query(body)

    def stats(self, *, timeout: float, vault_id: str | None = None, traceparent: str = "") -> Any:
        """``GET /api/stats`` as the server gives it. Raises: a :class:`GraphError`."""
        vault = self.vault_id if vault_id is None else vault_id
        path = "/api/stats"
        if vault:
            from urllib.parse import quote

            path += f"?vault_id={quote(vault, safe='')}"
        return self._call("GET", path, timeout, None, traceparent)

    def vaults(self, *, timeout: float) -> tuple[str, ...]:
        """Ids of the server's vaults, the default one first. Raises: a :class:`GraphError`."""
        body = self._call("GET", "/api/vaults", timeout, None, "")
        listed = body.get("vaults")
        ids = [
            str(vault["id"])
            for vault in (listed if isinstance(listed, list) else [])
            if isinstance(vault, Mapping) and vault.get("id")
        ]
        default = body.get("default_vault")
        return tuple(sorted(ids, key=lambda one: one != default))

    def note_texts(self, *, timeout: float) -> dict[str, str]:
        """The beginning of every note's text by note id, from ``GET /api/graph``.

        Raises: a :class:`GraphError`.
        """
        body = self._call("GET", "/api/graph", timeout, None, "", MAX_GRAPH_BYTES)
        nodes = body.get("nodes")
        return {
            str(node["id"]): node["text"][:MAX_TEXT_CHARS]
            for node in (nodes if isinstance(nodes, list) else [])
            if isinstance(node, Mapping) and "id" in node and isinstance(node.get("text"), str)
        }

    def prepare(self) -> None:
        """Load and build what the first request needs (0.1 to 1 s), so that who times one times
        the server alone.

        Raises: GraphUnreachableError if the certificates can't be read.
        """
        try:
            self._client()
        except OSError as error:
            raise GraphUnreachableError(_describe(error)) from error

    def close(self) -> None:
        with self._lock:
            client, self._http = self._http, None
        if client is not None:
            client.close()

    def _call(
        self,
        method: str,
        path: str,
        timeout: float,
        payload: dict[str, Any] | None,
        traceparent: str,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> Mapping[str, Any]:
        deadline, wire = Deadline(timeout), _Wire()
        try:
            return self._calls.run(
                lambda: self._exchange(
                    method, path, deadline, payload, traceparent, max_bytes, wire
                ),
                deadline,
            )
        except DeadlineExceededError as error:
            wire.cut()
            raise GraphTimeoutError(f"no answer within {timeout:g} s") from error
        except RuntimeError as error:  # no more threads, or the client was closed meanwhile
            raise GraphUnreachableError(_describe(error)) from error

    def _exchange(
        self,
        method: str,
        path: str,
        deadline: Deadline,
        payload: dict[str, Any] | None,
        traceparent: str,
        max_bytes: int,
        wire: _Wire,
    ) -> Mapping[str, Any]:
        import httpx

        # Not compressed: it mostly crosses loopback, and a few kilobytes can unpack to gigabytes.
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if payload is not None:
            headers["Content-Type"] = "application/json"
        if traceparent:
            headers["traceparent"] = traceparent
        if token := self._token.get_secret_value():
            headers["Authorization"] = f"Bearer {token}"
        content = None if payload is None else encode(payload)
        left = max(deadline.remaining, 0.001)
        try:
            with self._client().stream(
                method,
                self.api_url + path,
                content=content,
                headers=headers,
                timeout=httpx.Timeout(left, connect=min(left, 2.0)),
                extensions={"trace": wire.trace},
            ) as response:
                encoding = response.headers.get("content-encoding", "identity")
                if encoding.strip().lower() != "identity":
                    raise GraphAnswerError(
                        "the answer is compressed, which was not asked for",
                        status=response.status_code,
                    )
                chunks, size = [], 0
                for chunk in response.iter_raw():
                    deadline.check()
                    size += len(chunk)
                    if size > max_bytes:
                        raise GraphAnswerError(f"the answer is over {max_bytes} bytes")
                    chunks.append(chunk)
        except (
            httpx.ConnectError,
            httpx.ConnectTimeout,
            httpx.UnsupportedProtocol,
            httpx.InvalidURL,
            UnicodeError,  # a host name that can be no name
        ) as error:
            raise GraphUnreachableError(_describe(error)) from error
        except httpx.TimeoutException as error:
            raise GraphTimeoutError("no answer in time") from error
        except httpx.HTTPError as error:
            raise GraphConnectionLostError(_describe(error)) from error
        body = b"".join(chunks)
        if response.status_code != 200:
            body = without_secret(body, token)
        return _checked(response.status_code, body)

    def _client(self) -> httpx.Client:
        import httpx

        with self._lock:
            if self._http is None:
                # trust_env off: a proxy of the environment has no business between the agent
                # and a graph that is nearly always on this machine.
                self._http = httpx.Client(
                    trust_env=False,
                    verify=certificates(self.api_url),
                    follow_redirects=False,
                    # Shorter than any common server keeps an idle connection (uvicorn: 5 s): a
                    # request must not meet the server's goodbye. A new one costs a millisecond.
                    limits=httpx.Limits(
                        max_connections=16, max_keepalive_connections=4, keepalive_expiry=4.0
                    ),
                )
            return self._http


class _Wire:
    """The connection that a call opened, so that it can be cut when the call's time is up: a peer
    that trickles its headers would keep the call's thread for hours."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._overdue = False

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """httpcore's ``trace`` extension."""
        if not event.endswith(("connect_tcp.complete", "start_tls.complete")):
            return
        with self._lock:
            self._socket = info["return_value"].get_extra_info("socket")
            overdue = self._overdue
        if overdue:
            self.cut()

    def cut(self) -> None:
        with self._lock:
            self._overdue = True
            if self._socket is not None:
                with contextlib.suppress(OSError, ValueError):
                    self._socket.shutdown(socket.SHUT_RDWR)


def certificates(url: str) -> ssl.SSLContext | bool:
    """Certificates for ``https``; loading them costs some 20 ms that plain ``http`` can save."""
    if not url.startswith("https://"):
        return False
    import certifi

    context = ssl.create_default_context()  # honours SSL_CERT_FILE and SSL_CERT_DIR
    context.load_verify_locations(cafile=certifi.where())
    return context


def encode(payload: Mapping[str, Any]) -> bytes:
    """JSON for the wire; half surrogates, which UTF-8 can't carry, are replaced."""
    return json.dumps(payload, ensure_ascii=False).encode("utf-8", "replace")


def _checked(status: int, body: bytes) -> Mapping[str, Any]:
    try:
        parsed = json.loads(body, parse_constant=lambda _: None)  # NaN and Infinity are no JSON
    except (ValueError, RecursionError):
        parsed = None
    message = ""
    if isinstance(parsed, Mapping) and isinstance(parsed.get("error"), str):
        message = one_line(parsed["error"], 300)
    if status in (401, 403):
        raise GraphUnauthorizedError(message or "the token is missing or wrong", status=status)
    if status == 400 and isinstance(parsed, Mapping) and "available_vaults" in parsed:
        available = parsed["available_vaults"]
        listed = available[:MAX_VAULTS] if isinstance(available, list) else []
        names = tuple(one_line(str(name), 128) for name in listed)
        raise GraphVaultError(message or "unknown vault", names)
    if status != 200:
        raise GraphStatusError(message or f"HTTP {status}", status=status)
    if not isinstance(parsed, Mapping):
        raise GraphAnswerError("the answer is not a JSON object", status=status)
    return parsed


def _describe(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}", 300)
