"""The application: its screens, and the threads behind them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events, on
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import ContentSwitcher, Static

from bdh_tui import themes
from bdh_tui.fields import Field
from bdh_tui.health import HealthChanged, Watch
from bdh_tui.history import History
from bdh_tui.keybar import KeyBar
from bdh_tui.leaving import Lifeline, on_signals
from bdh_tui.live.pane import LivePane
from bdh_tui.pane import Pane
from bdh_tui.preferences import Preferences
from bdh_tui.status import StatusBar
from bdh_tui.tabs import TabStrip
from bdh_tui.tail import News, StoreTrouble, Tail
from bdh_tui.text import plain
from bdh_tui.turn.pane import TurnPane

if TYPE_CHECKING:
    from bdh_bridge.settings import Loaded
    from bdh_tui.sources import Source

SMALLEST = (60, 15)
"""Cells below which nothing useful fits."""


def _commands() -> Any:
    from bdh_tui.palette import Commands

    return Commands


def _decisions() -> type[Pane]:
    from bdh_tui.decisions.pane import DecisionsPane

    return DecisionsPane


def _providers() -> type[Pane]:
    from bdh_tui.providers.pane import ProvidersPane

    return ProvidersPane


def _graph() -> type[Pane]:
    from bdh_tui.graph.pane import GraphPane

    return GraphPane


def _blacklist() -> type[Pane]:
    from bdh_tui.blacklist.pane import BlacklistPane

    return BlacklistPane


def _outbox() -> type[Pane]:
    from bdh_tui.outbox.pane import OutboxPane

    return OutboxPane


def _borgee() -> type[Pane]:
    from bdh_tui.borgee.pane import BorgeePane

    return BorgeePane


#: Name → where its class comes from; screens are imported and made when they are first shown.
SCREENS: dict[str, tuple[str, Callable[[], type[Pane]]]] = {
    "live": ("Live", lambda: LivePane),
    "turn": ("Turn", lambda: TurnPane),
    "decisions": ("Decisions", _decisions),
    "providers": ("Providers", _providers),
    "graph": ("Graph", _graph),
    "blacklist": ("Blacklist", _blacklist),
    "outbox": ("Outbox", _outbox),
    "borgee": ("Borgee", _borgee),
}

#: Those that show and change files of a home of this machine.
OF_A_HOME = frozenset({"blacklist", "outbox", "borgee"})


class BridgeApp(App[None]):
    """``source`` has been made and not been started yet."""

    TITLE = "bdh-bridge"
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = True
    COMMANDS: ClassVar[set[Any]] = {_commands}
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(number), f"show('{name}')", title, show=False)
            for number, (name, (title, _)) in enumerate(SCREENS.items(), start=1)
        ),
        Binding("question_mark,f1", "help", "Help", key_display="?"),
        Binding("t", "next_theme", "Theme", show=False),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, loaded: Loaded, source: Source, screen: str = "live") -> None:
        super().__init__()
        self.loaded, self.source = loaded, source
        self.history = History(source.store)
        self.counting = History(source.store)
        """The same store by another connection: counting takes seconds where much is stored."""
        self.preferences = Preferences.load(loaded.paths.directory / "tui.json")
        self.watch_over = Watch(loaded, source, self.post_message)
        self._first = screen
        # Kept here: a query would look on the dialog where one is open.
        self._panes: dict[str, Pane] = {"live": LivePane()}
        self._bar = StatusBar(source.label, source.read_only, self.watch_over.health)
        self._switcher = ContentSwitcher(self._panes["live"], id="panes")
        self._tabs = TabStrip(
            [(name, title) for name, (title, _) in SCREENS.items() if self.refusal(name) is None]
        )
        self._tail = Tail(self.history, self.post_message)
        self._tail_thread: threading.Thread | None = None
        # A terminal that is closed, and a browser's server that is killed, ask nobody to leave.
        self._lifeline = Lifeline(0, lambda: self.call_from_thread(self.exit), source.stop)
        self._begun = self._sized = False
        self._late_size: events.Resize | None = None
        for theme in themes.THEMES:
            self.register_theme(theme)
        wanted = self.preferences.theme
        self.theme = wanted if wanted in self.available_themes else themes.DARK.name

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return themes.DEFAULTS

    def compose(self) -> ComposeResult:
        yield self._tabs
        yield self._switcher
        yield self._bar
        yield KeyBar()
        yield Static("This terminal is too small.\nMake it 60 × 15 or larger.", id="too-small")

    def on_mount(self) -> None:
        self.run_worker(self.open_pane(self._first), group="switch")
        self.call_after_refresh(self._begin)
        if not self.is_headless:
            on_signals(self._leave)
            self._lifeline.start()

    def _begin(self) -> None:
        """After the first paint: nothing here may delay it."""
        self._begun = True
        for warning in self.loaded.warnings[:3]:
            self.notify(plain(warning, 300), severity="warning", markup=False, timeout=10)
        if self._late_size is not None:
            self.post_message(self._late_size)
        self.watch_over.start()
        # The first key that asks for another screen needn't wait for its modules.
        threading.Thread(target=self._import_screens, name="bdh-tui-import", daemon=True).start()

    def _leave(self, status: int) -> None:
        self.exit(return_code=status)

    def _import_screens(self) -> None:
        import bdh_tui.dialogs
        import bdh_tui.help  # noqa: F401

        for name, (_, find) in SCREENS.items():
            if self.refusal(name) is None:
                find()

    def follow(self, since: int) -> None:
        """Begin to follow the store after this sequence number; later calls change nothing."""
        if self._tail_thread is None:
            self._tail.since = since
            self._tail_thread = threading.Thread(
                target=self._tail.run, name="bdh-tui-tail", daemon=True
            )
            self._tail_thread.start()

    def on_unmount(self) -> None:
        self._tail.stop()
        self.watch_over.stop()
        self.source.stop()
        self.history.close()
        self.counting.close()

    # Screens

    def refusal(self, name: str) -> str | None:
        """Why a screen is not offered, as a sentence; None if it is."""
        title = SCREENS[name][0]
        if self.source.read_only and name in OF_A_HOME:
            return f"{title} belongs to a Hermes home; this source is read-only."
        inbox = self.loaded.paths.hermes_home / "plugins" / "borgee" / "inbox.sqlite3"
        if name == "borgee" and not inbox.exists():
            return "There is no Borgee inbox in this home."
        return None

    def pane(self, name: str) -> Pane | None:
        """The screen, if it has been made."""
        return self._panes.get(name)

    async def open_pane(self, name: str) -> Pane:
        pane = self._panes.get(name)
        if pane is None:
            pane = self._panes[name] = SCREENS[name][1]()()
            await self._switcher.add_content(pane, id=name)
        before = self._switcher.current
        if before != name:
            self._switcher.current = name
            self._tabs.active = name
            if before:
                self._panes[before].left()
            pane.entered()
        self.refresh_bindings()
        return pane

    async def action_show(self, name: str) -> None:
        refusal = self.refusal(name)
        if refusal is not None:
            self.notify(refusal)
            return
        # Waited for: the next key that is typed belongs to that screen.
        await self.open_pane(name)

    @on(TabStrip.Chosen)
    async def _tab_chosen(self, event: TabStrip.Chosen) -> None:
        await self.action_show(event.name)

    @on(LivePane.Opened)
    def _turn_opened(self, event: LivePane.Opened) -> None:
        self.open_turn(event.trace_id)

    def open_turn(self, trace_id: str) -> None:
        """Show this trace on the Turn screen."""

        async def show() -> None:
            pane = await self.open_pane("turn")
            assert isinstance(pane, TurnPane)
            pane.open(trace_id)

        self.run_worker(show(), group="switch")

    def filter_live(self, text: str) -> None:
        """Show the turns that a filter lets through."""

        async def show() -> None:
            pane = await self.open_pane("live")
            assert isinstance(pane, LivePane)
            pane.set_filter(text)

        self.run_worker(show(), group="switch")

    def neighbour(self, trace_id: str, step: int) -> str:
        """The trace ``step`` lines further down in the list of turns; empty if there is none."""
        live = self.pane("live")
        assert isinstance(live, LivePane)
        ids = [turn.trace_id for turn in live.turns]
        place = ids.index(trace_id) + step if trace_id in ids else -1
        if not 0 <= place < len(ids):
            return ""
        live.lines.select(place)
        return ids[place]

    @property
    def settled(self) -> bool:
        """Nothing is being read, and everything watched has been seen once."""
        health = self.watch_over.health
        seen = health.graph is not None or bool(health.graph_error)
        idle = all(worker.is_finished for worker in self.workers)
        return seen and idle and self.watch_over.looked and self._tail_thread is not None

    # What the threads say

    @on(News)
    def _news(self, news: News) -> None:
        news.taken.set()
        if news.lag:
            self.watch_over.health.lag = news.lag
        for name in ("live", "turn"):
            pane = self.pane(name)
            if isinstance(pane, LivePane | TurnPane):
                pane.take(news)
        self._bar.refresh()

    @on(StoreTrouble)
    def _trouble(self, event: StoreTrouble) -> None:
        recovered = self._bar.trouble and not event.reason
        self._bar.trouble = event.reason
        self._bar.refresh()
        live = self.pane("live")
        if isinstance(live, LivePane):
            if recovered:
                live.load()
            else:
                live.trouble(event.reason)

    @on(HealthChanged)
    def _health_changed(self, event: HealthChanged) -> None:
        self._bar.feed_trouble = self.source.trouble
        self._bar.unreadable = self.source.unreadable
        self._bar.refresh()
        pane = self.pane(event.part)
        if pane is not None and pane.is_attached and pane.display:
            pane.health_changed()

    # Services for screens

    def trace_url(self, trace_id: str) -> str:
        return self.loaded.settings.tui_trace_url.replace("{trace_id}", trace_id)

    def blacklist_prompt(self, message: str) -> None:
        """Offer a rule that blocks ``message``."""
        if self.source.read_only:
            self.notify("The blacklist belongs to a Hermes home; this source is read-only.")
            return

        async def offer() -> None:
            from bdh_tui.blacklist.pane import BlacklistPane

            pane = await self.open_pane("blacklist")
            assert isinstance(pane, BlacklistPane)
            pane.add_message(message)

        self.run_worker(offer(), group="switch")

    # Keys

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key) and not event.is_forwarded and await self._take_key(event):
            return
        if isinstance(event, events.Resize) and not self._begun:
            # A browser tells another size at once. Two of them before the first paint chase each
            # other through the library's queues for ever, so the last one is put off.
            if self._sized:
                self._late_size = event
                return
            self._sized = True
        await super().on_event(event)

    async def _take_key(self, event: events.Key) -> bool:
        """Do what a key is for before the next one is looked at.

        The library sends a key through the queues of the focused widget and all above it, and
        meanwhile the next one after it: what is typed quickly behind ``/`` would be commands, and
        what follows Enter would go into the filter.
        """
        focused = self.focused
        if isinstance(focused, Field) and event.is_printable and event.character:
            focused.type_in(event.character)
            return True
        if focused and focused.check_consume_key("a", "a") and not isinstance(focused, Field):
            return False  # text of the library's own: all of its keys in one queue
        active = self.screen.active_bindings.get(event.key)
        if active is None or not active.enabled:
            return False
        return await self.run_action(active.binding.action, active.node)

    def action_next_theme(self) -> None:
        names = [theme.name for theme in themes.THEMES]
        place = names.index(self.theme) if self.theme in names else -1
        self._use_theme(names[(place + 1) % len(names)])

    def _use_theme(self, name: str) -> None:
        self.theme = name
        self.preferences.theme = name
        self.preferences.save()

    def action_help(self) -> None:
        from bdh_tui import help as helping
        from bdh_tui.dialogs import Show

        name = self._switcher.current or "live"
        pane = self.pane(name)
        title = SCREENS[name][0]
        text = helping.text(title, pane.BINDINGS if pane else (), self.BINDINGS)
        self.push_screen(Show("Help", text))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """What the command palette (Ctrl+P) offers."""
        for name, (title, _) in SCREENS.items():
            if self.refusal(name) is None:
                show = partial(self.action_show, name)
                yield SystemCommand(f"Show {title}", f"Go to the screen {title}", show)
        for source in self.preferences.filters:
            label = plain(source, 60)
            use = partial(self.filter_live, source)
            yield SystemCommand(f"Filter {label}", "Show these turns in Live", use)
        for theme in themes.THEMES:
            use = partial(self._use_theme, theme.name)
            yield SystemCommand(f"Theme {theme.name}", "Change the colours", use)
        yield SystemCommand("Help", "Marks, keys and the filter's language", self.action_help)
        yield SystemCommand("Quit", "Leave; the bridge goes on without it", self.action_quit)

    def on_resize(self, event: events.Resize) -> None:
        small = event.size.width < SMALLEST[0] or event.size.height < SMALLEST[1]
        self.screen.set_class(small, "-too-small")
