"""Text on its way between the conversation and the graph: flattened, cleaned, bounded."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

CONTEXT_OPENING = "[BDH CONTEXT — optional]"
CONTEXT_CLOSING = "[/BDH CONTEXT]"

_OPENING = re.compile(r"\[BDH CONTEXT\b[^\]\n]{0,40}\]", re.IGNORECASE)
_CLOSING = re.compile(r"\[/BDH CONTEXT\]", re.IGNORECASE)
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

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
    words back.

    A block whose end was not quoted along reaches to the next blank line. Every character is
    looked at a fixed number of times, whatever the text: it may be megabytes of markers.
    """
    opening = _OPENING.search(text)
    if opening is None and _CLOSING.search(text) is None:
        return text
    kept: list[str] = []
    at, may_close = 0, True
    while opening is not None:
        kept.append(text[at : opening.start()])
        closing = _CLOSING.search(text, opening.end()) if may_close else None
        if closing is not None:
            at = closing.end()
        else:
            may_close = False  # nor is there a closing mark after any later opening
            blank = _BLANK_LINE.search(text, opening.end())
            at = blank.start() if blank else len(text)
        opening = _OPENING.search(text, at)
    kept.append(text[at:])
    return _CLOSING.sub("", "".join(kept)).strip()


def bounded(text: str, max_bytes: int) -> str:
    """``text`` cut to ``max_bytes`` of UTF-8, never inside a character; control characters
    other than line breaks and tabs are dropped, half surrogates replaced."""
    encoded = _CONTROLS.sub("", text[:max_bytes]).encode("utf-8", "replace")
    return encoded[:max_bytes].decode("utf-8", "ignore")


def defused(text: str, max_chars: int) -> str:
    """Foreign text of at most ``max_chars`` characters for a place that is known to be data.

    Lines stay; controls, invisible characters and half surrogates become blanks, and control
    tokens and role tags lose their brackets.
    """
    plain = _ROLE_MARK.sub(r" \1 ", _visible(text[:max_chars], keep="\n\t"))
    return plain.replace("<|", " ").replace("|>", " ")[:max_chars]


def one_line(text: str, max_chars: int) -> str:
    """Foreign text as one harmless line of at most ``max_chars`` characters.

    Compatibility forms are folded first, so that a full-width bracket is a bracket. Square
    brackets become round ones, and control tokens and role tags lose their brackets: the line
    can neither close a context block nor pose as another speaker.
    """
    # What is kept is bounded before the costly part; folding can lengthen text up to 18 times.
    folded = unicodedata.normalize("NFKC", text[: max_chars * 4])
    plain = _visible(folded).replace("[", "(").replace("]", ")")
    plain = _ROLE_MARK.sub(r" \1 ", plain).replace("<|", " ").replace("|>", " ")
    plain = " ".join(plain.split())
    if len(plain) <= max_chars:
        return plain
    return plain[: max_chars - 1].rstrip() + "…"


def without_secret(body: bytes, secret: str) -> bytes:
    """What a server says of a failed request, without the credential that it may quote."""
    return body.replace(secret.encode(), b"(secret)") if secret else body


def _visible(text: str, keep: str = "") -> str:
    return "".join(
        char if char in keep or unicodedata.category(char) not in _UNWANTED else " "
        for char in text
    )
