"""Following the store: a thread that looks for new spans and posts what they changed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from textual.message import Message

from bdh_otel.database import StoreError
from bdh_otel.reader import StoredSpan
from bdh_tui.history import History
from bdh_tui.turns import TurnSummary

#: Seconds between two looks. A look without news costs one statement.
INTERVAL = 0.1
#: Spans after which the next look is put off to twice that: nobody reads faster, and keys go first.
MANY = 100
#: Spans taken in at once, and seconds of them that are worth catching up with one by one.
BATCH = 2_000


class News(Message):
    """Spans were stored. ``turns`` are those they changed, newest first.

    ``reload``: too much happened at once, or the file was replaced: ask the store again.
    ``lag`` is the most seconds that any of the spans waited from its end until now.
    """

    def __init__(self, turns: list[TurnSummary], spans: int, lag: float, reload: bool) -> None:
        super().__init__()
        self.turns = turns
        self.spans = spans
        self.lag = lag
        self.reload = reload
        self.taken = threading.Event()


class StoreTrouble(Message):
    """The store can't be read, for the reason given; empty when it can be again."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason


@dataclass
class Tail:
    """``post`` takes messages in any thread. ``since`` is the sequence number seen last."""

    history: History
    post: Callable[[Message], object]
    since: int = 0
    interval: float = INTERVAL
    _stop: threading.Event = field(default_factory=threading.Event)
    _trouble: str = ""

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        """Until :meth:`stop`; never raises for what the store does."""
        while not self._stop.is_set():
            pause = self.interval
            try:
                news = self.look()
            except FileNotFoundError:
                self.since = 0
                self._say("no spans yet: the store appears with the first turn")
            except StoreError as error:
                self._say(f"{error.reason}; {error.mend}")
            else:
                self._say("")
                if news is not None:
                    pause = self.interval * (2 if news.reload or news.spans > MANY else 1)
                    self.post(news)
                    # The next look waits until the screen has taken this one in.
                    while not news.taken.wait(0.05) and not self._stop.is_set():
                        pass
            self._stop.wait(pause)

    def look(self) -> News | None:
        """What is new since the last look. Raises what the reader raises."""
        last = self.history.reader.last_seq()
        if last == self.since:
            return None
        if last < self.since or last - self.since > BATCH:
            self.since, started_over = last, last < self.since
            return News([], 0 if started_over else BATCH, 0.0, reload=True)
        spans = self.history.reader.after(self.since, BATCH)
        if not spans:
            self.since = last
            return None
        self.since = spans[-1].seq
        turns = self.history.turns(self.history.touched(spans))
        return News(turns, len(spans), _lag(spans), reload=False)

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            with contextlib.suppress(Exception):
                self.post(StoreTrouble(trouble))


def _lag(spans: list[StoredSpan]) -> float:
    now = time.time_ns()
    ends = [span.end_ns for span in spans if span.end_ns is not None]
    return (now - min(ends)) / 1e9 if ends else 0.0
