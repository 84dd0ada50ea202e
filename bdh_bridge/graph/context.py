"""The block of context that a turn gets: built, and recognised again in a later turn.

Everything in it that came from the graph is data from outside. It is folded into single lines
without brackets or role marks, so it can't end the block early or speak in another voice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bdh_bridge.graph.models import Note
from bdh_bridge.text import CONTEXT_CLOSING, CONTEXT_OPENING, one_line

MAX_NOTES = 8
#: Hermes moves a hook's context to a file past 10,000 characters; stay well below.
MAX_CHARS = 6_000
MAX_TITLE_CHARS = 160
MAX_EXCERPT_CHARS = 320
MAX_SYNTHESIS_CHARS = 1_500

# Neither an order nor a claim to truth: models refuse blocks that read like injected
# instructions, and follow stale ones that pose as facts.
_INTRODUCTION = (
    "Notes from the user's own knowledge graph that seem related to this message, looked up "
    "automatically. They may be dated or off the mark; what is said in the conversation counts "
    "for more. Leaving them unused is fine, and there is no need to bring them up."
)
_NOTE_LINE = re.compile(r"^- (?P<title>.+?) \(relevance \d\.\d\d\)(?:: |$)")


@dataclass(frozen=True, slots=True)
class ContextBlock:
    """``text`` is empty where nothing is left to give."""

    text: str
    titles: tuple[str, ...]
    already_present: int
    excerpts: int = 0
    """How many of the notes carry an excerpt."""

    @property
    def notes(self) -> int:
        return len(self.titles)


def build_context(
    notes: Sequence[Note],
    synthesis: str,
    *,
    present: frozenset[str] = frozenset(),
    excerpts: Mapping[str, str] | None = None,
) -> ContextBlock:
    """A block of the best ``notes`` (best first) that are not in ``present``.

    ``present`` holds titles as :func:`titles_in_history` gives them; ``excerpts`` maps note ids
    to texts for notes whose own excerpt is empty.
    """
    lines: list[str] = []
    titles: list[str] = []
    already = excerpted = 0
    room = MAX_CHARS - len(CONTEXT_OPENING) - len(CONTEXT_CLOSING) - len(_INTRODUCTION) - 8
    for note in notes:
        if len(titles) == MAX_NOTES:
            break
        title = one_line(note.title, MAX_TITLE_CHARS)
        if title in present:
            already += 1
            continue
        if not title or title in titles:
            continue
        line = f"- {title} (relevance {min(max(note.score, 0.0), 9.99):.2f})"
        excerpt = one_line(note.excerpt or (excerpts or {}).get(note.id, ""), MAX_EXCERPT_CHARS)
        if excerpt and excerpt != title:
            line += f": {excerpt}"
        if len(line) + 1 > room:
            break
        room -= len(line) + 1
        excerpted += bool(excerpt)
        lines.append(line)
        titles.append(title)
    if not titles:
        return ContextBlock("", (), already)
    summary = one_line(synthesis, min(MAX_SYNTHESIS_CHARS, max(room - 12, 1)))
    if summary and room > 200:
        lines.append(f"In short: {summary}")
    text = "\n".join([CONTEXT_OPENING, _INTRODUCTION, *lines, CONTEXT_CLOSING])
    return ContextBlock(text, tuple(titles), already, excerpted)


def titles_in_history(history: Iterable[Any]) -> frozenset[str]:
    """Titles of the notes that earlier blocks of the conversation still hold.

    The host keeps what was injected beside the message (``api_content``) and sends it again
    with every later turn, so the history itself is the memory of what was given.
    """
    found: set[str] = set()
    for message in history:
        if not isinstance(message, Mapping) or message.get("role") != "user":
            continue
        content, own = message.get("api_content"), message.get("content")
        if not isinstance(content, str) or CONTEXT_OPENING not in content:
            continue
        if isinstance(own, str):
            # A block that the user quotes may be anybody's invention; ours comes behind it.
            content = content.removeprefix(own)
        for block in content.split(CONTEXT_OPENING)[1:]:
            for line in block.split(CONTEXT_CLOSING)[0].splitlines():
                if match := _NOTE_LINE.match(line):
                    found.add(match["title"])
    return frozenset(found)
