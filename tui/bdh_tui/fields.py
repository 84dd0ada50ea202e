"""A field to type in that shows no control character of what it holds.

A rule, or a message that a rule is made of, may hold escape sequences; the text stays as it is,
but each such character is drawn as a mark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.segment import Segment
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from bdh_otel.escape import escape

_MARK = "\N{REPLACEMENT CHARACTER}"


class Field(Input):
    """One line. With ``then``, Enter gives the focus to what that returns: at once, so that the
    next key is not typed into the field."""

    def __init__(
        self, *arguments: Any, then: Callable[[], Widget] | None = None, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._then = then

    def type_in(self, text: str) -> None:
        """As if ``text`` was typed."""
        if self.selection.is_empty:
            self.insert_text_at_cursor(text)
        else:
            self.replace(text, *self.selection)

    async def action_submit(self) -> None:
        if self._then is not None:
            self.screen.set_focus(self._then())
        await super().action_submit()

    def render_line(self, y: int) -> Strip:
        return masked(super().render_line(y))


def masked(strip: Strip) -> Strip:
    """The strip with a mark for every character that a terminal would obey instead of show."""
    if strip.text.isprintable():
        return strip
    segments = [
        Segment("".join(_shown(char) for char in text), style, control)
        for text, style, control in strip
    ]
    return Strip(segments).adjust_cell_length(strip.cell_length)


def _shown(char: str) -> str:
    return char if escape(char) == char else _MARK
