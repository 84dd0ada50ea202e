"""The HTTP routes of the embedded graph, as the BDH graph harness has them."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sqlite3
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bdh_bridge import __version__
from bdh_bridge.graph.embedded import views
from bdh_bridge.graph.embedded.guard import Guard
from bdh_bridge.graph.embedded.requests import (
    BadRequest,
    QueryRequest,
    check_vault,
    parse_object,
)
from bdh_bridge.graph.embedded.service import GraphService
from bdh_bridge.graph.embedded.state import IDEMPOTENCY_WINDOW

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 1_048_576
IDEMPOTENCY_HEADER = "Idempotency-Key"
_BODY_SECONDS = 30.0
_KEY = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?")

T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]


def create_app(
    service: GraphService, engine: Executor, *, token: str, loopback_only: bool
) -> Starlette:
    """The application. ``engine`` is the one thread that owns ``service``.

    Queries queue for it, which is also what makes a concurrent duplicate of an idempotency key
    wait for the first; the event loop stays free, so ``/health`` answers meanwhile.
    """

    async def run(function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(engine, function)

    async def health(_: Request) -> Response:
        return JSONResponse(
            {
                "status": "ok",
                "instance": service.state.instance,
                "idempotency": {
                    "header": IDEMPOTENCY_HEADER,
                    "window_seconds": IDEMPOTENCY_WINDOW,
                },
                "version": __version__,
            }
        )

    async def query(request: Request) -> Response:
        asked = QueryRequest.of(await _json_body(request))
        answer = await run(partial(service.query, asked, _idempotency_key(request)))
        return Response(answer, media_type="application/json")

    async def consolidate(request: Request) -> Response:
        body = await _json_body(request, allow_empty=True)
        check_vault(body.get("vault_id"))
        dry_run = body.get("dry_run", False)
        if not isinstance(dry_run, bool):
            raise BadRequest('Field "dry_run" must be true or false')
        return JSONResponse(await run(partial(views.consolidate, service, dry_run)))

    def view(shown: Callable[[GraphService], dict[str, Any]]) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            check_vault(request.query_params.get("vault_id"))
            # A large graph's text is made there too: it would hold up the event loop.
            text = await run(lambda: json.dumps(shown(service), ensure_ascii=False))
            return Response(text, media_type="application/json")

        return endpoint

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/api/query", query, methods=["POST"]),
            Route("/api/consolidate", consolidate, methods=["POST"]),
            Route("/api/stats", view(views.stats)),
            Route("/api/graph", view(views.graph)),
            Route("/api/hebbian", view(views.synapses)),
            Route("/api/vaults", view(views.vaults)),
        ],
        middleware=[Middleware(Guard, token=token, loopback_only=loopback_only)],
        exception_handlers={
            BadRequest: _bad_request,
            HTTPException: _http_error,
            ClientDisconnect: _gone,
            sqlite3.OperationalError: _unwritable,
            Exception: _unexpected,
        },
    )


async def _json_body(request: Request, *, allow_empty: bool = False) -> dict[str, Any]:
    """The body as a JSON object, never more of it in memory than allowed. Raises: BadRequest."""
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size > MAX_BODY_BYTES:
                    raise BadRequest(
                        "Invalid JSON body", detail=f"It is over {MAX_BODY_BYTES} bytes"
                    )
                chunks.append(chunk)
    except TimeoutError as error:
        raise BadRequest("The body did not arrive in time", status=408) from error
    if allow_empty and not size:
        return {}
    # A web page can't send this type without asking first, and nobody here would say yes.
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise BadRequest("Invalid JSON body", detail="Content-Type must be application/json")
    return parse_object(b"".join(chunks))


def _idempotency_key(request: Request) -> str | None:
    keys = request.headers.getlist(IDEMPOTENCY_HEADER)
    if not keys:
        return None
    if len(set(keys)) > 1 or not _KEY.fullmatch(keys[0]):
        raise BadRequest(f"{IDEMPOTENCY_HEADER} must be one of 1 to 255 printable characters")
    return keys[0]


async def _bad_request(_: Request, error: Exception) -> Response:
    assert isinstance(error, BadRequest)
    return JSONResponse(error.body, error.status)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


async def _gone(_: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody is there to read it


async def _unwritable(_: Request, error: Exception) -> Response:
    # Disk full or file locked: the transaction is rolled back, so asking again is safe.
    log.error("[bdh-bridge] the graph's state file failed: %s", error)
    return JSONResponse({"error": "The graph's state can't be read or written now"}, 503)


async def _unexpected(_: Request, error: Exception) -> Response:
    log.error("[bdh-bridge] the embedded graph failed", exc_info=error)
    return JSONResponse({"error": f"Internal error: {type(error).__name__}"}, 500)
