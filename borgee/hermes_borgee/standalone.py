"""One message from a process that is not the gateway.

Borgee accepts one connection for an agent, so this connects only while no gateway holds the
locks.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from hermes_borgee import config as configuration
from hermes_borgee.failures import LinkFailure
from hermes_borgee.link import Link
from hermes_borgee.outbound import Outbound
from hermes_borgee.ownership import Contention, Ownership


async def send_once(home: Path, channel_id: str, text: str) -> dict[str, Any]:
    """Connect, send, leave. Returns what Hermes expects: ``success`` or ``error``."""
    try:
        settings = await asyncio.to_thread(configuration.load, home)
        owner = Ownership(home, settings.base_url, settings.api_key.get_secret_value())
        await asyncio.to_thread(owner.acquire)
    except (configuration.ConfigError, Contention) as error:
        return {"error": f"Borgee: {error}"}

    async def nothing(*_: Any) -> None:
        """Deliveries of this short connection stay unanswered."""

    async def nothing_to_stop(_: str) -> dict[str, bool]:
        return {"aborted": False}

    link = Link(
        settings,
        on_delivery=_leave_unread,
        on_state=nothing,
        on_final=nothing,
        on_stop_turn=nothing_to_stop,
    )
    try:
        await link.start()
        sent = await Outbound(link, nothing).send(channel_id, text)
    except LinkFailure as failure:
        return {"error": f"Borgee: {failure.message}"}
    finally:
        await link.close()
        await asyncio.to_thread(owner.release)
    if sent.failure is not None:
        return {"error": f"Borgee: {sent.failure.message}"}
    return {"success": True, "message_id": sent.message_ids[-1]}


async def _leave_unread(delivery: Any) -> None:
    await asyncio.Event().wait()
