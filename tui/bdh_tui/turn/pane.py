"""One turn: why it went as it did, its tree with a waterfall, and the span under the cursor."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from textwrap import wrap
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from bdh_bridge.operator.explain import explain
from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.reader import StoredSpan
from bdh_otel.tree import duration
from bdh_tui.lines import LineList
from bdh_tui.pane import Pane
from bdh_tui.tail import News
from bdh_tui.text import HEAD, MUTED, Line, clock, count, lines, plain
from bdh_tui.turn.details import details
from bdh_tui.turn.waterfall import Branch, Scale, branches, draw


class TurnPane(Pane):
    title: ClassVar[str] = "Turn"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left_square_bracket", "step(1)", "Older"),
        Binding("right_square_bracket", "step(-1)", "Newer"),
        Binding("enter", "activate", "Whole span"),
        Binding("c", "context", "Context"),
        Binding("y", "copy_id", "Copy trace id"),
        Binding("o", "open", "Open in backend"),
        Binding("e", "export", "Export JSON"),
        Binding("f", "feedback", "Correct it", show=False),
        Binding("b", "blacklist", "Blacklist it", show=False),
        Binding("escape", "back", "Back", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(id="turn")
        self.trace_id = ""
        self.spans: list[StoredSpan] = []
        self._branches: list[Branch] = []
        self._scale = Scale(0, 1)
        self._late: list[StoredSpan] = []
        self.lines = LineList(self._draw, empty="No turn is chosen. Press 1, then Enter on one.")

    def compose(self) -> ComposeResult:
        yield Static(id="turn-head")
        yield Static(id="turn-why")
        yield self.lines
        with VerticalScroll(id="turn-details"):
            yield Static()

    def first_focus(self) -> Widget:
        return self.lines

    def entered(self) -> None:
        super().entered()
        if not self.trace_id:
            self._newest()

    def open(self, trace_id: str) -> None:
        """Show this trace."""
        same = trace_id == self.trace_id
        self.trace_id = trace_id
        cursor = self.lines.cursor if same else 0
        history = self.bridge.history

        def then(found: tuple[list[StoredSpan], list[StoredSpan]]) -> None:
            if trace_id == self.trace_id:
                self._show(*found, cursor)

        self.in_thread(lambda: history.trace(trace_id), then, "trace")

    def take(self, news: News) -> None:
        if news.reload or any(turn.trace_id == self.trace_id for turn in news.turns):
            if self.trace_id:
                self.open(self.trace_id)
            elif self.display:
                self._newest()

    def _newest(self) -> None:
        history = self.bridge.history

        def then(trace_ids: list[str]) -> None:
            if trace_ids and not self.trace_id:
                self.open(trace_ids[0])

        self.in_thread(lambda: [turn.trace_id for turn in history.page(1)], then, "newest")

    def _show(self, spans: list[StoredSpan], late: list[StoredSpan], cursor: int) -> None:
        self.spans, self._late = spans, late
        self._branches = branches([*spans, *late])
        self._scale = Scale.of(spans, time.time_ns())
        self.query_one("#turn-head", Static).update(self._head())
        self.query_one("#turn-why", Static).update(self._why())
        self.lines.show(len(self._branches), cursor=cursor)
        self._detail()

    def _head(self) -> Content:
        root = next((span for span in self.spans if span.name == names.TURN), None)
        if root is None:
            return Content.styled(f" trace {self.trace_id}", MUTED)
        message = plain(str(root.attributes.get(attr.TURN_MESSAGE, "")), 300)
        first = Line().add(f" {message or '(message not kept)'}", HEAD if message else MUTED)
        parts = [clock(root.start_ns), duration(root.duration_ns), plain(root.platform or "", 30)]
        parts.append(f"session {plain(root.session or '', 60)}")
        parts.append(plain(str(root.attributes.get(attr.REQUEST_MODEL, "")), 40))
        second = " · ".join(part for part in [*parts, f"trace {self.trace_id[:16]}…"] if part)
        return Content.assemble(first.content(), "\n", Line().add(f" {second}", MUTED).content())

    def _why(self) -> Content:
        told = []
        width = max(20, self.size.width - 13)
        for sentence in explain(self.spans, self._late):
            line = Line().add(f" {sentence.mark} ", sentence.style).cell(sentence.subject, 8, HEAD)
            told.append(line.add(f"\n{' ' * 11}".join(wrap(sentence.text, width))).content())
        return Content("\n").join(told)

    def on_resize(self) -> None:
        # Where there is no room for all, the tree keeps its own; Enter shows the span.
        self.set_class(self.size.height < 28, "-short")
        # Afterwards: what changes the layout while it is being made is overlooked.
        self.call_after_refresh(self._wrap_anew)

    def _wrap_anew(self) -> None:
        if self.spans:
            self.query_one("#turn-why", Static).update(self._why())

    def _draw(self, index: int, width: int) -> Content:
        return draw(self._branches[index], self._scale, width)

    @on(LineList.Highlighted)
    def _detail(self) -> None:
        holder = self.query_one("#turn-details", VerticalScroll)
        branch = self._branches[self.lines.cursor] if self._branches else None
        holder.query_one(Static).update(details(branch.span) if branch else "")
        holder.scroll_home(animate=False)

    @on(LineList.Activated)
    def _whole_detail(self, event: LineList.Activated) -> None:
        from bdh_tui.dialogs import Show

        span = self._branches[event.index].span
        self.app.push_screen(Show(plain(span.name, 80), details(span)))

    # Keys

    def action_step(self, step: int) -> None:
        """The turn before or after, in the order of the list."""
        neighbour = self.bridge.neighbour(self.trace_id, step)
        if neighbour:
            self.open(neighbour)
        else:
            self.notify("There is no further turn in the list.")

    async def action_back(self) -> None:
        await self.bridge.action_show("live")

    def action_context(self) -> None:
        """What the model was given, as far as this machine keeps it."""
        from bdh_tui.dialogs import Show

        context = next((span for span in self.spans if span.name == names.CONTEXT), None)
        if context is None:
            self.notify("Nothing was given to the model in this turn.")
            return
        text = context.attributes.get(attr.CONTEXT_TEXT)
        if text:
            whole = len(str(text)) >= (context.attributes.get(attr.CONTEXT_CHARACTERS) or 0)
            title = "Context given to the model" + ("" if whole else " (its beginning)")
            self.app.push_screen(Show(title, lines(str(text))))
        else:
            self.notify("The text is not kept here (BDH_OTEL_CONTENT=off, or it was not sent).")
            self.app.push_screen(Show("Context given to the model", details(context)))

    def action_copy_id(self) -> None:
        if self.trace_id:
            self.app.copy_to_clipboard(self.trace_id)
            self.notify(f"Copied {self.trace_id}")

    def action_open(self) -> None:
        if not self.trace_id:
            return
        url = self.bridge.trace_url(self.trace_id)
        self.app.copy_to_clipboard(url)
        # Without a display there is no browser of the operator's on this machine.
        if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or _is_mac():
            self.app.open_url(url)
            self.notify(f"Opened, and copied: {url}", markup=False)
        else:
            self.notify(f"Copied: {url}", markup=False)

    def action_export(self) -> None:
        """One JSON object a span, into a new file of the current directory."""
        if not self.spans:
            return
        target = Path.cwd() / f"trace-{self.trace_id[:16]}.jsonl"
        text = "".join(f"{json.dumps(span.as_json())}\n" for span in [*self.spans, *self._late])
        try:
            # Owner-only: it holds what people wrote.
            descriptor = os.open(target, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            self.notify(f"Not written: {error}", severity="error", markup=False)
        else:
            self.notify(f"Wrote {count(len(self.spans), 'span')} to {target}", markup=False)

    def action_feedback(self) -> None:
        """Say what would have been right; ``bdh-bridge router train`` learns from it."""
        from bdh_tui.dialogs import Choose
        from bdh_tui.turn import feedback

        if self.bridge.source.read_only:
            self.notify("Only turns of this machine can be corrected.")
            return
        trace_id = self.trace_id
        if not trace_id:
            return

        def told(chosen: int | None) -> None:
            if chosen is not None:
                history, loaded = self.bridge.history, self.bridge.loaded
                self.in_thread(
                    lambda: feedback.keep(history.reader, loaded.paths, trace_id, chosen),
                    lambda sentence: self.notify(sentence, markup=False),
                    "feedback",
                )

        self.app.push_screen(Choose(feedback.QUESTION, feedback.OPTIONS), told)

    def action_blacklist(self) -> None:
        root = next((span for span in self.spans if span.name == names.TURN), None)
        if root is not None:
            self.bridge.blacklist_prompt(str(root.attributes.get(attr.TURN_MESSAGE, "")))


def _is_mac() -> bool:
    import sys

    return sys.platform == "darwin"
