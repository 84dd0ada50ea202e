"""``--plain``: the turns as lines of text, for readers of screens, pipes and logs.

Every turn is told when it ends (or its delivery does): one line for what was said, one for each
path, nothing but words. Text of others is escaped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bdh_bridge.operator.explain import explain
from bdh_otel.database import StoreError
from bdh_tui.health import Health, HealthChanged, Watch
from bdh_tui.history import History
from bdh_tui.live.row import spoken
from bdh_tui.text import count, plain
from bdh_tui.turns import TurnSummary

if TYPE_CHECKING:
    from textual.message import Message

    from bdh_bridge.settings import Loaded
    from bdh_tui.sources import Source

_POLL = 0.2
#: Turns whose telling is remembered, so that a later delivery tells them again, and once.
_REMEMBERED = 2_000
_MARKS = {"✓": "", "✗": "", "!": "problem: ", "…": "waiting: ", "·": ""}


def run(loaded: Loaded, source: Source, say: Callable[[str], None], *, latest: int = 10) -> None:
    """Tell the ``latest`` turns, then go on until interrupted."""
    history = History(source.store)
    news = _News(say, history)
    watch = Watch(loaded, source, lambda message: news.health(message, watch.health, source))
    watch.start()
    try:
        news.follow(latest)
    finally:
        watch.stop()
        source.stop()
        history.close()


class _News:
    def __init__(self, say: Callable[[str], None], history: History) -> None:
        self._say, self._history = say, history
        self._told: dict[str, tuple[str, str]] = {}
        self._trouble = ""
        self._states: dict[str, str] = {}

    def follow(self, latest: int) -> None:
        since: int | None = None
        while True:
            try:
                if since is None:
                    since = self._history.reader.last_seq()
                    self._tell(self._history.page(latest)[::-1])
                since = self._look(since)
                self._trouble = ""
            except (StoreError, FileNotFoundError) as error:
                self._complain(error)
                since = None if isinstance(error, FileNotFoundError) else since
            time.sleep(_POLL)

    def _look(self, since: int) -> int:
        last = self._history.reader.last_seq()
        if last < since:
            since = 0
        spans = self._history.reader.after(since)
        if not spans:
            return last
        self._tell(self._history.turns(self._history.touched(spans))[::-1])
        return spans[-1].seq

    def _tell(self, turns: Sequence[TurnSummary]) -> None:
        for turn in turns:
            told = (turn.read, turn.write)
            if turn.end_ns is None or self._told.get(turn.trace_id) == told:
                continue
            again = "later in " if turn.trace_id in self._told else ""
            self._told[turn.trace_id] = told
            if len(self._told) > _REMEMBERED:
                del self._told[next(iter(self._told))]
            self._say(again + spoken(turn))
            for sentence in explain(*self._history.trace(turn.trace_id)):
                self._say(f"  {sentence.subject}: {_MARKS.get(sentence.mark, '')}{sentence.text}")

    def _complain(self, error: Exception) -> None:
        missing = isinstance(error, FileNotFoundError)
        text = "no spans yet; they appear with the first turn" if missing else str(error)
        if text != self._trouble:
            self._trouble = text
            self._say(f"Store: {plain(text, 300)}")

    def health(self, message: Message, health: Health, source: Source) -> None:
        """What is wrong or right again, once for each change."""
        if not isinstance(message, HealthChanged):
            return
        if message.part != "graph":
            self._states.setdefault("Source", "ready")
            # Not with every try anew.
            trouble = source.trouble.partition("; tried again")[0]
            self._change("Source", plain(trouble, 300) or "ready")
            if source.unreadable:
                self._change("Not understood", count(source.unreadable, "span"))
        if source.read_only:
            return  # the graph of this machine, which the spans from elsewhere don't know
        if message.part == "graph":
            away = plain(health.graph_error.partition(":")[0], 100)
            self._change("Graph", f"does not answer: {away}" if away else "up")
        elif health.outbox is not None:
            stats = health.outbox
            told = [f"{amount} {state}" for state, amount in stats.by_state.items()]
            waiting = count(stats.open_rows + stats.spooled, "write") + " waiting"
            self._change("Outbox", ", ".join([waiting, *told]))

    def _change(self, what: str, state: str) -> None:
        if self._states.get(what) != state:
            self._states[what] = state
            self._say(f"{what}: {state}")
