"""The blacklist as text."""

from __future__ import annotations

from textual.strip import Strip
from textual.widgets import TextArea

from bdh_tui.fields import masked


class Editor(TextArea):
    """Draws a mark for every character that a terminal would obey."""

    def render_line(self, y: int) -> Strip:
        return masked(super().render_line(y))
