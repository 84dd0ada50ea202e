"""The names of the screens on one line; a click opens one."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from bdh_tui.text import MUTED, Line


class TabStrip(Widget):
    DEFAULT_CSS = "TabStrip { height: 1; background: $panel; text-wrap: nowrap; }"

    active: reactive[str] = reactive("")

    class Chosen(Message):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, tabs: Sequence[tuple[str, str]]) -> None:
        """``tabs``: name and title of each, in the order of their number keys."""
        super().__init__()
        self._tabs = tabs
        self._places: list[tuple[int, int, str]] = []

    def render(self) -> object:  # type: ignore[override]
        # Seven and more tabs have to fit 80 cells.
        gap = "  " if self.size.width >= 100 else " "
        line = Line()
        self._places = []
        for number, (name, title) in enumerate(self._tabs, start=1):
            start = line.width
            active = name == self.active
            line.add(f" {number} ", "bold $accent" if active else MUTED)
            line.add(f"{title}", "bold underline" if active else "")
            self._places.append((start, line.width, name))
            line.add(gap if number < len(self._tabs) else "")
        return line.content()

    def on_click(self, event: events.Click) -> None:
        for start, end, name in self._places:
            if start <= event.x <= end:
                self.post_message(self.Chosen(name))
