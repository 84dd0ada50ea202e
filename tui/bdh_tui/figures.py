"""What the screens of figures have in common: a window of time, counted again and again."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from bdh_tui.lines import LineList
from bdh_tui.pane import Pane
from bdh_tui.text import MUTED, Line
from bdh_tui.window import WINDOWS, Window

#: Seconds between two counts at least; a count that takes long is made less often.
EVERY, TIMES_ITS_COST = 3.0, 10.0


class FiguresPane(Pane):
    """A list with figures around it, counted off the loop while the screen is looked at."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w,right", "window(1)", "Window"),
        Binding("left", "window(-1)", "Window", show=False),
        Binding("enter", "activate", "Its turns"),
    ]

    def __init__(self, *, id: str, window: Window) -> None:  # noqa: A002 (Textual's own name)
        super().__init__(id=id)
        self.window = window
        self._next = 0.0
        self._counting = False
        self.no_answer = ""
        """Why there are no figures to be had."""

    @property
    def lines(self) -> LineList:
        return self.query_one(LineList)

    def first_focus(self) -> Widget:
        return self.lines

    @abstractmethod
    def question(self) -> Callable[[], Any]:
        """What is to be counted of :attr:`window`, for a thread."""

    @abstractmethod
    def answer(self, found: Any) -> bool:
        """Show what was counted; True if more of it is to be counted at once."""

    @abstractmethod
    def forget(self) -> None:
        """The window is another one: what is shown holds no longer."""

    def on_mount(self) -> None:
        self.set_interval(0.5, self._count_if_due)

    def entered(self) -> None:
        super().entered()
        self._next = 0.0
        self._count_if_due()

    def _count_if_due(self) -> None:
        if not self.display or self._counting or time.monotonic() < self._next:
            return
        self._counting = True
        window, began = self.window, time.monotonic()

        def then(found: Any) -> None:
            if window is not self.window:
                return
            self._counting, self.no_answer = False, ""
            if self.answer(found):
                self.call_later(self._count_if_due)
            else:
                took = time.monotonic() - began
                self._next = time.monotonic() + max(EVERY, TIMES_ITS_COST * took)

        self.in_thread(self.question(), then, "figures")

    def failed(self, group: str, error: Exception) -> None:
        if group == "figures":
            self._counting, self._next = False, time.monotonic() + EVERY
            missing = isinstance(error, FileNotFoundError)
            self.no_answer = "no spans yet" if missing else "the store can't be read"
            self.forget()

    def windows(self) -> Line:
        """The windows that there are, for the head of the screen."""
        line = Line().add(" ")
        for one in WINDOWS:
            line.add(f" {one.title} ", "reverse bold" if one is self.window else MUTED)
        return line

    def action_window(self, step: int) -> None:
        self.window = WINDOWS[(WINDOWS.index(self.window) + step) % len(WINDOWS)]
        self._next, self._counting = 0.0, False
        self.forget()
        self._count_if_due()
