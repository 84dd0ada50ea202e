"""What is done about receipts whose fate is unknown."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, Literal

from hermes_borgee import inbox, ledger
from hermes_borgee.receipts import Outcome, Status

if TYPE_CHECKING:
    from hermes_borgee.desk import Desk
    from hermes_borgee.scheduler import Scheduler

log = logging.getLogger(__name__)

Action = Literal["discard", "requeue"]
ACTIONS = ("discard", "requeue")
#: Seconds between two looks at whether another process has written to the inbox.
REQUEST_LOOK = 0.5
#: Seconds after which nobody waits for the answer to a request any more. What was asked of a
#: gateway that then died must not happen days later.
REQUEST_AGE = 60.0


class Refused(Exception):
    """The action can't be carried out. ``str()`` says why."""


class Unconfirmed(Refused):
    """The action needs a confirmation of its risk."""


async def recover(adapter: Any, desk: Desk) -> int:
    """Settle what a dead process left behind, before anything connects.

    Each session is suspended before its receipt is quarantined: a crash in between repeats the
    suspension and loses nothing. Returns the number of receipts quarantined.
    """
    returned, _ = await desk.actor.run(inbox.mark_in_doubt, Outcome.PROCESS_DIED)
    doubtful = await desk.in_status(Status.IN_DOUBT)
    for number, session_key in doubtful:
        await adapter.host.suspend(session_key)
        await desk.quarantine(number)
    await adapter.host.expect_nothing_to_resume()
    if returned:
        log.info(
            "[bdh-bridge] borgee: %d claimed message(s) had not begun and wait again", returned
        )
    if doubtful:
        log.warning(
            "[bdh-bridge] borgee: %d message(s) were being worked on when the gateway ended; they "
            "are quarantined and block their sessions: bdh-bridge borgee inbox list",
            len(doubtful),
        )
    return len(doubtful)


def check_action(status: Status | None, action: str, *, confirmed: bool) -> None:
    """Whether an operator may do this to a receipt in that state. Raises: Refused."""
    if action not in ACTIONS:
        raise Refused(f"there is no action {action!r}; use discard or requeue")
    if status is None:
        raise Refused("there is no such receipt")
    if status is not Status.QUARANTINED:
        raise Refused(f"the receipt is {status.value}; only a quarantined one can be settled")
    if action == "requeue" and not confirmed:
        raise Unconfirmed(
            "running it again may repeat what it already did (tools, requests, replies); "
            "accept that"
        )


class Remediation:
    """Carries out operators' decisions in the running gateway."""

    def __init__(self, adapter: Any, desk: Desk, scheduler: Scheduler) -> None:
        self._adapter = adapter
        self._desk = desk
        self._scheduler = scheduler
        self._lock = asyncio.Lock()

    async def settle(
        self,
        ingest_seq: int,
        action: str,
        *,
        confirmed: bool,
        request: ledger.Request | None = None,
    ) -> str:
        """Discard or requeue a quarantined receipt; answers ``request`` with it. Returns a
        sentence. Raises: Refused."""
        async with self._lock:
            receipt = await self._desk.get(ingest_seq)
            check_action(receipt.status if receipt else None, action, confirmed=confirmed)
            assert receipt is not None
            if receipt.session_key and self._adapter.host.turn_runs(receipt.session_key):
                raise Refused("a turn of its session runs; stop it first (/stop in the channel)")
            existed = await self._adapter.host.reset(receipt.session_key)
            done = "discarded" if action == "discard" else "waits to run again"
            session = "its session was reset" if existed else "it had no session"
            answer = f"receipt {ingest_seq} {done}; {session}"
            operation = inbox.discard if action == "discard" else inbox.requeue
            run = self._desk.actor.run
            settled = (
                await run(operation, ingest_seq)
                if request is None
                else await run(ledger.carry_out, request, answer)
            )
            if not settled:
                raise Refused("it was settled meanwhile")
            await self._scheduler.remediated(receipt.session_key)
        log.info("[bdh-bridge] borgee: %s", answer)
        return answer

    async def serve_requests(self) -> None:
        """Carry out what the command line and the TUI ask for in the inbox's request table."""
        actor = self._desk.actor
        seen, generation, told = -1, actor.generation, False
        while True:
            try:
                version = await actor.run(ledger.data_version)
                if generation != actor.generation:
                    await self._scheduler.reload()
                    seen, generation = -1, actor.generation
                if version != seen:
                    seen = version
                    for request in await actor.run(ledger.waiting_requests):
                        await self._answer(request)
                told = False
            except asyncio.CancelledError:
                raise
            except Exception as error:
                if not told:
                    log.error("[bdh-bridge] borgee: operators' requests can't be read: %s", error)
                seen, told = -1, True
            await asyncio.sleep(REQUEST_LOOK)

    async def _answer(self, request: ledger.Request) -> None:
        try:
            if not -REQUEST_AGE < time.time() - request.created_at < REQUEST_AGE:
                raise Refused("this was asked long ago; ask again")
            await self.settle(
                request.ingest_seq, request.action, confirmed=request.confirmed, request=request
            )
        except Refused as error:
            await self._desk.actor.run(ledger.refuse_request, request.id, str(error))
