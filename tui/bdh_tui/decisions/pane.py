"""Which gate stops how much, for which reasons, and how near the scores are to their bounds."""

from __future__ import annotations

import time
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from bdh_tui.decisions import drawing
from bdh_tui.decisions.figures import Figures, examples, figures
from bdh_tui.lines import LineList
from bdh_tui.pane import Pane
from bdh_tui.text import MUTED, Line, plain
from bdh_tui.window import WINDOWS

#: Seconds between two counts at least; a count that takes long is made less often.
EVERY, TIMES_ITS_COST = 3.0, 10.0


class DecisionsPane(Pane):
    title: ClassVar[str] = "Decisions"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w,right", "window(1)", "Window"),
        Binding("left", "window(-1)", "Window", show=False),
        Binding("h", "histograms", "Scores"),
        Binding("enter", "activate", "Its turns"),
    ]

    def __init__(self) -> None:
        super().__init__(id="decisions")
        self._window = 1
        self._figures: Figures | None = None
        self._next = 0.0
        self._counting = False

    def compose(self) -> ComposeResult:
        yield Static(id="decisions-head")
        with Horizontal(id="decisions-top"):
            yield VerticalScroll(Static(), id="funnel")
            yield VerticalScroll(Static(), id="histograms")
        yield Static(Content.styled(" Why turns were stopped", MUTED), classes="columns")
        yield LineList(self._draw, empty="Nothing was stopped in this window.")
        yield Static(id="examples")

    @property
    def lines(self) -> LineList:
        return self.query_one(LineList)

    def first_focus(self) -> Widget:
        return self.lines

    def on_mount(self) -> None:
        self.set_interval(0.5, self._count_if_due)

    def entered(self) -> None:
        super().entered()
        self._next = 0.0
        self._count_if_due()

    def on_resize(self) -> None:
        self.set_class(self.size.width < 100 or self.size.height < 22, "-narrow")
        self._show()

    # Counting

    def _count_if_due(self) -> None:
        if not self.display or self._counting or time.monotonic() < self._next:
            return
        self._counting = True
        reader, window, began = self.bridge.counting.reader, WINDOWS[self._window], time.monotonic()

        def then(found: Figures) -> None:
            took = time.monotonic() - began
            self._next = time.monotonic() + max(EVERY, TIMES_ITS_COST * took)
            self._counting = False
            if window is WINDOWS[self._window]:
                self._figures = found
                self._show()

        self.in_thread(lambda: figures(reader, window), then, "figures")

    def failed(self, group: str, error: Exception) -> None:
        self._counting, self._next = False, time.monotonic() + EVERY

    def _show(self) -> None:
        found, width = self._figures, self.size.width
        head = drawing.head(found, WINDOWS[self._window], width)
        self.query_one("#decisions-head", Static).update(head)
        if found is None:
            return
        half = width if self.has_class("-narrow") else width // 2 - 1
        funnels = [
            drawing.funnel(
                f"{path.capitalize()} path",
                steps,
                [reason for reason in found.reasons if reason.path == path],
                half - 2,
            )
            for path, steps in found.funnels.items()
        ]
        self.query_one("#funnel Static", Static).update(Content("\n").join(funnels))
        height = 3 if self.size.height < 45 else 5
        drawn = [drawing.histogram(one, half - 2, height) for one in found.histograms]
        self.query_one("#histograms Static", Static).update(Content("\n").join(drawn))
        self.lines.show(len(found.reasons))
        self._examples()

    def _draw(self, index: int, width: int) -> Content:
        assert self._figures is not None
        reasons = self._figures.reasons
        total = sum(self._figures.turns)
        return drawing.reason_line(reasons[index], reasons[0].count, total, width)

    @on(LineList.Highlighted)
    def _examples(self) -> None:
        if self._figures is None or not self._figures.reasons:
            self.query_one("#examples", Static).update("")
            return
        reason = self._figures.reasons[min(self.lines.cursor, len(self._figures.reasons) - 1)]
        reader, window = self.bridge.counting.reader, WINDOWS[self._window]

        def then(found: list[str]) -> None:
            told = [Line().add(" e.g. ", MUTED).add(plain(text, 300)).content() for text in found]
            self.query_one("#examples", Static).update(Content("\n").join(told))

        self.in_thread(lambda: examples(reader, reason, window, 3), then, "examples")

    # Keys

    def action_window(self, step: int) -> None:
        self._window = (self._window + step) % len(WINDOWS)
        self._figures, self._next, self._counting = None, 0.0, False
        self._show()
        self._count_if_due()

    def action_histograms(self) -> None:
        """On a small screen, scores in the funnel's place."""
        self.toggle_class("-scores")

    @on(LineList.Activated)
    def _its_turns(self) -> None:
        if self._figures is not None and self._figures.reasons:
            reason = self._figures.reasons[self.lines.cursor]
            self.bridge.filter_live(
                f"gate:{reason.gate} path:{reason.path} decision:skip reason:{reason.reason}"
            )
