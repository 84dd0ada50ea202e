"""The scheduler's work: claims from the inbox, runs through Hermes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hermes_borgee.receipts import Receipt
from hermes_borgee.scheduler import Result

if TYPE_CHECKING:
    from hermes_borgee.adapter import BorgeeAdapter
    from hermes_borgee.desk import Desk


class Work:
    """The scheduler's view of inbox, host and dispatcher."""

    def __init__(self, adapter: BorgeeAdapter, desk: Desk) -> None:
        self._adapter = adapter
        self.heads = desk.heads
        self.head = desk.head
        self.blocked = desk.blocked
        self.demote = desk.demote
        self._claim = desk.claim
        self.not_ready = adapter.host.not_ready
        self.turn_runs = adapter.host.turn_runs

    async def claim(self, ingest_seq: int) -> Receipt | None:
        receipt = await self._claim(ingest_seq)
        if receipt is not None:
            self._adapter.tracing.claimed(receipt)
        return receipt

    async def run(self, receipt: Receipt) -> Result:
        return await self._adapter.run_receipt(receipt)


def conversation_prompt(receipt: Receipt) -> str:
    """What the model is told about where the message came from, so that tools get real ids."""
    context = receipt.context
    lines = [f"channel_id: {receipt.channel_id}"]
    for key in ("guild_id", "top_level_channel_id", "thread_id", "task_id"):
        if context.get(key):
            lines.append(f"{key}: {context[key]}")
    # Ids come from the server, but a line break in one must not become an instruction.
    safe = [" ".join("".join(c for c in line if c.isprintable()).split()) for line in lines]
    return "Borgee conversation (ids for the borgee_* tools):\n" + "\n".join(safe)


def local_time(milliseconds: int) -> datetime:
    """A server's time as Hermes has it: local, without a zone. Now, if it is no usable time."""
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        moment = datetime.now(UTC)
    return moment.astimezone().replace(tzinfo=None)
