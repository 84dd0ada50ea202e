"""Who gives a slash command: the host hands its handler the argument string and nothing else.

``pre_gateway_dispatch`` runs before the handler in the same task and sees the message, so it is
kept in a context variable. A task may inherit the variable of the message whose task started it,
and the host runs events of its own without that hook; so what is kept counts only in the task it
was kept in and for the very words that the handler was given. Everything that can't be told is a
stranger.

The host's own policy calls everybody an admin while no admins are configured. Here an admin is
one whom the configuration names.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Role = Literal["operator", "admin", "user", "stranger"]

#: Chat types in which nobody but the person and the agent reads along.
_PRIVATE = frozenset({"dm", "direct", "private", ""})


@dataclass(frozen=True, slots=True)
class Caller:
    """``operator`` sits at the local terminal; an ``admin`` is configured; a ``user`` may talk to
    the agent; of a ``stranger`` nothing is known.

    ``source`` and ``gateway`` are the host's own objects, None at the terminal.
    """

    role: Role
    private: bool = True
    source: Any = None
    gateway: Any = None

    @property
    def trusted(self) -> bool:
        return self.role in ("operator", "admin")


STRANGER = Caller("stranger", private=False)


@dataclass(frozen=True, slots=True)
class _Dispatch:
    event: Any
    gateway: Any
    task: Any


_dispatch: contextvars.ContextVar[_Dispatch | None] = contextvars.ContextVar(
    "bdh_dispatch", default=None
)
_seen_dispatch = False


def note_dispatch(event: Any, gateway: Any) -> None:
    """A message arrived in the gateway; called by its hook, on its event loop."""
    global _seen_dispatch
    _seen_dispatch = True
    _dispatch.set(_Dispatch(event, gateway, _current_task()))


def identify(command: str, arguments: str) -> Caller:
    """Who gives ``command`` with ``arguments``; called in the handler's own task. Never raises."""
    try:
        return _identify(command, arguments)
    except Exception:
        return STRANGER


def session_of(caller: Caller) -> str:
    """The session in which the command was given, empty where it can't be told.

    Takes the host's locks and may read its files: not for an event loop.
    """
    if caller.gateway is None:
        return _local_session() if caller.role == "operator" else ""
    try:
        key = caller.gateway._session_key_for_source(caller.source)
        return str(caller.gateway.session_store.peek_session_id(key) or "")
    except Exception:
        return ""


def home_of(caller: Caller) -> Path | None:
    """The home of the profile that serves this chat where the gateway serves several, else None.

    Asked of the host as it asks itself before a turn: by what the message's source says, else by
    its routes. Without ``multiplex_profiles`` every chat is its own home's, whatever a source says.
    """
    gateway = caller.gateway
    if gateway is None or not getattr(gateway.config, "multiplex_profiles", False):
        return None
    return Path(gateway._resolve_profile_home_for_source(caller.source)).absolute()


def _identify(command: str, arguments: str) -> Caller:
    kept = _dispatch.get()
    if kept is None or kept.task is not _current_task():
        return STRANGER if _in_gateway() else Caller("operator")
    event = kept.event
    if str(event.get_command() or "").replace("_", "-") != command:
        return STRANGER
    if str(event.get_command_args()).strip() != arguments.strip():
        return STRANGER
    source = event.source
    chat_type = str(getattr(source, "chat_type", None) or "").lower()
    return Caller(
        "admin" if _is_configured_admin(kept.gateway, source) else "user",
        private=chat_type in _PRIVATE,
        source=source,
        gateway=kept.gateway,
    )


def _is_configured_admin(gateway: Any, source: Any) -> bool:
    from gateway.slash_access import policy_for_source

    user = getattr(source, "user_id", None)
    policy = policy_for_source(gateway.config, source)
    return bool(policy.enabled and user and policy.is_admin(user))


def _in_gateway() -> bool:
    """Whether messages of others reach this process. In doubt they do."""
    if _seen_dispatch:
        return True
    module = sys.modules.get("gateway.run")
    if module is None:
        # A gateway marks what it starts, too: whoever types there may be the agent itself.
        return os.environ.get("_HERMES_GATEWAY") == "1"
    runner = getattr(module, "_gateway_runner_ref", None)
    return runner is None or runner() is not None


def _local_session() -> str:
    try:
        from gateway.session_context import get_session_env

        return str(get_session_env("HERMES_SESSION_ID") or "")
    except Exception:
        return os.environ.get("HERMES_SESSION_ID", "")


def _current_task() -> Any:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop: a terminal's own thread
        return None
