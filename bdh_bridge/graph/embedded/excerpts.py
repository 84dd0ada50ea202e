"""Short passages of a note: the one that fits a query, or its beginning."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bdh_bridge.graph.embedded.vault import clean_line

EXCERPT_CHARS = 280
_SEARCHED_CHARS = 20_000
_LINK = re.compile(r"!?\[\[([^\[\]\n|]{1,300})(?:\|([^\[\]\n]{0,300}))?\]\]")
_MARKUP = re.compile(r"^[ \t]*(?:#{1,6}[ \t]+|>[ \t]?|`{3,}.*$|~{3,}.*$|[-*+][ \t]+)", re.MULTILINE)
#: A line that only lists links, such as the one a new note gets: it says nothing by itself.
_LINK_LIST = re.compile(
    r"^[ \t]*(?:[-*+][ \t]+)?(?:\w+:[ \t]*)?(?:!?\[\[[^\[\]\n]*\]\][ \t,;·]*)+$", re.MULTILINE
)
_SENTENCE = re.compile(r"(?<=[.!?。!?…])\s+|\n\s*\n")


def excerpt(text: str, terms: Sequence[str], limit: int = EXCERPT_CHARS) -> str:
    """At most ``limit`` characters on one line, from where most of ``terms`` occur."""
    sentences = _sentences(text[:_SEARCHED_CHARS])
    if not sentences:
        return ""
    wanted = [term.lower() for term in terms]
    hits = [sum(term in sentence.lower() for term in wanted) for sentence in sentences]
    start = hits.index(max(hits))
    passage = sentences[start]
    for sentence in sentences[start + 1 :]:
        if len(passage) + 1 + len(sentence) > limit:
            break
        passage = f"{passage} {sentence}"
    return shorten(passage, limit)


def beginning(text: str, limit: int) -> str:
    """The first ``limit`` characters of what the note says, on one line."""
    return shorten(plain(text[: limit * 3]), limit)


def plain(text: str) -> str:
    """``text`` on one line without Markdown's marks; links read as their labels."""
    return " ".join(_sentences(text))


def shorten(text: str, limit: int) -> str:
    """``text`` cut at a blank where one is near, with an ellipsis, never over ``limit``."""
    if len(text) <= limit:
        return text
    cut = text[: limit - 1]
    word_end = cut.rfind(" ")
    return (cut[:word_end] if word_end > limit // 2 else cut).rstrip() + "…"


def _sentences(text: str) -> list[str]:
    prose = _LINK_LIST.sub("", text)
    unmarked = _MARKUP.sub("", prose if prose.strip() else text)
    unmarked = _LINK.sub(lambda match: match[2] or match[1], unmarked)
    return [line for part in _SENTENCE.split(unmarked) if (line := clean_line(part))]
