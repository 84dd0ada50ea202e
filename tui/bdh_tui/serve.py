"""``--serve``: the application in a browser of this machine, by textual-serve.

Whoever sees the page reads messages and may edit the blacklist. A port of the loopback is open to
every user of the machine, and a web page that is open in the same browser can reach it too: so
the address holds a key, which is made anew each time.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
import signal
import sys
from collections.abc import Sequence
from typing import Any

from aiohttp import web
from textual_serve.server import Server

from bdh_tui.sources import SourceError

HOST = "127.0.0.1"
#: The page asks nobody else for anything.
_ELSEWHERE = re.compile(r'<link\b[^>]*\bhref="https://[^>]*>')


class KeyedServer(Server):  # type: ignore[misc, unused-ignore]
    """Everything lies below ``/{key}/``; without it there is nothing."""

    def __init__(self, command: Sequence[str], port: int) -> None:
        super().__init__(shlex.join(command), host=HOST, port=port, title="bdh-bridge-tui")
        self._pages: set[asyncio.Task[Any]] = set()
        self._key = secrets.token_urlsafe(24)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}/{self._key}/"

    async def _make_app(self) -> web.Application:
        outside = web.Application()
        outside.add_subapp(f"/{self._key}", await super()._make_app())
        return outside

    async def run(self) -> None:
        """Until SIGINT or SIGTERM. Raises: OSError if the port can't be used."""
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        # No log of requests: each would tell the key.
        runner = web.AppRunner(await self._make_app(), access_log=None, shutdown_timeout=5.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, HOST, self.port).start()
            print(f"Open {self.address}\nCtrl+C ends it.", flush=True)
            await stop.wait()
        finally:
            await runner.cleanup()

    async def on_startup(self, app: web.Application) -> None:
        """The address is told once somebody listens there."""

    async def on_shutdown(self, app: web.Application) -> None:
        """Pages that are open would hold up the end, and their programs would stay."""
        for page in self._pages:
            page.cancel()
        await asyncio.gather(*self._pages, return_exceptions=True)

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        page = asyncio.current_task()
        assert page is not None
        self._pages.add(page)
        try:
            return await super().handle_websocket(request)
        finally:
            self._pages.discard(page)

    async def handle_index(self, request: web.Request) -> Any:
        response: Any = await super().handle_index(request)
        response.text = _ELSEWHERE.sub("", response.text or "")
        response.headers["Referrer-Policy"] = "no-referrer"
        return response


def serve(given: Sequence[str], port: int) -> None:
    """Run this command again for every page that is opened, until interrupted.

    ``given`` is the whole command line. Raises: SourceError if the port can't be used.
    """
    try:
        asyncio.run(KeyedServer(without_serve(given), port).run())
    except (OSError, OverflowError) as error:
        raise SourceError(f"port {port} of {HOST} can't be used: {error}") from error


def without_serve(given: Sequence[str]) -> list[str]:
    """The command that one page runs."""
    kept, skip = [sys.executable, "-P", "-m", "bdh_tui"], False
    for word in given:
        if skip and word.isdigit():
            skip = False
            continue
        skip = word == "--serve"
        if not skip and not word.startswith("--serve="):
            kept.append(word)
    return kept
