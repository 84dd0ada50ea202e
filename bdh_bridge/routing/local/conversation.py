"""A message with what came before it, cut to what the local router looks at.

The bounds are part of the trained head: it was fitted on texts cut in just this way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bdh_bridge.routing.history import ContextMessage, recent_messages
from bdh_bridge.routing.text import clip_middle
from bdh_bridge.text import without_context_blocks

MESSAGE_CHARS = 2_000
"""Characters of the message that are looked at: its beginning and its end."""
HISTORY_MESSAGES, HISTORY_CHARS = 6, 300
_SCANNED = 32_768


@dataclass(frozen=True, slots=True)
class Conversation:
    """``message`` keeps its lines; ``history`` holds the messages before it, oldest first."""

    message: str
    history: tuple[ContextMessage, ...] = ()

    def last(self, role: str, skip: int = 0) -> str:
        """The last message of ``role``, or the one ``skip`` places before it; ``""`` if none."""
        found = [item.text for item in self.history if item.role == role]
        return found[-1 - skip] if len(found) > skip else ""


def conversation(message: str, history: Sequence[Any] | None) -> Conversation:
    """``history`` is the host's, which may end with the current message."""
    text = without_context_blocks(message[:_SCANNED]).strip()
    return Conversation(
        clip_middle(text, MESSAGE_CHARS),
        tuple(recent_messages(history, HISTORY_MESSAGES, HISTORY_CHARS)),
    )
