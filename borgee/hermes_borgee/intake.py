"""From a delivery to a durable receipt.

The receipt is committed first and the delivery checkpointed after. Borgee replays nothing, so no
event is ever refused: one that can't be understood is stored as quarantined, and while the inbox
can't be written the delivery is held back until it can.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING, Any

from bdh_otel import database
from hermes_borgee import receipts
from hermes_borgee.actor import ActorClosed
from hermes_borgee.receipts import NewReceipt, Status
from hermes_borgee.scheduler import Scheduler

if TYPE_CHECKING:
    from hermes_borgee.desk import Desk

log = logging.getLogger(__name__)

#: Seconds between attempts to commit a receipt while the inbox can't be written.
COMMIT_PAUSES = (0.2, 1.0, 5.0)


class Intake:
    """Takes one delivery after the other."""

    def __init__(self, adapter: Any, desk: Desk, scheduler: Scheduler) -> None:
        self._adapter = adapter
        self._desk = desk
        self._scheduler = scheduler
        self._recent: dict[tuple[str, str], None] = {}
        """Channel and id of what was just sent, oldest first: they answer most questions about
        echoes."""

    def note_sent(self, message_id: str, channel_id: str) -> None:
        self._recent[channel_id, message_id] = None
        if len(self._recent) > 1000:
            del self._recent[next(iter(self._recent))]

    async def take(self, delivery: Any) -> None:
        """Store what was delivered, tell the scheduler, checkpoint."""
        await self._receive(delivery.event)
        await self._checkpoint(delivery)

    async def _receive(self, event: Any) -> None:
        tracing = self._adapter.tracing
        span = tracing.receive()
        receipt: NewReceipt | None = None
        outcome = "failed"
        try:
            if await self._is_echo(event):
                outcome = "echo"
                return
            receipt = self._receipt_of(event, span.traceparent)
            try:
                number = await self._commit(receipt)
            except ActorClosed:
                raise
            except Exception as error:
                # The inbox works, but can't hold this one as it is.
                reason = f"{type(error).__name__}: {error}"
                receipt = receipts.poison(event, receipt.session_key, reason, span.traceparent)
                number = await self._commit(receipt)
            if number is None:
                outcome = "duplicate"
                return
            outcome = receipt.status.value
            if receipt.status is Status.QUARANTINED:
                self._scheduler.block(receipt.session_key, number)
                log.error(
                    "[bdh-bridge] borgee: an event could not be understood; receipt %d is "
                    "quarantined (bdh-bridge borgee inbox show %d)",
                    number,
                    number,
                )
            elif receipt.status is Status.PENDING:
                self._scheduler.committed(receipt.session_key, number, receipt.dispatch_class)
        finally:
            tracing.received(span, receipt, outcome)

    async def _is_echo(self, event: Any) -> bool:
        """Whether the agent itself wrote this."""
        try:
            message = event.message
            if message is None or event.kind.value not in ("message", "mention", "edited"):
                return False
            # The id alone would do; the author closes the time until the id is stored.
            place = (event.channel_id, message.id)
            if message.author_id == self._adapter.agent_id or place in self._recent:
                return True
            channel_id, message_id = (receipts.clean(part) for part in place)
            return await self._desk.was_sent(message_id, channel_id)
        except Exception:
            return False  # what is wrong with it shows when the receipt is made

    def _receipt_of(self, event: Any, traceparent: str) -> NewReceipt:
        session_key = ""
        try:
            kind = receipts.chat_type(event.channel_type)
            session_key = self._adapter.session_key(receipts.clean(event.channel_id), kind)
            receipt = receipts.from_event(event, session_key, traceparent)
            if receipt.status is Status.PENDING:
                classified = self._adapter.host.classify(receipt.source_body, session_key, kind)
                receipt = dataclasses.replace(
                    receipt,
                    dispatch_class=classified.dispatch_class,
                    effective_body=classified.body,
                    forced_queue=classified.forced_queue,
                )
            return receipt
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return receipts.poison(event, session_key, reason, traceparent)

    async def _commit(self, receipt: NewReceipt) -> int | None:
        attempt = 0
        while True:
            try:
                return await self._desk.commit(receipt)
            except database.StoreError as error:
                pause = COMMIT_PAUSES[min(attempt, len(COMMIT_PAUSES) - 1)]
                if attempt in (0, len(COMMIT_PAUSES)):
                    log.error("[bdh-bridge] borgee: a message waits for the inbox: %s", error)
                attempt += 1
                await asyncio.sleep(pause)

    async def _checkpoint(self, delivery: Any) -> None:
        from borgee_plugin_sdk import BorgeeError

        try:
            await delivery.checkpoint()
        except BorgeeError as error:
            # The connection changed after the commit: the receipt is safe, that is what counts.
            log.debug("[bdh-bridge] borgee: checkpoint not needed any more (%s)", error.code)
