"""Text on its way between the conversation and the graph: flattened, cleaned, bounded."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

CONTEXT_OPENING = "[BDH CONTEXT — optional]"
CONTEXT_CLOSING = "[/BDH CONTEXT]"

_CLOSED_BLOCK = re.compile(r"\[BDH CONTEXT\b[^\]]*\].*?\[/BDH CONTEXT\]", re.DOTALL | re.IGNORECASE)
#: A block whose end was not quoted along: up to the next blank line.
_OPEN_BLOCK = re.compile(r"\[BDH CONTEXT\b[^\]]*\].*?(?=\n\s*\n|\Z)", re.DOTALL | re.IGNORECASE)
_STRAY_CLOSING = re.compile(r"\[/BDH CONTEXT\]", re.IGNORECASE)

#: ``<|im_start|>``, ``</system>``, ``<assistant …>``: what chat templates mark speakers with.
_ROLE_MARK = re.compile(
    r"<\s*/?\s*(?:\|\s*([\w-]{1,40})\s*\|"
    r"|(?:system|user|assistant|human|developer|tool|function|model|ai)\b[^<>]{0,60})\s*>",
    re.IGNORECASE,
)

#: Unicode categories that have no place in one line of plain text: controls, format characters
#: (bidi overrides and zero-width ones among them), surrogates, private use, line separators.
_UNWANTED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def flatten(content: Any) -> str:
    """Message content as plain text: a string, or a list of blocks of which the text ones count."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts: list[str] = []
    for block in content:
        if isinstance(block, str):
            parts.append(block)
        elif isinstance(block, Mapping) and block.get("type") in (None, "text", "output_text"):
            text = block.get("text")
            if isinstance(text, str):
                parts.append(text)
    return "\n".join(parts)


def without_context_blocks(text: str) -> str:
    """``text`` without any context block that it quotes, so that the graph never learns its own
    words back."""
    if "BDH CONTEXT" not in text.upper():
        return text
    text = _CLOSED_BLOCK.sub("", text)
    text = _OPEN_BLOCK.sub("", text)
    return _STRAY_CLOSING.sub("", text).strip()


def bounded(text: str, max_bytes: int) -> str:
    """``text`` cut to ``max_bytes`` of UTF-8, never inside a character; control characters
    other than line breaks and tabs are dropped, half surrogates replaced."""
    cleaned = "".join(
        char for char in text if char in "\n\t" or unicodedata.category(char) not in ("Cc",)
    )
    encoded = cleaned.encode("utf-8", "replace")
    if len(encoded) <= max_bytes:
        return encoded.decode("utf-8")
    return encoded[:max_bytes].decode("utf-8", "ignore")


def one_line(text: str, max_chars: int) -> str:
    """Foreign text as one harmless line of at most ``max_chars`` characters.

    Compatibility forms are folded first, so that a full-width bracket is a bracket. Square
    brackets become round ones, and control tokens and role tags lose their brackets: the line
    can neither close a context block nor pose as another speaker.
    """
    # What is kept is bounded before the costly part; folding can lengthen text up to 18 times.
    folded = unicodedata.normalize("NFKC", text[: max_chars * 4])
    plain = "".join(char if unicodedata.category(char) not in _UNWANTED else " " for char in folded)
    plain = plain.replace("[", "(").replace("]", ")")
    plain = _ROLE_MARK.sub(r" \1 ", plain).replace("<|", " ").replace("|>", " ")
    plain = " ".join(plain.split())
    if len(plain) <= max_chars:
        return plain
    return plain[: max_chars - 1].rstrip() + "…"
