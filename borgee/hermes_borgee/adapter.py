"""The platform adapter: Hermes on one side, the inbox and the link on the other.

This module needs Hermes and the SDK; ``plugin.py`` imports it when Hermes builds the adapter.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from gateway.config import Platform
from gateway.platforms.base import (
    BasePlatformAdapter,
    MessageEvent,
    MessageType,
    ProcessingOutcome,
)
from gateway.session import build_session_key

from bdh_otel import database
from hermes_borgee import config as configuration
from hermes_borgee import ledger, live
from hermes_borgee.actor import ActorClosed
from hermes_borgee.constants import MAX_MESSAGE_BYTES
from hermes_borgee.desk import Desk
from hermes_borgee.dispatch import RECEIPT, Dispatcher, is_receipt
from hermes_borgee.failures import LinkFailure
from hermes_borgee.host import Host, leaving_patience
from hermes_borgee.intake import Intake
from hermes_borgee.link import Link, LinkState, Timing
from hermes_borgee.outbound import Outbound, wire_size
from hermes_borgee.ownership import Contention, Ownership
from hermes_borgee.receipts import Receipt, chat_type
from hermes_borgee.remediation import Remediation, recover
from hermes_borgee.replies import Replies
from hermes_borgee.scheduler import Result, Scheduler
from hermes_borgee.tracing import Tracing
from hermes_borgee.work import Work, conversation_prompt, local_time

log = logging.getLogger(__name__)

PLATFORM = "borgee"


class BorgeeAdapter(Replies, BasePlatformAdapter):  # type: ignore[misc]
    """One Borgee agent as a Hermes platform."""

    MAX_MESSAGE_LENGTH = MAX_MESSAGE_BYTES
    splits_long_messages = True

    def __init__(self, config: Any, *, home: Path | None = None, timing: Timing | None = None):
        super().__init__(config, Platform(PLATFORM))
        # The session key that Hermes builds has to be the one that the inbox uses.
        config.extra["group_sessions_per_user"] = False
        self.home = home or configuration.hermes_home()
        self.host = Host(self)
        self._timing = timing
        self._handler: Callable[[Any], Awaitable[Any]] | None = None
        self._busy_handler: Callable[..., Any] | None = None
        self._settings: configuration.BorgeeConfig | None = None
        self._ownership: Ownership | None = None
        self._desk: Desk | None = None
        self._link: Link | None = None
        self._outbound: Outbound | None = None
        self._scheduler: Scheduler | None = None
        self._dispatcher: Dispatcher | None = None
        self._intake: Intake | None = None
        self._remediation: Remediation | None = None
        self._tracing: Tracing | None = None
        self._chores: list[asyncio.Task[None]] = []
        self._leaving: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None

    # ── What Hermes asks ────────────────────────────────────────────────────────────────────

    @property
    def authorization_is_upstream(self) -> bool:
        """Borgee lets through only members whose messages may reach the agent."""
        return True

    @property
    def message_len_fn(self) -> Callable[[str], int]:
        """Hermes measures by what a text takes on the wire, not by characters."""
        return wire_size

    @property
    def is_connected(self) -> bool:
        return self._link is not None and self._link.online

    async def get_chat_info(self, chat_id: str) -> dict[str, Any]:
        return {"id": chat_id, "name": chat_id, "type": "channel"}

    async def send_typing(self, chat_id: str, metadata: Any = None) -> None:
        """Nothing: Borgee learns of real work from task frames, and no typing is made up."""

    # ── Connecting and leaving ──────────────────────────────────────────────────────────────

    async def connect(self, *, is_reconnect: bool = False) -> bool:
        try:
            await self._connect()
        except configuration.ConfigError as error:
            for problem in error.problems:
                log.error("[bdh-bridge] borgee: %s", problem)
            self._set_fatal_error("borgee_config", str(error), retryable=False)
        except Contention as error:
            log.error("[bdh-bridge] borgee: %s", error)
            self._set_fatal_error("borgee_lock", str(error), retryable=True)
        except database.StoreError as error:
            log.error("[bdh-bridge] borgee: %s", error)
            self._set_fatal_error("borgee_inbox", str(error), retryable=True)
        except LinkFailure as failure:
            log.error("[bdh-bridge] borgee: %s", failure.message)
            await self._note_health("failed" if failure.final else "waiting", failure.message)
            self._set_fatal_error(
                f"borgee_{failure.kind.value}", failure.message, retryable=not failure.final
            )
        except BaseException:
            await self._leave()
            raise
        else:
            return True
        await self._leave()
        return False

    async def _connect(self) -> None:
        settings = self._settings = await asyncio.to_thread(configuration.load, self.home)
        self._tracing = await asyncio.to_thread(Tracing, self.home)
        self._ownership = Ownership(
            self.home, settings.base_url, settings.api_key.get_secret_value()
        )
        await asyncio.to_thread(self._ownership.acquire)
        await asyncio.to_thread(self.host.warm_up)
        desk = self._desk = Desk(settings.inbox)
        await desk.open()
        await recover(self, desk)
        self._dispatcher = Dispatcher(self, desk, settings.control_timeout)
        self._scheduler = Scheduler(Work(self, desk), settings.max_concurrent_dispatches)
        self._intake = Intake(self, desk, self._scheduler)
        self._remediation = Remediation(self, desk, self._scheduler)
        self._link = Link(
            settings,
            on_delivery=self._intake.take,
            on_state=self._link_changed,
            on_final=self._link_gave_up,
            on_stop_turn=self._stop_turn,
            timing=self._timing,
        )
        self._outbound = Outbound(self._link, self._remember_sent)
        await self._link.start()
        await self._scheduler.start()
        self._chores = [
            asyncio.create_task(self._remediation.serve_requests(), name="borgee-requests"),
            asyncio.create_task(desk.keep_short(settings.retention_days), name="borgee-prune"),
        ]
        live.enter(self, asyncio.get_running_loop())
        self._mark_connected()

    async def disconnect(self) -> None:
        """Drain, then close everything. Goes on when Hermes stops waiting for it."""
        await self._leave()
        self._mark_disconnected()

    async def _leave(self) -> None:
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._leave_now(), name="borgee-leave")
        # Hermes cancels a slow disconnect; the locks and the inbox must be given back all the same.
        await asyncio.shield(self._leaving)

    async def _leave_now(self) -> None:
        live.leave(self)
        await self._drain()
        if self._scheduler is not None:
            await self._scheduler.stop()
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        if self._link is not None:
            await self._link.close()
        if self._desk is not None:
            if self._link is not None and self._link.agent_id:
                with contextlib.suppress(database.StoreError, ActorClosed):
                    await self._desk.actor.run(ledger.open_gap, "the gateway was not running")
                if self._link.state is LinkState.CLOSED:
                    await self._note_health("stopped", "")
            await self._desk.close()
        if self._ownership is not None:
            await asyncio.to_thread(self._ownership.release)
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.shutdown)

    async def cancel_background_tasks(self) -> None:
        """Hermes' shutdown cancels the running turns: let them end first, within the bound."""
        await self._drain()
        await super().cancel_background_tasks()

    async def _drain(self) -> None:
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain_now(), name="borgee-drain")
        await asyncio.shield(self._draining)

    async def _drain_now(self) -> None:
        scheduler, dispatcher, settings = self._scheduler, self._dispatcher, self._settings
        if scheduler is None or dispatcher is None or settings is None:
            return
        scheduler.stop_admission()
        bound = min(settings.drain_timeout, max(0.0, leaving_patience() - 1.0))
        if not await scheduler.drain(bound):
            log.warning(
                "[bdh-bridge] borgee: %d message(s) still run after %g s; they stay in doubt",
                scheduler.active,
                bound,
            )
        dispatcher.closing = True

    # ── Hermes' callbacks, observed ─────────────────────────────────────────────────────────

    @property
    def has_handler(self) -> bool:
        return self._handler is not None

    @property
    def handler_owner(self) -> Any:
        return getattr(self._handler, "__self__", None)

    def set_message_handler(self, handler: Any) -> None:
        self._handler = handler
        super().set_message_handler(self._on_message)

    def set_busy_session_handler(self, handler: Any) -> None:
        self._busy_handler = handler
        super().set_busy_session_handler(self._on_busy)

    async def _on_message(self, event: Any) -> Any:
        assert self._handler is not None
        dispatch = self._dispatcher.of(event) if self._dispatcher else None
        if dispatch is None or self._dispatcher is None:
            if is_receipt(event):
                return None  # kept by Hermes beyond its dispatch; the inbox decides when it runs
            return await self._handler(event)  # a turn that Hermes made up itself
        return await self._dispatcher.around_handler(dispatch, event, self._handler)

    async def _on_busy(self, event: Any, session_key: str) -> bool:
        dispatch = self._dispatcher.of(event) if self._dispatcher else None
        if dispatch is None or self._dispatcher is None:
            if is_receipt(event):
                return True
            handler = self._busy_handler
            return bool(await handler(event, session_key)) if handler else False
        return await self._dispatcher.around_busy(dispatch, event, session_key, self._busy_handler)

    async def on_processing_complete(self, event: Any, outcome: Any) -> None:
        await super().on_processing_complete(event, outcome)
        dispatch = self._dispatcher.of(event) if self._dispatcher else None
        if dispatch is not None and outcome is ProcessingOutcome.FAILURE:
            dispatch.delivery_failed = dispatch.returned
        if self._scheduler is not None:
            self._scheduler.look_again()

    # ── For the dispatcher and the host ─────────────────────────────────────────────────────

    @property
    def tracing(self) -> Tracing:
        assert self._tracing is not None
        return self._tracing

    @property
    def agent_id(self) -> str:
        return self._link.agent_id if self._link else ""

    @property
    def allows_destruction(self) -> bool:
        """Whether the operator lets the model delete things."""
        return self._settings is not None and self._settings.allow_destructive_tools

    @property
    def link(self) -> Link | None:
        return self._link

    def session_key(self, channel_id: str, kind: str) -> str:
        """Hermes' key for a conversation: ``agent:main:borgee:dm:ID`` or ``…:channel:ID``."""
        source = self.build_source(chat_id=channel_id, chat_type=kind)
        return str(build_session_key(source, group_sessions_per_user=False))

    def session_active(self, session_key: str) -> bool:
        return session_key in self._active_sessions and not self._session_task_is_stale(session_key)

    def session_task(self, session_key: str) -> asyncio.Task[Any] | None:
        task: asyncio.Task[Any] | None = self._session_tasks.get(session_key)
        return task

    async def hand_over(self, event: Any) -> None:
        """Give a message to Hermes; returns when it has begun, or when it is done if Hermes
        handles it beside the running turn."""
        await super().handle_message(event)

    def event_of(self, receipt: Receipt) -> MessageEvent:
        """The message as Hermes gets it."""
        source = self.build_source(
            chat_id=receipt.channel_id,
            chat_name=receipt.channel_id,
            chat_type=chat_type(receipt.channel_type),
            user_id=receipt.author_id or receipt.channel_id,
            user_name=_speaker(receipt.author_name),
        )
        return MessageEvent(
            text=receipt.effective_body,
            message_type=MessageType.TEXT,
            source=source,
            message_id=receipt.message_id,
            reply_to_message_id=receipt.reply_to_id or None,
            channel_prompt=conversation_prompt(receipt),
            metadata={RECEIPT: receipt.ingest_seq, "borgee_context": receipt.context},
            timestamp=local_time(receipt.source_created_at),
        )

    async def run_receipt(self, receipt: Receipt) -> Result:
        """Run a claimed receipt to its end and settle it."""
        assert self._dispatcher is not None
        return await self._dispatcher.run(receipt)

    async def remediate_receipt(
        self,
        ingest_seq: int,
        action: str,
        *,
        confirm_duplicate_side_effect_risk: bool = False,
    ) -> str:
        """Settle a quarantined receipt: ``discard`` or ``requeue``.

        Raises: :class:`hermes_borgee.remediation.Refused` with the reason.
        """
        assert self._remediation is not None
        return await self._remediation.settle(
            ingest_seq, action, confirmed=confirm_duplicate_side_effect_risk
        )

    # ── The link's events ───────────────────────────────────────────────────────────────────

    async def _remember_sent(self, message_id: str, channel_id: str) -> None:
        if self._intake is not None:
            self._intake.note_sent(message_id, channel_id)
        if self._desk is not None:
            await self._desk.remember_sent(message_id, channel_id)

    async def _link_changed(self, state: LinkState, failure: LinkFailure | None) -> None:
        online = state is LinkState.ONLINE
        self._running = online
        await self._note_health(state.value, failure.message if failure else "")
        with contextlib.suppress(database.StoreError, ActorClosed):
            if self._desk is not None and online:
                gap = await self._desk.actor.run(ledger.close_gap)
                if gap is not None and gap.ended_at is not None:
                    log.warning(
                        "[bdh-bridge] borgee: not connected for %.0f s (%s); messages of that "
                        "time were not delivered and are not answered",
                        gap.ended_at - gap.started_at,
                        gap.reason,
                    )
            elif self._desk is not None:
                reason = failure.message if failure else state.value
                await self._desk.actor.run(ledger.open_gap, reason)
        if online:
            self._write_runtime_status_safe(
                "connected", platform_state="connected", error_code=None, error_message=None
            )
        elif state is not LinkState.FAILED:
            self._write_runtime_status_safe(
                "retrying",
                platform_state="disabled" if state is LinkState.DISABLED else "retrying",
                error_code=f"borgee_{failure.kind.value}" if failure else None,
                error_message=failure.message if failure else "reconnecting",
            )

    async def _note_health(self, state: str, reason: str) -> None:
        with contextlib.suppress(database.StoreError, ActorClosed):
            if self._desk is not None:
                await self._desk.actor.run(ledger.set_health, state, reason)

    async def _link_gave_up(self, failure: LinkFailure) -> None:
        self._set_fatal_error(f"borgee_{failure.kind.value}", failure.message, retryable=False)
        # In a task of its own: Hermes answers by calling disconnect(), which ends this one.
        task = asyncio.create_task(self._notify_fatal_error(), name="borgee-fatal")
        live.keep(task)

    async def _stop_turn(self, channel_id: str) -> dict[str, bool]:
        """The server wants a channel's turn stopped: Hermes' own /stop, without a person."""
        for kind in ("channel", "dm"):
            session_key = self.session_key(channel_id, kind)
            if not self.host.turn_runs(session_key):
                continue
            source = self.build_source(
                chat_id=channel_id, chat_type=kind, user_id=self.agent_id or channel_id
            )
            event = MessageEvent(text="/stop", source=source, internal=True)
            await super().handle_message(event)
            return {"aborted": True}
        return {"aborted": False}


def _speaker(name: str) -> str | None:
    """A person's name for Hermes, which writes it in brackets before what the person says: with
    brackets of its own it would name somebody else as well."""
    return name.translate({ord("["): "(", ord("]"): ")"}) or None
