"""Text as it may go to a model, to the graph and into SQLite: clean and bounded."""

from __future__ import annotations

#: Zero-width (non-)joiner: part of the spelling in Persian, in Indic scripts and in emoji.
_JOINERS = "\u200c\u200d"


def clean(text: str) -> str:
    """``text`` on one line: no control characters, no lone surrogates, single blanks.

    JSON may carry lone surrogates (``"\\ud800"``), which no UTF-8 encoder takes.
    """
    valid = text.encode("utf-8", "replace").decode("utf-8")
    kept = (char if char.isprintable() or char in _JOINERS else " " for char in valid)
    return " ".join("".join(kept).split())


def clip(text: str, limit: int) -> str:
    """At most ``limit`` characters, cut after a word where one ends in the last quarter."""
    if len(text) <= limit:
        return text
    head = text[: limit - 1]
    blank = head.rfind(" ")
    if blank >= limit * 3 // 4:
        head = head[:blank]
    return head.rstrip() + "…"


def clip_middle(text: str, limit: int) -> str:
    """At most ``limit`` characters: three quarters from the start, the rest from the end.

    A long message often begins with the topic and ends with the question.
    """
    if len(text) <= limit:
        return text
    tail = limit // 4
    return f"{text[: limit - tail - 3].rstrip()} … {text[-tail:].lstrip()}"
