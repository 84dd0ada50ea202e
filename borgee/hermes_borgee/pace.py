"""Back pressure for the SDK: it reads no faster than the inbox commits.

The SDK takes in whatever the server sends, keeps 512 messages or 5 MiB that were not delivered
yet, and ends the connection at the next one; and whenever a connection ends, it drops what it
kept. Borgee sends nothing twice, so all of that would be lost. Here its reading loop waits while
much is kept (TCP then slows the server down), and the end of a connection waits until what had
arrived before is committed.

This holds on to attributes that the SDK does not document; its version is pinned. Without them
the SDK runs as it is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

log = logging.getLogger(__name__)

#: Undelivered messages and their bytes above which reading waits; half of what the SDK allows.
MOST_FRAMES = 256
MOST_BYTES = 5 << 19
#: How long the end of a connection waits for the inbox, in seconds.
LAST_COMMITS = 10.0
_LOOK = 0.005


class Pace:
    """Slows one client down. ``waiting``: it holds frames back, so the server may seem silent."""

    def __init__(self, client: Any) -> None:
        self.waiting = False
        connection: Any = getattr(client, "_transport", None)
        self._connection = connection
        needed = ("_receive_loop", "_deliveries", "_delivery_bytes", "_active_delivery")
        if not all(hasattr(connection, name) for name in needed):
            log.warning("[bdh-bridge] borgee: this SDK can't be slowed down; a flood may break it")
            return
        self._receive = connection._receive_loop
        connection._receive_loop = self._paced

    async def _paced(self, websocket: Any, generation: int) -> None:
        try:
            await self._receive(self._frames(websocket), generation)
        except Exception:
            await self._committed()
            raise
        finally:
            self.waiting = False  # also when it was cancelled while it waited
        await self._committed()

    async def _frames(self, websocket: AsyncIterable[str | bytes]) -> AsyncIterator[str | bytes]:
        async for raw in websocket:
            while not self._has_room(len(raw)):
                self.waiting = True
                await asyncio.sleep(_LOOK)
            self.waiting = False
            yield raw

    def _has_room(self, size: int) -> bool:
        kept = self._connection
        if not kept._deliveries:
            return True
        return len(kept._deliveries) < MOST_FRAMES and kept._delivery_bytes + size < MOST_BYTES

    async def _committed(self) -> None:
        until = time.monotonic() + LAST_COMMITS
        kept = self._connection
        while (kept._deliveries or kept._active_delivery) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK)
