"""The graph's own figures, as they are now and as they went, and its strongest synapses."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Static

from bdh_tui.dialogs import Choose
from bdh_tui.graph import figures
from bdh_tui.lines import LineList
from bdh_tui.pane import Pane
from bdh_tui.text import BAD, MUTED, Line, age, count, plain

NOTHING = "No Hebbian synapse has been learned yet."


class GraphPane(Pane):
    title: ClassVar[str] = "Graph"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v", "vault", "Vault"),
        Binding("r", "retry", "Ask now"),
    ]

    def __init__(self) -> None:
        super().__init__(id="graph")
        self._pairs: list[Mapping[str, Any]] = []
        self._circuit = ""
        self._clock: Timer | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="graph-state")
        yield Static(id="graph-tiles")
        yield Static(id="graph-links")
        yield Static(id="graph-charts")
        yield Static(Content.styled(" Strongest Hebbian synapses", MUTED), classes="columns")
        yield LineList(self._draw, empty=NOTHING)

    def first_focus(self) -> Widget:
        return self.query_one(LineList)

    def on_mount(self) -> None:
        # The wait for the next try counts down.
        self._clock = self.set_interval(1.0, self._tick)

    def entered(self) -> None:
        super().entered()
        self.bridge.watch_over.graph_watched = True
        self.bridge.watch_over.ask_graph_now()
        self.refresh_figures()

    def left(self) -> None:
        self.bridge.watch_over.graph_watched = False

    def health_changed(self) -> None:
        self.refresh_figures()

    def refresh_figures(self) -> None:
        health = self.bridge.watch_over.health
        stats = health.graph or {}
        width = max(20, self.size.width - 2)
        self._state()
        self.query_one("#graph-tiles", Static).update(figures.tiles(stats, width) if stats else "")
        self.query_one("#graph-links", Static).update(figures.links(stats, width) if stats else "")
        height = max(4, self.size.height - 16)
        charts = figures.charts(health, width, height) if len(health.stats) > 1 else Content("")
        self.query_one("#graph-charts", Static).update(charts)
        self._pairs = figures.pairs(stats)
        lines = self.query_one(LineList)
        lines.empty = NOTHING if stats else ""
        lines.show(len(self._pairs))
        self._look_at_circuit()

    def on_resize(self) -> None:
        self.refresh_figures()

    def _tick(self) -> None:
        if self.display and self.bridge.watch_over.health.graph_error:
            self._state()

    def _state(self) -> None:
        health = self.bridge.watch_over.health
        line = figures.state_line(health, self.bridge.loaded.settings.api_url, time.time())
        if self._circuit:
            line = Content.assemble(line, "\n", (f"   {self._circuit}", BAD))
        self.query_one("#graph-state", Static).update(line)

    def _look_at_circuit(self) -> None:
        """What the bridge itself thinks of the graph: it stops asking one that fails."""
        loaded = self.bridge.loaded

        def then(told: str) -> None:
            self._circuit = told
            self._state()

        self.in_thread(lambda: _circuit(loaded.paths.state), then, "circuit")

    def _draw(self, index: int, width: int) -> Content:
        return figures.pair_line(self._pairs[index], width)

    # Keys

    def action_retry(self) -> None:
        self.bridge.watch_over.ask_graph_now()

    def action_vault(self) -> None:
        settings = self.bridge.loaded.settings

        def ask() -> tuple[str, ...] | str:
            from bdh_bridge.graph.client import GraphClient, GraphError

            client = GraphClient(settings.api_url, settings.api_token)
            try:
                return client.vaults(timeout=4.0)
            except GraphError as error:
                return f"{error.kind.replace('_', ' ')}: {error}"
            finally:
                client.close()

        def then(found: tuple[str, ...] | str) -> None:
            if isinstance(found, str):
                self.notify(f"No list of vaults: {plain(found, 200)}", markup=False)
                return
            choices = ["", *found]
            current = self.bridge.watch_over.health.vault
            labels = [
                Line()
                .add("● " if one == current else "  ")
                .add(plain(one, 60) or "the server's default")
                .content()
                for one in choices
            ]

            def chosen(index: int | None) -> None:
                if index is not None:
                    self.bridge.watch_over.ask_graph_now(choices[index])

            self.app.push_screen(Choose("Look at which vault?", labels), chosen)

        self.in_thread(ask, then, "vaults")


def _circuit(path: Any) -> str:
    """A sentence if a circuit to the graph is open; empty otherwise."""
    from bdh_bridge.state import SharedState

    if not path.exists():
        return ""
    state = SharedState(path, busy_timeout=1.0)
    try:
        for breaker in state.breakers():
            if breaker.key.startswith("graph") and breaker.open:
                wait = breaker.failed_at + breaker.wait - time.time()
                return (
                    f"The bridge leaves it alone after {count(breaker.failures, 'failure')}: turns"
                    f" go on without it, and it is tried again in {age(wait)}."
                )
    finally:
        state.close()
    return ""
