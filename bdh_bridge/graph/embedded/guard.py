"""Who may talk to the server: the token, and what keeps web pages out."""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine only."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Refuses what isn't allowed in, as JSON, before any route sees it.

    A page in the user's browser can reach a loopback port too. Its requests show themselves by
    a foreign ``Origin``, or, when its name was rebound to 127.0.0.1, by a foreign ``Host``.
    """

    def __init__(self, app: ASGIApp, *, token: str, loopback_only: bool) -> None:
        self._app = app
        self._token = token.encode()
        self._loopback_only = loopback_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = self._refusal(Headers(scope=scope), str(scope["path"]))
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers, path: str) -> JSONResponse | None:
        host = headers.get("host", "")
        if self._loopback_only and not is_loopback(_host_name(host)):
            return _refuse(403, "This server answers to loopback host names only")
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return _refuse(403, "Requests from web pages are not answered")
        # Compared as bytes: a header may hold anything, and the time tells nothing.
        if self._token and path.startswith("/api/"):
            scheme, _, given = headers.get("authorization", "").partition(" ")
            valid = hmac.compare_digest(given.strip().encode("latin-1"), self._token)
            if scheme.lower() != "bearer" or not valid:
                return JSONResponse(
                    {"error": "Unauthorized"}, 401, headers={"WWW-Authenticate": "Bearer"}
                )
        return None


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _refuse(status: int, error: str) -> JSONResponse:
    return JSONResponse({"error": error}, status)
