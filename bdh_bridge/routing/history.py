"""The conversation before the current message, as the router sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bdh_bridge.routing.text import clean, clip
from bdh_bridge.text import flatten, without_context_blocks

_SCANNED = 32_768


@dataclass(frozen=True, slots=True)
class ContextMessage:
    role: Literal["user", "assistant"]
    text: str


def recent_messages(
    history: Sequence[Any] | None, count: int, max_chars: int
) -> list[ContextMessage]:
    """The last ``count`` messages before the current one, oldest first, each at most
    ``max_chars`` characters on one line.

    The host's history ends with the current user message, which is left out; a history that
    ends with an answer is taken whole. System and tool messages and the interim remarks with
    which a model calls a tool are left out, and of blocks only text counts. Context that the
    bridge itself injected must not steer the next turn: ``content`` is read, never
    ``api_content``, and quoted context blocks are cut out.
    Nothing of ``history`` is changed.
    """
    found: list[ContextMessage] = []
    if count <= 0 or not history:
        return found
    last = len(history) - 1
    for index in range(last, -1, -1):
        item = history[index]
        if not isinstance(item, Mapping):
            continue
        role = item.get("role")
        if role not in ("user", "assistant") or (index == last and role == "user"):
            continue
        if role == "assistant" and item.get("tool_calls"):
            continue
        # Bounded before cleaning: a pasted megabyte must not cost the turn its time.
        raw = without_context_blocks(flatten(item.get("content"))[:_SCANNED])
        text = clip(clean(raw[: max_chars * 4]), max_chars)
        if text:
            found.append(ContextMessage(role, text))
            if len(found) == count:
                break
    found.reverse()
    return found
