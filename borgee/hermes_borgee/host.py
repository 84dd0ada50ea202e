"""Everything that the adapter asks of the running Hermes gateway.

Hermes offers part of this only as attributes of its own objects. They are read here and nowhere
else, each with a default that errs towards waiting or towards keeping a receipt.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from dataclasses import dataclass
from typing import Any

from hermes_borgee.receipts import DispatchClass

log = logging.getLogger(__name__)

#: Plain words that Hermes takes as the answer to a pending approval.
_APPROVAL_WORDS = frozenset(
    {"approve", "yes", "ok", "okay", "confirm", "y", "👍", "deny", "no", "reject", "cancel", "n"}
    | {"👎", "always", "approve always", "always approve"}
    | {"session", "approve session", "session approve"}
)
#: Hermes gives an adapter this long to leave, unless told otherwise; in seconds.
_LEAVE_SECONDS = 5.0
#: Why Hermes marks all recently used sessions when it starts after a crash.
_CRASH_MARK = "restart_interrupted"


@dataclass(frozen=True, slots=True)
class Classified:
    """Which lane a text takes, and the text that Hermes shall see."""

    dispatch_class: DispatchClass
    body: str
    forced_queue: bool = False


class Host:
    """The gateway as seen from one adapter."""

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    @staticmethod
    def warm_up() -> None:
        """Import what classification needs now, so that no message waits for it."""
        for module in ("hermes_cli.commands", "tools.approval", "tools.clarify_gateway"):
            importlib.import_module(module)

    # ── Readiness ───────────────────────────────────────────────────────────────────────────

    @property
    def runner(self) -> Any:
        """The gateway runner; None where the adapter runs without one."""
        runner = getattr(self._adapter, "gateway_runner", None)
        return runner if runner is not None else self._adapter.handler_owner

    def not_ready(self) -> str:
        """Why nothing may be dispatched now; empty when the gateway takes new turns."""
        runner = self.runner
        if runner is None:
            return "" if self._adapter.has_handler else "no_handler"
        adapters = getattr(runner, "adapters", None)
        if isinstance(adapters, dict) and adapters.get(self._adapter.platform) is not self._adapter:
            # Hermes looks up there whether Borgee has authorised the sender.
            return "not_registered"
        if getattr(runner, "_startup_restore_in_progress", False):
            # It would keep the message in memory and say nothing.
            return "starting"
        if getattr(runner, "_draining", False) or getattr(runner, "_external_drain_active", False):
            return "draining"
        return ""

    def turn_runs(self, session_key: str) -> bool:
        """Whether a turn of the session runs, be it ours or one that Hermes made up itself."""
        return self._adapter.session_active(session_key) or self.runner_has(session_key)

    def runner_has(self, session_key: str) -> bool:
        """Whether the runner itself counts a turn of the session (of a replaced adapter, too)."""
        return session_key in (getattr(self.runner, "_running_agents", None) or ())

    # ── Classification ──────────────────────────────────────────────────────────────────────

    def classify(self, text: str, session_key: str, chat_type: str) -> Classified:
        """The lane of a message, from what Hermes would do with it at this moment."""
        command, arguments = self._command(text, chat_type)
        if command is None:
            waits = self.waits_for_answer(session_key, text)
            return Classified(DispatchClass.CONTROL if waits else DispatchClass.ORDINARY, text)
        from hermes_cli.commands import resolve_command, should_bypass_active_session

        known = resolve_command(command)
        if known is not None and known.name == "stop":
            return Classified(DispatchClass.URGENT_STOP, text)
        if command in ("queue", "q") and arguments:
            return Classified(DispatchClass.ORDINARY, arguments, forced_queue=True)
        if should_bypass_active_session(command):
            return Classified(DispatchClass.CONTROL, text)
        # Plugin and skill commands: Hermes runs them between turns only.
        return Classified(DispatchClass.ORDINARY, text)

    def is_command(self, text: str, chat_type: str) -> bool:
        return self._command(text, chat_type)[0] is not None

    def waits_for_answer(self, session_key: str, text: str) -> bool:
        """Whether the running turn waits for this text: a clarify question or an approval."""
        from tools.clarify_gateway import get_pending_for_session

        if get_pending_for_session(session_key, include_choice_prompts=True) is not None:
            return True
        return self.waits_for_approval(session_key, text)

    def waits_for_approval(self, session_key: str, text: str) -> bool:
        from tools.approval import has_blocking_approval

        return text.strip().lower() in _APPROVAL_WORDS and bool(has_blocking_approval(session_key))

    def _command(self, text: str, chat_type: str) -> tuple[str | None, str]:
        from gateway.platforms.base import MessageEvent, coerce_plaintext_gateway_command

        event = MessageEvent(
            text=text, source=self._adapter.build_source(chat_id="-", chat_type=chat_type)
        )
        # "restart gateway" in a direct message is a command to Hermes.
        coerce_plaintext_gateway_command(event)
        command = event.get_command()
        return (command or None), (event.get_command_args().strip() if command else "")

    # ── Sessions ────────────────────────────────────────────────────────────────────────────

    async def suspend(self, session_key: str) -> bool:
        """End the session's history at its next message. False if there is no such session."""
        store = getattr(self._adapter, "_session_store", None)
        if store is None:
            return False
        return await asyncio.to_thread(suspend_session, store, session_key)

    async def expect_nothing_to_resume(self) -> int:
        """Take back what Hermes does to be safe after a crash: it would begin a turn of its own
        in every session that was in use shortly before. Returns the number of sessions.

        Which turns were cut short is known from the inbox; in the other conversations, people
        would only read that an interrupted session was restored.
        """
        store = getattr(self._adapter, "_session_store", None)
        if store is None:
            return 0
        try:
            return await asyncio.to_thread(clear_crash_marks, store, self._adapter.platform)
        except Exception:
            # A message too many is no reason to stay out of the chat.
            log.exception("[bdh-bridge] borgee: Hermes' marks of a crash could not be cleared")
            return 0

    async def reset(self, session_key: str) -> bool:
        """Give the session a new history now. False if there is no such session."""
        store = getattr(self._adapter, "_session_store", None)
        if store is None:
            return False
        existed = await asyncio.to_thread(reset_session, store, session_key)
        evict = getattr(self.runner, "_evict_cached_agent", None)
        if existed and callable(evict):
            # The cached agent still holds the old history.
            evict(session_key)
        return existed


def suspend_session(store: Any, session_key: str) -> bool:
    """Suspend a session of Hermes' store, and keep Hermes from continuing it by itself."""
    if store.peek_session_id(session_key) is None:
        return False
    store.clear_resume_pending(session_key)
    return bool(store.suspend_session(session_key))


def clear_crash_marks(store: Any, platform: Any) -> int:
    """Clear Hermes' mark of a crash from the platform's sessions in Hermes' store. The marks of
    an ordinary stop stay: they name turns that really were interrupted."""
    marked = [
        entry.session_key
        for entry in store.list_sessions()
        if entry.resume_pending
        and entry.resume_reason == _CRASH_MARK
        and entry.origin is not None
        and entry.origin.platform == platform
    ]
    return sum(store.clear_resume_pending(session_key) for session_key in marked)


def reset_session(store: Any, session_key: str) -> bool:
    """Start a new history for an existing session of Hermes' store."""
    if store.peek_session_id(session_key) is None:
        return False
    store.clear_resume_pending(session_key)
    return store.reset_session(session_key) is not None


def leaving_patience() -> float:
    """Seconds that Hermes waits for an adapter to leave."""
    try:
        value = float(os.environ.get("HERMES_GATEWAY_ADAPTER_DISCONNECT_TIMEOUT", ""))
    except ValueError:
        return _LEAVE_SECONDS
    return value if value > 0 else _LEAVE_SECONDS
