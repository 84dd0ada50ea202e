"""Text for a terminal's cells: escaped, measured, cut.

Whatever comes from a message, a file or a peer passes through :func:`plain`, :func:`lines` or
:class:`Line` before it is shown; none of it is ever taken for markup.
"""

from __future__ import annotations

from typing import Literal

from rich.cells import cell_len, set_cell_size
from textual.content import Content

from bdh_bridge.operator.plain import (
    ACCENT,
    BAD,
    GOOD,
    HEAD,
    MUTED,
    SKIP,
    age,
    clock,
    count,
    lines,
    number,
    plain,
)

__all__ = [
    "ACCENT",
    "BAD",
    "GOOD",
    "HEAD",
    "MUTED",
    "SKIP",
    "Align",
    "Line",
    "age",
    "clock",
    "count",
    "fit",
    "lines",
    "number",
    "plain",
]

Align = Literal["left", "right"]


def fit(text: str, width: int, align: Align = "left") -> str:
    """``text`` (escaped already) in exactly ``width`` cells."""
    if width <= 0:
        return ""
    used = cell_len(text)
    if used > width:
        return set_cell_size(text, width - 1) + "…"
    padding = " " * (width - used)
    return padding + text if align == "right" else text + padding


def tail(text: str, limit: int) -> str:
    """The end of ``text``, which is what tells paths apart."""
    return text if len(text) <= limit else f"…{text[1 - limit :]}"


class Line:
    """A line in the making: pieces of text, each with a style."""

    def __init__(self) -> None:
        self._parts: list[tuple[str, str]] = []
        self.width = 0

    def add(self, text: str, style: str = "") -> Line:
        if text:
            self._parts.append((text, style))
            self.width += cell_len(text)
        return self

    def cell(self, text: str, width: int, style: str = "", align: Align = "left") -> Line:
        return self.add(fit(text, width, align), style)

    def content(self) -> Content:
        return Content.assemble(*self._parts)
