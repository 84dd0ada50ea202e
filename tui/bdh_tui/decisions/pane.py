"""Which gate stops how much, for which reasons, and how near the scores are to their bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from bdh_tui.decisions import drawing
from bdh_tui.decisions.figures import Figures, examples, figures
from bdh_tui.decisions.tally import Tally
from bdh_tui.figures import FiguresPane
from bdh_tui.lines import LineList
from bdh_tui.text import MUTED, Line, plain
from bdh_tui.window import WINDOWS, Window

NOTHING = "Nothing was stopped in this window."


class DecisionsPane(FiguresPane):
    title: ClassVar[str] = "Decisions"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("h", "histograms", "Scores"),
    ]

    def __init__(self) -> None:
        super().__init__(id="decisions", window=WINDOWS[1])
        self._figures: Figures | None = None
        self._tallies: dict[Window, Tally] = {}

    def compose(self) -> ComposeResult:
        yield Static(id="decisions-head")
        with Horizontal(id="decisions-top"):
            yield VerticalScroll(Static(), id="funnel")
            yield VerticalScroll(Static(), id="histograms")
        yield Static(Content.styled(" Why turns were stopped", MUTED), classes="columns")
        yield LineList(self._draw)
        yield Static(id="examples")

    def on_resize(self) -> None:
        self.set_class(self.size.width < 100 or self.size.height < 22, "-narrow")
        self._show()

    def question(self) -> Callable[[], Any]:
        reader = self.bridge.counting.reader
        tally = self._tallies.setdefault(self.window, Tally(reader, self.window))
        return lambda: figures(tally.advance())

    def answer(self, found: Any) -> bool:
        assert isinstance(found, Figures)
        self._figures = found
        self._show()
        return found.share < 1

    def forget(self) -> None:
        self._figures = None
        self._show()

    def _show(self) -> None:
        found, width = self._figures, self.size.width
        head = drawing.head(self.windows(), found, width, self.no_answer)
        self.query_one("#decisions-head", Static).update(head)
        self.lines.empty = NOTHING if found is not None else ""
        if found is None:
            self.lines.show(0)
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
        reader, window = self.bridge.counting.reader, self.window

        def then(found: list[str]) -> None:
            told = [Line().add(" e.g. ", MUTED).add(plain(text, 300)).content() for text in found]
            self.query_one("#examples", Static).update(Content("\n").join(told))

        self.in_thread(lambda: examples(reader, reason, window, 3), then, "examples")

    # Keys

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
