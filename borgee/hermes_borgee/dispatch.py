"""One receipt through Hermes, and the evidence of what became of it.

Hermes answers a message with nothing in many cases: the turn ran and streamed its reply, the
message waits in one of Hermes' own queues, a plugin dropped it. What decides here is therefore
what was seen on the way: the handler was entered and returned, a model was called, an answer
reached the question that waited for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from bdh_otel import database
from hermes_borgee.evidence import current
from hermes_borgee.receipts import DispatchClass, Outcome, Receipt, Status
from hermes_borgee.scheduler import STORE_PAUSE, Deferred, Ended, Result

log = logging.getLogger(__name__)

#: Where a message of Hermes carries the number of its receipt.
RECEIPT = "borgee_receipt"


class Dispatch:
    """What was seen of one receipt while Hermes had it."""

    def __init__(self, receipt: Receipt, task: asyncio.Task[Any] | None) -> None:
        self.receipt = receipt
        self.task = task
        self.deferred = ""
        """Why it did not reach Hermes; empty if it did or if nothing is known yet."""
        self.demote = False
        self.started = False
        """``processing`` was committed: from here on it may have had effects."""
        self.inline = False
        """Hermes handled it beside the running turn, in our own task."""
        self.returned = False
        self.error: BaseException | None = None
        self.model_called = False
        """Set by a hook in the agent's thread."""
        self.interrupted = False
        """Set by a hook: Hermes ended the turn before it was done."""
        self.delivery_failed = False
        self.reply_failure = ""
        """Why a reply did not arrive, or may not have."""
        self.verdict = ""
        """The outcome in one word, once it is settled."""


def is_receipt(event: Any) -> bool:
    """Whether a message of Hermes was made from a receipt."""
    metadata = getattr(event, "metadata", None)
    return isinstance(metadata, dict) and isinstance(metadata.get(RECEIPT), int)


class Dispatcher:
    """Hands receipts to Hermes and settles them.

    ``adapter`` is the platform adapter; ``store`` its inbox (the coroutines of
    :class:`~hermes_borgee.desk.Desk`).
    """

    def __init__(self, adapter: Any, store: Any, control_timeout: float) -> None:
        self._adapter = adapter
        self._store = store
        self._control_timeout = control_timeout
        self._under_way: dict[int, Dispatch] = {}
        self.closing = False

    def of(self, event: Any) -> Dispatch | None:
        """The dispatch that an event of Hermes belongs to; None for what is not ours."""
        return self._under_way.get(event.metadata[RECEIPT]) if is_receipt(event) else None

    async def run(self, receipt: Receipt) -> Result:
        """Run a claimed receipt. Settles it in the inbox whatever happens."""
        dispatch = Dispatch(receipt, asyncio.current_task())
        self._under_way[receipt.ingest_seq] = dispatch
        token = current.set(dispatch)
        ordinary = receipt.dispatch_class is DispatchClass.ORDINARY
        try:
            with self._adapter.tracing.dispatch(dispatch):
                bound = asyncio.timeout(None if ordinary else self._control_timeout)
                try:
                    async with bound:
                        await self._through_host(dispatch)
                except TimeoutError as error:
                    if bound.expired():
                        return await self._timed_out(dispatch)
                    dispatch.error = dispatch.error or error  # the host's own
                except asyncio.CancelledError:
                    # The adapter is closing: what may have had effects stays in doubt.
                    await self._abandon(dispatch)
                    raise
                except Exception as error:
                    # A message that can't even be handed over must not stay claimed for ever.
                    dispatch.error = dispatch.error or error
                return await self._settle(dispatch)
        finally:
            current.reset(token)
            del self._under_way[receipt.ingest_seq]

    # ── Called by the adapter while Hermes has the message ──────────────────────────────────

    async def around_handler(
        self, dispatch: Dispatch, event: Any, handler: Callable[[Any], Awaitable[Any]]
    ) -> Any:
        """Hermes' own message handler, called for a receipt of ours."""
        dispatch.inline = asyncio.current_task() is dispatch.task
        if not await self._may_start(dispatch):
            return None
        try:
            response = await handler(event)
        except Exception as error:
            # Hermes swallows it in some places; the receipt must not.
            dispatch.error = error
            raise
        dispatch.returned = True
        return response

    async def around_busy(
        self, dispatch: Dispatch, event: Any, session_key: str, handler: Callable[..., Any] | None
    ) -> bool:
        """Hermes found a turn running in the session: keep the message out of its own queue."""
        host = self._adapter.host
        approval = dispatch.receipt.dispatch_class is DispatchClass.CONTROL and handler is not None
        if not approval or not host.waits_for_approval(session_key, event.text):
            dispatch.deferred = "busy"
            # A control that nothing waits for is a message like any other.
            dispatch.demote = dispatch.receipt.dispatch_class is DispatchClass.CONTROL
            return True
        assert handler is not None
        dispatch.inline = True
        if not await self._may_start(dispatch):
            return True
        try:
            await handler(event, session_key)
        except Exception as error:
            dispatch.error = error
            raise
        dispatch.returned = True
        return True

    async def _may_start(self, dispatch: Dispatch) -> bool:
        """Commit that the receipt runs; the last look at the host comes after the commit."""
        if dispatch.started:
            return False  # Hermes offers it a second time
        refusal = self._refusal(dispatch)
        if not refusal:
            try:
                begun = await self._store.begin(dispatch.receipt)
            except database.StoreError as error:
                log.error("[bdh-bridge] borgee: a message waits for the inbox: %s", error)
                begun, refusal = False, "inbox"
            if begun:
                refusal = self._refusal(dispatch)
                dispatch.started = not refusal
            else:
                refusal = refusal or "claim_lost"
        dispatch.deferred = refusal
        return not refusal

    def _refusal(self, dispatch: Dispatch) -> str:
        host, receipt = self._adapter.host, dispatch.receipt
        reason: str = host.not_ready()
        if reason and (reason != "draining" or receipt.dispatch_class is DispatchClass.ORDINARY):
            return reason
        if receipt.dispatch_class is DispatchClass.ORDINARY:
            # A turn that the runner has under another adapter, or made up itself.
            return "" if dispatch.inline or not host.runner_has(receipt.session_key) else "busy"
        if receipt.dispatch_class is DispatchClass.CONTROL:
            text = receipt.effective_body
            stale = not dispatch.inline or (
                not text.startswith("/") and not host.waits_for_answer(receipt.session_key, text)
            )
            if stale:
                dispatch.demote = True
                return "idle"
        return ""

    # ── Running and settling ────────────────────────────────────────────────────────────────

    async def _through_host(self, dispatch: Dispatch) -> None:
        receipt = dispatch.receipt
        event = self._adapter.event_of(receipt)
        await self._adapter.hand_over(event)
        if dispatch.deferred or dispatch.inline:
            return
        # The turn runs in a task of Hermes, which still owns the session a little after the
        # reply: waiting for its end keeps the next message from finding the session taken.
        task = self._adapter.session_task(receipt.session_key)
        if task is not None:
            await asyncio.wait({task})

    async def _settle(self, dispatch: Dispatch) -> Result:
        receipt = dispatch.receipt
        if dispatch.deferred:
            dispatch.verdict = f"deferred_{dispatch.deferred}"
            await self._surely(self._store.give_back, receipt, demote=dispatch.demote)
            return Deferred(dispatch.deferred, dispatch.demote)
        status, outcome, error = self._verdict(dispatch)
        dispatch.verdict = outcome.value
        if status is Status.PENDING:
            await self._surely(self._store.give_back, receipt)
            return Deferred("shutdown")
        await self._surely(self._store.finish, receipt, status, outcome, error)
        if status is Status.FAILED:
            log.warning(
                "[bdh-bridge] borgee: receipt %d failed: %s", receipt.ingest_seq, outcome.value
            )
        return Ended()

    def _verdict(self, dispatch: Dispatch) -> tuple[Status, Outcome, str]:
        if dispatch.error is not None:
            error = f"{type(dispatch.error).__name__}: {dispatch.error}"[:500]
            return Status.FAILED, Outcome.HANDLER_ERROR, error
        if dispatch.returned and dispatch.interrupted:
            if self._adapter.host.not_ready() == "draining":
                # Ended by the shutdown, not by a person: how far it came is not known.
                return Status.IN_DOUBT, Outcome.SHUTDOWN, ""
            return Status.COMPLETED, Outcome.STOPPED, ""
        if dispatch.returned:
            if dispatch.delivery_failed:
                why = dispatch.reply_failure or "the reply could not be sent"
                return Status.FAILED, Outcome.UNDELIVERED, why[:500]
            if dispatch.model_called:
                return Status.COMPLETED, Outcome.TURN_RAN, ""
            if dispatch.receipt.effective_body.startswith("/"):
                return Status.COMPLETED, Outcome.COMMAND_RAN, ""
            if dispatch.inline:
                return Status.COMPLETED, Outcome.ANSWERED, ""
            return Status.FAILED, Outcome.NO_TURN, "Hermes returned without calling a model"
        if self.closing:
            # Hermes' own shutdown has cancelled its task.
            if dispatch.started:
                return Status.IN_DOUBT, Outcome.SHUTDOWN, ""
            return Status.PENDING, Outcome.SHUTDOWN, ""
        if dispatch.model_called:
            return Status.COMPLETED, Outcome.STOPPED, ""
        return Status.FAILED, Outcome.STOPPED, "stopped before a model was called"

    async def _timed_out(self, dispatch: Dispatch) -> Result:
        """A control that does not come back gives its slot free; an operator decides."""
        receipt = dispatch.receipt
        dispatch.verdict = Outcome.CONTROL_TIMEOUT.value
        if not dispatch.started:
            await self._surely(self._store.give_back, receipt)
            return Deferred("control_timeout")
        log.error(
            "[bdh-bridge] borgee: receipt %d (%s) did not finish within %g s; its session is "
            "suspended and the receipt quarantined",
            receipt.ingest_seq,
            receipt.dispatch_class.value,
            self._control_timeout,
        )
        task = self._adapter.session_task(receipt.session_key)
        if not dispatch.inline and task is not None:
            task.cancel()
        try:
            await self._adapter.host.suspend(receipt.session_key)
        except Exception:
            # The quarantine holds the session's turns back, and remediation resets it.
            log.exception("[bdh-bridge] borgee: a session could not be suspended")
        await self._surely(
            self._store.quarantine,
            receipt.ingest_seq,
            Outcome.CONTROL_TIMEOUT,
            f"no end within {self._control_timeout:g} s",
        )
        return Ended(blocks=True)

    async def _surely(
        self, operation: Callable[..., Awaitable[Any]], *args: Any, **kw: Any
    ) -> None:
        """Settle in the inbox, however long it can't be written: what has run must not be
        forgotten, and what has not must not stay claimed."""
        while True:
            try:
                await operation(*args, **kw)
                return
            except database.StoreError as error:
                log.error("[bdh-bridge] borgee: a receipt waits to be settled: %s", error)
                await asyncio.sleep(STORE_PAUSE)

    async def _abandon(self, dispatch: Dispatch) -> None:
        dispatch.verdict = Outcome.SHUTDOWN.value
        try:
            if dispatch.started and not dispatch.deferred:
                await self._store.finish(
                    dispatch.receipt, Status.IN_DOUBT, Outcome.SHUTDOWN, "the adapter closed"
                )
            else:
                await self._store.give_back(dispatch.receipt)
        except Exception as error:
            log.warning(
                "[bdh-bridge] borgee: receipt %d is settled at the next start (%s)",
                dispatch.receipt.ingest_seq,
                type(error).__name__,
            )
