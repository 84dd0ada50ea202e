"""The provider chain in its order: who answers, who fails and why, who is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from bdh_bridge.operator.wording import hop
from bdh_tui.charts import beside, chart, spark
from bdh_tui.figures import FiguresPane
from bdh_tui.lines import LineList
from bdh_tui.providers.figures import NOT_ASKED, Provider, providers
from bdh_tui.text import BAD, GOOD, HEAD, MUTED, SKIP, Line, age, clock, count, number, plain
from bdh_tui.window import STEPS, WINDOWS


class ProvidersPane(FiguresPane):
    title: ClassVar[str] = "Providers"

    def __init__(self) -> None:
        super().__init__(id="providers", window=WINDOWS[2])
        self._providers: list[Provider] = []

    def compose(self) -> ComposeResult:
        yield Static(id="providers-head")
        yield Static(id="providers-columns", classes="columns")
        yield LineList(self._draw, empty="No provider was asked.")
        yield Static(id="providers-detail")

    def on_resize(self) -> None:
        width = self.lines.scrollable_content_region.width
        self.query_one("#providers-columns", Static).update(_header(width), layout=False)

    def question(self) -> Callable[[], Any]:
        loaded, own = self.bridge.loaded, not self.bridge.source.read_only
        reader, window = self.bridge.counting.reader, self.window
        chain = [name.strip() for name in loaded.settings.rewrite_chain.split(",")] if own else []
        return lambda: providers(reader, window, chain, loaded.paths.state)

    def answer(self, found: Any) -> bool:
        self._providers = found
        self.lines.show(len(found))
        self._head()
        self._detail()
        return False

    def forget(self) -> None:
        self._head()

    def _head(self) -> None:
        line = self.windows()
        asked = sum(provider.asked for provider in self._providers)
        line.add(f"   {number(asked)}", HEAD).add(" request" if asked == 1 else " requests", MUTED)
        settings = self.bridge.loaded.settings
        if not self.bridge.source.read_only and not settings.asks_model:
            line.add("\n Rewrite is off (BDH_QUERY_REWRITE_ENABLED): no turn asks them now.", SKIP)
        self.query_one("#providers-head", Static).update(line.content())

    def _draw(self, index: int, width: int) -> Content:
        return _line(self._providers[index], width)

    @on(LineList.Highlighted)
    def _detail(self) -> None:
        if not self._providers:
            return
        provider = self._providers[self.lines.cursor]
        line = Line().add(f" {plain(provider.name, 40)}", HEAD)
        line.add(f"  {plain(provider.model, 60)}", MUTED)
        for outcome, times in provider.outcomes.most_common():
            style = GOOD if outcome == "ok" else MUTED if outcome in NOT_ASKED else BAD
            line.add(f"\n   {number(times):>7}  ", HEAD).add(hop(outcome), style)
        if provider.last_error:
            line.add(f"\n last error {clock(provider.last_error_ns)}: ", MUTED)
            line.add(plain(provider.last_error, 300), BAD)
        if provider.circuit == "open":
            line.add(
                f"\n left alone after {count(provider.failures, 'failure')}, tried again in "
                f"{age(provider.retry_in)}",
                SKIP,
            )
        detail = self.query_one("#providers-detail", Static)
        width, told = self.size.width - 3, line.content()
        height = min(
            8, (self.size.height - told.plain.count("\n") - len(self._providers) - 10) // 2
        )
        charts = [
            *beside([chart("Answers", provider.trend, width, height, low=0)], width),
            *beside([chart("Failures", provider.failed, width, height, low=0)], width),
        ]
        if not provider.asked:
            height = 0  # nothing to draw
            told += Content.styled("\n   not asked in this window", MUTED)
        detail.update(told if height < 2 else Content("\n").join([told, Content(""), *charts]))

    # Keys

    @on(LineList.Activated)
    def _its_turns(self) -> None:
        if self._providers:
            name = self._providers[self.lines.cursor].name
            plainly = name.isidentifier()
            self.bridge.filter_live(f"provider:{name}" if plainly else f'"provider:{name}"')


def _header(width: int) -> Content:
    line = Line().add("    ").cell("provider", 14, MUTED).cell("asked", 7, MUTED, "right")
    line.cell("ok", 6, MUTED, "right").cell("p50", 8, MUTED, "right").cell("p95", 8, MUTED, "right")
    line.add("  ").cell("circuit", 18, MUTED)
    if width >= 110:
        line.cell("tokens in/out", 16, MUTED, "right").add("  ")
        room = _room(width - line.width)
        return line.cell("answers", room + 1, MUTED).add("failures", MUTED).content()
    return line.add("most frequent failure", MUTED).content()


def _line(provider: Provider, width: int) -> Content:
    place = f"{provider.place}." if provider.place else "·"
    line = Line().cell(place, 3, MUTED, "right").add(" ").cell(plain(provider.name, 14), 14)
    line.cell(number(provider.asked) if provider.asked else "·", 7, "", "right")
    share = provider.answered / provider.asked if provider.asked else None
    style = "" if share is None else GOOD if share >= 0.95 else SKIP if share >= 0.5 else BAD
    line.cell("" if share is None else f"{share:.0%}", 6, style, "right")
    for part in (0.5, 0.95):
        seconds = provider.percentile(part)
        line.cell("" if seconds is None else _seconds(seconds), 8, "", "right")
    line.add("  ").cell(_circuit(provider), 16, BAD if provider.circuit == "open" else MUTED).add(
        "  "
    )
    if width >= 110:
        tokens = f"{number(provider.input_tokens)}/{number(provider.output_tokens)}"
        line.cell(tokens if provider.input_tokens else "", 16, MUTED, "right").add("  ")
        room = _room(width - line.width)
        line.add(spark(provider.trend, room, low=0), GOOD).add(" ")
        return line.add(spark(provider.failed, room, low=0), BAD).content()
    failures = [(outcome, n) for outcome, n in provider.outcomes.most_common() if outcome != "ok"]
    if failures:
        line.add(f"{hop(failures[0][0])} ×{failures[0][1]}", MUTED)
    return line.content()


def _room(left: int) -> int:
    """Cells for each of two trends."""
    return max(8, min(STEPS, left // 2 - 2))


def _circuit(provider: Provider) -> str:
    if provider.circuit == "open":
        return f"open, {age(provider.retry_in)}"
    if provider.circuit != "closed":
        return provider.circuit
    return f"closed, {provider.failures} failed" if provider.failures else "closed"


def _seconds(value: float) -> str:
    return f"{value * 1_000:.0f} ms" if value < 1 else f"{value:.1f} s"
