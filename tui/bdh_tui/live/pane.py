"""The list of turns: newest on top, following what happens until the operator scrolls."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Static

from bdh_tui.fields import Field
from bdh_tui.filters import Filter, FilterError
from bdh_tui.lines import LineList
from bdh_tui.live import row
from bdh_tui.pane import Pane
from bdh_tui.tail import News
from bdh_tui.text import BAD, GOOD, MUTED, SKIP, Line, clock, number, plain
from bdh_tui.turns import TurnSummary

NOTHING = "No turns yet. They appear here as they happen."
PAGE = 100
#: Turns kept while following; older ones come back from the store when they are scrolled to.
KEPT = 500
#: Turns that one search for matches of a filter goes through before it asks to be sent on.
SEARCHED = 4_000

READY_MADE = (
    "gate:blacklist decision:skip",
    "decision:failed",
    "write:trouble",
    "write:waiting",
    "platform:cron",
    "hop:timeout",
    "gate:circuit decision:skip",
    "took>5s",
)


class LivePane(Pane):
    title: ClassVar[str] = "Live"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "activate", "Open"),
        Binding("slash", "filter", "Filter"),
        Binding("f", "follow", "Follow"),
        Binding("s", "save_filter", "Save filter", show=False),
        Binding("S", "saved_filters", "Saved filters"),
        Binding("b", "blacklist", "Blacklist it"),
        Binding("escape", "clear", "Clear filter", show=False),
    ]

    class Opened(Message):
        """A turn was chosen."""

        def __init__(self, trace_id: str) -> None:
            super().__init__()
            self.trace_id = trace_id

    def __init__(self) -> None:
        super().__init__(id="live")
        self.turns: list[TurnSummary] = []
        self._filter = Filter("", ())
        self._older = True
        self._loading = False
        self._loaded_once = False
        self._fresh = 0
        self._uncounted = False
        """More is new than was counted one by one."""
        self._searched_to: TurnSummary | None = None
        # Kept here: news may come in while the application is being taken down.
        self.lines = LineList(self._draw, of=lambda index: self.turns[index], empty=NOTHING)
        self._field = Field(
            placeholder="/ filter: gate:blacklist decision:skip text:…",
            compact=True,
            then=lambda: self.lines,
        )
        self._state = Static(id="live-state")
        self._header = Static(id="live-header", classes="columns")

    def compose(self) -> ComposeResult:
        yield Horizontal(self._field, self._state, id="live-bar")
        yield self._header
        yield self.lines

    @property
    def following(self) -> bool:
        return self.lines.cursor == 0 and self.lines.scroll_offset.y == 0

    def first_focus(self) -> Widget:
        return self.lines

    def on_mount(self) -> None:
        self.load()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not (action == "blacklist" and self.bridge.source.read_only)

    def on_resize(self) -> None:
        width = self.lines.scrollable_content_region.width
        self._header.update(row.header(width), layout=False)

    # Loading

    def load(self) -> None:
        """Start over from the newest turn."""
        self._older, self._fresh, self._uncounted, self._searched_to = True, 0, False, None
        self._search(None, [])

    def _search(self, before: tuple[int, int] | None, found: list[TurnSummary]) -> None:
        """Read older turns until a page of matches is full, off the loop."""
        history, wanted, start_over = self.bridge.history, self._filter, before is None
        self._loading = True
        since = [0]

        def work() -> tuple[list[TurnSummary], TurnSummary | None, bool]:
            # Before the page is read: what is stored meanwhile comes twice rather than never.
            since[0] = history.reader.last_seq() if start_over else 0
            matches: list[TurnSummary] = []
            last, position = None, before
            for _ in range(SEARCHED // PAGE if wanted else 1):
                turns = history.page(PAGE, position)
                matches += filter(wanted, turns)
                if turns:
                    last = turns[-1]
                    position = last.sort
                if len(turns) < PAGE:
                    return matches, last, False
                if len(matches) >= PAGE:
                    break
            return matches, last, True

        def then(result: tuple[list[TurnSummary], TurnSummary | None, bool]) -> None:
            self.bridge.follow(since[0])
            matches, last, self._older = result
            self._loading = False
            self._loaded_once = True
            self._searched_to = last or self._searched_to
            if start_over:
                self.turns = matches
                self.lines.show(len(self.turns), cursor=0)
                self.lines.scroll_home(animate=False)
            else:
                self.turns += matches
                self.lines.show(len(self.turns))
            self._say()

        self.in_thread(work, then, "turns")

    def failed(self, group: str, error: Exception) -> None:
        self._loading = False
        self.bridge.follow(0)
        self._say()

    @on(LineList.Highlighted)
    def _near_the_end(self, event: LineList.Highlighted) -> None:
        if self.following and (self._fresh or self._uncounted):
            self.load()
        elif event.index >= len(self.turns) - 20:
            self._load_older()
        self._say()

    def _load_older(self) -> None:
        if self._older and not self._loading and self._searched_to is not None:
            self._search(self._searched_to.sort, self.turns)

    def trouble(self, reason: str) -> None:
        """The store can't be read: say so where the turns would be."""
        self._loaded_once = True
        if reason and not self.turns:
            self.lines.empty = plain(reason, 300)
            self.lines.refresh()

    # News

    def take(self, news: News) -> None:
        """Show what the tail found."""
        if self._loading or not self._loaded_once:
            # The page that is being read may or may not hold it: read once more.
            if not self._loading or news.turns or news.reload:
                self.call_later(self._reload_when_done)
            return
        if news.reload:
            if self.following:
                self.load()
            else:
                self._uncounted = True
                self._say()
            return
        self._merge(news.turns)
        self._say()

    def _reload_when_done(self) -> None:
        if self._loading:
            self.set_timer(0.1, self._reload_when_done)
        elif self.following:
            self.load()

    def _merge(self, turns: list[TurnSummary]) -> None:
        places = {turn.trace_id: place for place, turn in enumerate(self.turns)}
        new: list[TurnSummary] = []
        for turn in turns:
            place = places.get(turn.trace_id)
            if place is not None:
                # It stays although a filter may not match any more: lines must not jump.
                self.turns[place] = turn
            elif self._filter(turn) and self._is_newer(turn):
                new.append(turn)
        if new and self.following:
            merged = sorted([*new, *self.turns], key=lambda turn: turn.sort, reverse=True)
            if len(merged) > KEPT:
                merged = merged[:KEPT]
                self._older, self._searched_to = True, merged[-1]
            self.turns = merged
            self.lines.show(len(self.turns), cursor=0)
            return
        self._fresh += len(new)
        self.lines.refresh()

    def _is_newer(self, turn: TurnSummary) -> bool:
        """Older ones than the list's last come by scrolling."""
        return not self.turns or turn.sort > self.turns[-1].sort or not self._older

    # Drawing

    def _draw(self, index: int, width: int) -> Content:
        return row.draw(self.turns[index], width)

    def _say(self) -> None:
        line = Line()
        if self._loading and not self._loaded_once:
            line.add("reading… ", MUTED)
        elif self.following:
            line.add("● following ", GOOD)
        else:
            more = "+" if self._uncounted else ""
            new = f", {number(self._fresh)}{more} new" if self._fresh or more else ""
            line.add(f"❚❚ paused{new}: f follows ", SKIP)
        if self._filter and self._older and self._searched_to is not None:
            line.add(f"searched to {clock(self._searched_to.start_ns)}, go down for more ", MUTED)
        self._tell(line.content())
        self.lines.empty = (
            "No turn matches the filter." if self._filter else
            NOTHING
        )  # fmt: skip

    def _tell(self, told: Content) -> None:
        """Beside the filter. Said anew with every span that comes in: a new layout of the whole
        screen is only for words that take another width."""
        known = self._state.content
        if told != known:
            same = isinstance(known, Content) and known.cell_length == told.cell_length
            self._state.update(told, layout=not same)

    def set_filter(self, text: str) -> None:
        self._field.value = text
        self.take_focus(self.lines)

    # Keys

    def action_filter(self) -> None:
        self.take_focus(self._field)

    def action_follow(self) -> None:
        self.lines.cursor = 0
        self.lines.scroll_home(animate=False)
        self.load()

    def action_clear(self) -> None:
        field = self._field
        if field.value:
            field.value = ""
        self.take_focus(self.lines)

    def action_save_filter(self) -> None:
        if self._filter:
            self.bridge.preferences.add_filter(self._filter.source)
            self.notify("Saved. S lists what is saved.")
        else:
            self.notify("There is no filter to save.", severity="warning")

    def action_saved_filters(self) -> None:
        from bdh_tui.dialogs import Choose

        own = self.bridge.preferences.filters
        choices = [*own, *(one for one in READY_MADE if one not in own)]

        def chosen(index: int | None) -> None:
            if index is not None:
                self.set_filter(choices[index])

        labels = [plain(choice, 100) for choice in choices]
        self.app.push_screen(Choose("Saved filters, then ready-made ones", labels), chosen)

    def action_blacklist(self) -> None:
        if self.turns:
            self.bridge.blacklist_prompt(self.turns[self.lines.cursor].message)

    @on(Input.Changed)
    def _filter_changed(self, event: Input.Changed) -> None:
        try:
            self._filter = Filter.parse(event.value)
        except FilterError as error:
            self._tell(Content.styled(f"{plain(str(error), 120)} ", BAD))
            return
        self.load()

    @on(LineList.Activated)
    def _open(self, event: LineList.Activated) -> None:
        self.post_message(self.Opened(self.turns[event.index].trace_id))
