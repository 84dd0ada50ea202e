"""The last line but one: where the spans come from, and whether anything is wrong."""

from __future__ import annotations

from textual.widget import Widget

from bdh_tui.health import Health
from bdh_tui.text import BAD, GOOD, MUTED, SKIP, Line, age, number, plain, tail

#: Seconds that a span may end in the future before the clocks are said to differ.
SKEW = 2.0
#: Seconds of lag that are worth a colour.
LATE = 2.0


class StatusBar(Widget):
    DEFAULT_CSS = """
    StatusBar { height: 1; background: $panel; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self, label: str, read_only: bool, health: Health) -> None:
        super().__init__()
        self._label, self._read_only, self._health = label, read_only, health
        self.trouble = ""
        """What keeps the store from being read."""
        self.feed_trouble = ""
        """What keeps spans from coming in."""
        self.unreadable = 0
        """Spans that came in and could not be understood."""

    def render(self) -> object:  # type: ignore[override]
        health = self._health
        wide = self.size.width >= 100
        label = tail(plain(self._label, 300), 36 if wide else 18)
        line = Line().add(f" {label}", MUTED)
        if self._read_only:
            line.add(" read-only", SKIP)
        trouble = self.feed_trouble or self.trouble
        if trouble:
            return line.add("  ").add(f"! {plain(trouble, 300)}", BAD).content()
        if health.graph_error and self._read_only:
            pass  # the graph of this machine, which the spans from elsewhere don't know
        elif health.graph_error:
            line.add("  graph ", MUTED).add("! down", BAD)
        elif health.graph is not None:
            line.add("  graph ", MUTED).add("up", GOOD)
        else:
            line.add("  graph …", MUTED)
        if not self._read_only:
            self._outbox(line, health)
        self._store(line, health)
        return line.content()

    def _store(self, line: Line, health: Health) -> None:
        if health.store is not None:
            line.add("  spans ", MUTED).add(number(health.store.spans))
            if health.store.dropped:
                line.add(f"  ! {number(health.store.dropped)} dropped", BAD)
        if self.unreadable:
            line.add(f"  ! {number(self.unreadable)} not understood", BAD)
        if health.lag < -SKEW:
            line.add(f"  clock skew {_lag(-health.lag)}", SKIP)
        elif health.lag:
            line.add("  lag ", MUTED).add(_lag(health.lag), SKIP if health.lag > LATE else "")

    def _outbox(self, line: Line, health: Health) -> None:
        line.add("  outbox ", MUTED)
        if health.outbox_error:
            line.add("! unreadable", BAD)
            return
        if health.outbox is None:
            line.add("0")
            return
        from bdh_bridge.outbox.states import State

        counts = health.outbox.by_state
        line.add(number(health.outbox.open_rows + health.outbox.spooled))
        doubt = counts.get(State.QUARANTINED, 0) + counts.get(State.IN_DOUBT, 0)
        if doubt:
            line.add(f"  ! {number(doubt)} in doubt", BAD)
        if counts.get(State.FAILED):
            line.add(f"  ! {number(counts[State.FAILED])} failed", BAD)


def _lag(seconds: float) -> str:
    if seconds >= 120:
        return age(seconds)
    return f"{seconds * 1_000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
