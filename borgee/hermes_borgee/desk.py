"""The inbox as the adapter uses it: coroutines over the actor."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from hermes_borgee import inbox, ledger
from hermes_borgee.actor import SqliteActor
from hermes_borgee.inbox import Head
from hermes_borgee.receipts import DispatchClass, NewReceipt, Outcome, Receipt, Status

log = logging.getLogger(__name__)

PRUNE_EVERY = 3600.0


class Desk:
    """Every operation is committed when it returns.

    Raises: bdh_otel.database.StoreError where the file can't be used, ActorClosed after ``close``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.actor = SqliteActor(path, inbox.SCHEMA)

    async def open(self) -> None:
        await self.actor.open()

    async def close(self) -> None:
        await self.actor.close()

    async def commit(self, receipt: NewReceipt) -> int | None:
        return await self.actor.run(inbox.commit, receipt)

    async def heads(self, lane: DispatchClass) -> list[Head]:
        return await self.actor.run(inbox.heads, lane)

    async def head(self, lane: DispatchClass, session_key: str) -> int | None:
        return await self.actor.run(inbox.head, lane, session_key)

    async def blocked(self) -> dict[str, int]:
        """The oldest quarantined receipt of every session that has one."""
        oldest: dict[str, int] = {}
        for number, session_key in await self.actor.run(inbox.in_status, Status.QUARANTINED):
            oldest.setdefault(session_key, number)
        return oldest

    async def claim(self, ingest_seq: int) -> Receipt | None:
        return await self.actor.run(inbox.claim, ingest_seq)

    async def demote(self, ingest_seq: int) -> None:
        await self.actor.run(inbox.demote, ingest_seq)

    async def begin(self, receipt: Receipt) -> bool:
        return await self.actor.run(inbox.start, receipt)

    async def give_back(self, receipt: Receipt, *, demote: bool = False) -> bool:
        return await self.actor.run(inbox.give_back, receipt, demote=demote)

    async def finish(
        self, receipt: Receipt, status: Status, outcome: Outcome, error: str = ""
    ) -> bool:
        return await self.actor.run(inbox.finish, receipt, status, outcome, error)

    async def quarantine(self, ingest_seq: int, outcome: str = "", error: str = "") -> bool:
        return await self.actor.run(inbox.quarantine, ingest_seq, outcome, error)

    async def get(self, ingest_seq: int) -> Receipt | None:
        return await self.actor.run(inbox.get, ingest_seq)

    async def in_status(self, status: Status) -> list[tuple[int, str]]:
        return await self.actor.run(inbox.in_status, status)

    async def remember_sent(self, message_id: str, channel_id: str) -> None:
        await self.actor.run(ledger.remember_sent, message_id, channel_id)

    async def was_sent(self, message_id: str, channel_id: str) -> bool:
        return await self.actor.run(ledger.was_sent, message_id, channel_id)

    async def keep_short(self, retention_days: float) -> None:
        """Apply retention now and every hour, until cancelled."""
        while True:
            try:
                while await self.actor.run(ledger.prune, retention_days):
                    pass  # the receipts of this moment take their turns in between
            except Exception as error:
                # Once skipped is no reason to keep everything for ever.
                log.warning("[bdh-bridge] borgee: retention skipped: %s", error)
            await asyncio.sleep(PRUNE_EVERY)
