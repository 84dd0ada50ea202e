"""The evidence of how a turn went, seen by hooks in the agent's thread.

Hermes copies the context of the task that dispatches a message to the thread that runs its turn,
so a context variable tells the hook which message it is.
"""

from __future__ import annotations

import contextvars
from typing import Any, Protocol


class Seen(Protocol):
    """What the hook marks."""

    model_called: bool
    interrupted: bool
    reply_failure: str


current: contextvars.ContextVar[Seen | None] = contextvars.ContextVar(
    "borgee_dispatch", default=None
)


def note_model_call(**_: Any) -> None:
    """``pre_llm_call`` hook. Returns nothing, adds nothing."""
    dispatch = current.get()
    if dispatch is not None:
        dispatch.model_called = True


def note_reply_failure(reason: str) -> None:
    """A reply did not arrive for certain: ``reason`` is a sentence."""
    dispatch = current.get()
    if dispatch is not None:
        dispatch.reply_failure = reason


def note_end(*, interrupted: Any = False, **_: Any) -> None:
    """``on_session_end`` hook, which Hermes fires at the end of every turn."""
    dispatch = current.get()
    if dispatch is not None and interrupted:
        dispatch.interrupted = True
