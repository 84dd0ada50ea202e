"""A queue's rows, their reasons, and the two remedies: discard and requeue."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from bdh_tui.dialogs import Confirm, Show
from bdh_tui.lines import LineList
from bdh_tui.pane import Pane
from bdh_tui.queue.desk import Desk, DeskError, Item
from bdh_tui.text import BAD, MUTED, SKIP, Line, age, lines, number, plain

LIMIT = 1_000
EVERY = 2.0
VIEWS = ("waiting or in trouble", "in trouble", "all")
_TONES = {"waiting": ("…", SKIP), "trouble": ("!", BAD), "settled": ("·", MUTED)}


class QueuePane(Pane):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "view", "Which"),
        Binding("enter", "activate", "Payload"),
        Binding("r", "requeue", "Requeue"),
        Binding("x", "discard", "Discard"),
        Binding("n", "deliver", "Deliver now"),
        Binding("o", "trace", "Its turn"),
    ]

    def __init__(self, id: str) -> None:  # noqa: A002 (Textual's own name)
        super().__init__(id=id)
        self._desk: Desk | None = None
        self._items: list[Item] = []
        self._counts: dict[str, int] | None = {}
        self._view = 0
        self._trouble = ""
        self._note = ""

    def make_desk(self) -> Desk:
        raise NotImplementedError

    @property
    def desk(self) -> Desk:
        if self._desk is None:
            self._desk = self.make_desk()
        return self._desk

    def compose(self) -> ComposeResult:
        yield Static(classes="queue-head")
        yield Static(classes="columns queue-columns")
        yield LineList(self._draw)
        yield Static(classes="queue-detail")

    @property
    def lines(self) -> LineList:
        return self.query_one(LineList)

    def first_focus(self) -> Widget:
        return self.lines

    def on_mount(self) -> None:
        self.load()
        self.set_interval(EVERY, self._refresh)

    def on_unmount(self) -> None:
        if self._desk is not None:
            self._desk.close()

    def on_resize(self) -> None:
        width = self.lines.scrollable_content_region.width
        self.query_one(".queue-columns", Static).update(_header(width))
        self._head()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not (action == "deliver" and not self.desk.delivers)

    # Loading

    def load(self) -> None:
        desk = self.desk
        wanted = [state for state, tone in desk.states.items() if self._shown(tone)]

        def work() -> tuple[dict[str, int] | None, list[Item], str, str]:
            try:
                counts = desk.counts()
                if not counts:
                    return counts, [], "", ""
                return counts, desk.items(wanted, LIMIT), desk.note(), ""
            except DeskError as error:
                return None, [], "", str(error)

        def then(found: tuple[dict[str, int] | None, list[Item], str, str]) -> None:
            at = self._items[self.lines.cursor].id if self._items else ""
            self._counts, self._items, self._note, self._trouble = found
            ids = [item.id for item in self._items]
            self.lines.empty = self._nothing()
            self.lines.show(len(ids), cursor=ids.index(at) if at in ids else None)
            self._head()
            self._detail()

        self.in_thread(work, then, "queue")

    def _refresh(self) -> None:
        if self.display:
            self.load()

    def _shown(self, tone: str) -> bool:
        return self._view == 2 or tone == "trouble" or (self._view == 0 and tone == "waiting")

    def _nothing(self) -> str:
        if self._trouble:
            return plain(self._trouble, 200)
        if self._counts is None:
            return f"There is no {self.desk.name} yet: it appears with the first row."
        return (
            f"Nothing is {VIEWS[self._view]}. f shows other rows." if self._view < 2 else "Empty."
        )

    # Drawing

    def _head(self) -> None:
        line = Line().add(" ")
        if self._trouble:
            line.add(f"! {plain(self._trouble, 300)}", BAD)
        counts = self._counts or {}
        for state, tone in self.desk.states.items():
            count = counts.get(state, 0)
            if not count and self.size.width < 110:
                continue
            style = MUTED if not count else BAD if tone == "trouble" else ""
            line.add(f"{number(count)} ", style).add(f"{state.replace('_', ' ')}   ", MUTED)
        line.add(f"\n shown: {VIEWS[self._view]}", MUTED)
        if len(self._items) == LIMIT:
            line.add(f", the newest {number(LIMIT)}", SKIP)
        if self._note:
            line.add(f"\n {plain(self._note, 300)}", MUTED)
        self.query_one(".queue-head", Static).update(line.content())

    def _draw(self, index: int, width: int) -> Content:
        item = self._items[index]
        mark, style = _TONES[item.tone]
        line = Line().add(f" {mark} ", style)
        line.cell(item.state.replace("_", " "), 12, style if item.tone == "trouble" else "")
        line.cell(age(time.time() - item.since), 7, MUTED, "right").add("  ")
        line.cell(f"{item.attempts}x", 4, MUTED, "right").add("  ")
        if width >= 100:
            line.cell(plain(item.where, 40), 18, MUTED).add(" ")
        left = width - line.width
        why = left // 2 if width >= 100 else 0
        what = plain(item.what, 300) or "(text dropped)"
        line.cell(what, left - why - 2, "" if item.what else MUTED).add("  ")
        return line.cell(plain(item.why, 200), why, MUTED).content()

    @on(LineList.Highlighted)
    def _detail(self) -> None:
        item = self._item()
        line = Line()
        if item is not None:
            line.add(f" {item.state.replace('_', ' ')}: ", "bold").add(plain(item.why, 300))
            risk = self.desk.risk(item) if self.desk.can_requeue(item) else ""
            line.add(f"\n ! Requeueing: {risk}" if risk else "", SKIP)
            line.add(f"\n {item.id} · {plain(item.where, 60)}", MUTED)
        self.query_one(".queue-detail", Static).update(line.content())

    def _item(self) -> Item | None:
        return self._items[self.lines.cursor] if self._items else None

    # Keys

    def action_view(self) -> None:
        self._view = (self._view + 1) % len(VIEWS)
        self.load()

    @on(LineList.Activated)
    def _payload(self) -> None:
        item = self._item()
        if item is None:
            return

        def then(text: str) -> None:
            self.app.push_screen(Show(f"{item.state} {item.id}", lines(text)))

        self._try(lambda: self.desk.text(item), then)

    def action_requeue(self) -> None:
        item = self._item()
        if item is None:
            return
        if not self.desk.can_requeue(item):
            self.notify(f"What is {item.state.replace('_', ' ')} can't be requeued.")
            return
        risk = self.desk.risk(item)

        def done(yes: bool | None) -> None:
            if yes:
                self._try(lambda: self.desk.requeue([item]), self._done)

        question = Confirm("Put it back into the queue?", risk, phrase="requeue" if risk else "")
        self.app.push_screen(question, done)

    def action_discard(self) -> None:
        item = self._item()
        if item is None:
            return
        if not self.desk.can_discard(item):
            self.notify(f"What is {item.state.replace('_', ' ')} can't be discarded.")
            return

        def done(yes: bool | None) -> None:
            if yes:
                self._try(lambda: self.desk.discard([item]), self._done)

        detail = "Its text is dropped for good; the row stays listed as discarded."
        self.app.push_screen(Confirm("Discard it?", detail), done)

    def action_deliver(self) -> None:
        self._try(self.desk.deliver, self._done)

    def action_trace(self) -> None:
        item = self._item()
        if item is not None and item.trace_id:
            self.bridge.open_turn(item.trace_id)
        else:
            self.notify("Its turn is not on record.")

    def _try(self, work: Callable[[], str], then: Callable[[str], None]) -> None:
        def attempt() -> tuple[str, str]:
            try:
                return work(), ""
            except DeskError as error:
                return "", str(error)

        def show(found: tuple[str, str]) -> None:
            text, trouble = found
            if trouble:
                self.notify(plain(trouble, 300), severity="error", markup=False)
            else:
                then(text)

        self.in_thread(attempt, show, "deed")

    def _done(self, text: str) -> None:
        self.notify(text, markup=False)
        self.load()


def _header(width: int) -> Content:
    line = Line().add("   ").cell("state", 12, MUTED).cell("age", 7, MUTED, "right").add("  ")
    line.cell("tries", 5, MUTED, "right").add(" ")
    if width >= 100:
        line.cell("to", 19, MUTED)
    left = width - line.width
    why = left // 2 if width >= 100 else 0
    return line.cell("text", left - why, MUTED).cell("why", why, MUTED).content()
