"""The last line: the keys that do something here. A click does the same."""

from __future__ import annotations

from textual import events
from textual.binding import Binding
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget

from bdh_tui.text import Line


class KeyBar(Widget):
    """One line of text, where the library's own footer is a dozen widgets made anew each time."""

    DEFAULT_CSS = """
    KeyBar { height: 1; dock: bottom; background: $panel; text-wrap: nowrap; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._places: list[tuple[int, int, str]] = []

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._changed)

    def _changed(self, screen: Screen[object]) -> None:
        if screen is self.screen:
            self.refresh()

    def render(self) -> Content:
        line = Line()
        self._places = []
        # By what they do: an action that two keys call is shown once.
        actions = {
            active.binding.action: (active.node is self.app, active.binding)
            for active in reversed(self.screen.active_bindings.values())
            if active.binding.show and active.enabled
        }
        shown = list(reversed(actions.values()))
        # Help and Quit hold for all screens: what doesn't fit is left out before them.
        room = self.size.width - sum(self._width(binding) for general, binding in shown if general)
        for general, binding in shown:
            start = line.width
            if general or start + self._width(binding) <= room:
                line.add(f" {self.app.get_key_display(binding)} ", "bold $accent")
                line.add(f"{binding.description} ")
                self._places.append((start, line.width, binding.key))
        return line.content()

    def _width(self, binding: Binding) -> int:
        return len(self.app.get_key_display(binding)) + len(binding.description) + 3

    def on_click(self, event: events.Click) -> None:
        for start, end, key in self._places:
            if start <= event.x < end:
                self.app.simulate_key(key)
