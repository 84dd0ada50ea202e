"""The turns in flight, each with its own state.

Keyed by the host's turn id and never by thread or session alone: a gateway interleaves many
sessions on reused threads, and the background review runs under its parent's session. The
number of turns and their age are bounded, since some turns end without any further hook.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bdh_bridge.gates.view import TurnView
    from bdh_otel.tracer import LocalSpan

MAX_TURNS = 2_000
#: Longer than any real turn; what is older lost its end.
MAX_AGE_SECONDS = 4 * 3600.0
#: A turn whose API call failed may go on with another provider of the host, and one that was given
#: up may be answered all the same: for so long its message is still at hand.
GRACE_SECONDS = 600.0
MAX_GRACE = 256
#: Sessions of sub-agents whose delegating turn is remembered.
MAX_DELEGATED = 256


@dataclass(slots=True)
class Turn:
    """What the bridge knows of one turn. ``span`` is its root span."""

    turn_id: str
    session_id: str
    task_id: str
    platform: str
    model: str
    sender_id: str
    view: TurnView
    span: LocalSpan
    created: float
    #: Set by the classification; None where none was made.
    store_candidate: bool | None = None
    write_query: str = ""
    read_outcome: str = "not_tried"
    write_outcome: str = "not_tried"
    retrieved: bool = False
    accepted_write: str = ""
    used_bdh_query: bool = False
    #: The turn that delegated to the sub-agent whose turn this is.
    delegated_by: Turn | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def principal(self) -> Turn:
        """The turn of a person or a job on whose behalf this one runs; mostly itself."""
        return self.delegated_by.principal if self.delegated_by else self

    @property
    def route(self) -> str:
        """Which of the four ways the turn took."""
        stored = bool(self.accepted_write)
        if self.retrieved and stored:
            return "retrieve_and_store"
        if self.retrieved:
            return "retrieve_only"
        return "store_only" if stored else "skip"


class Turns:
    """The registry. ``on_drop(turn, reason)`` is called for each turn that it gives up by itself
    (``superseded``, ``expired``, ``evicted``), outside its lock; it is findable by its id for a
    while."""

    def __init__(
        self,
        on_drop: Callable[[Turn, str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_drop = on_drop
        self._clock = clock
        self._lock = threading.Lock()
        self._live: OrderedDict[str, Turn] = OrderedDict()
        self._grace: OrderedDict[str, tuple[float, Turn]] = OrderedDict()
        self._delegated: OrderedDict[str, Turn] = OrderedDict()

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Turn]:
        with self._lock:
            return iter(list(self._live.values()))

    def add(self, turn: Turn) -> None:
        """Take in a new turn and give up what it or time has made obsolete."""
        now = self._clock()
        dropped: list[tuple[Turn, str]] = []
        with self._lock:
            for old in self._superseded_by(turn):
                dropped.append((self._live.pop(old.turn_id), "superseded"))
                self._keep(old, now)
            namesake = self._live.pop(turn.turn_id, None)
            if namesake is not None and namesake is not turn:
                dropped.append((namesake, "superseded"))
            while self._live:
                oldest = next(iter(self._live.values()))
                expired = now - oldest.created > MAX_AGE_SECONDS
                if not expired and len(self._live) < MAX_TURNS:
                    break
                self._live.pop(oldest.turn_id)
                dropped.append((oldest, "expired" if expired else "evicted"))
                self._keep(oldest, now)
            self._live[turn.turn_id] = turn
            self._forget_grace(now)
        for old, reason in dropped:
            self._on_drop(old, reason)

    def take_over(self, other: Turns) -> None:
        """Go on with the turns of a registry that is no longer asked."""
        with other._lock:
            live, grace, delegated = dict(other._live), dict(other._grace), dict(other._delegated)
            other._live.clear()
            other._grace.clear()
        with self._lock:
            self._live.update(live)
            self._grace.update(grace)
            self._delegated.update(delegated)

    def revive(self, turn: Turn) -> bool:
        """Make a turn live again that had ended in an API error or was given up; False if it
        had not."""
        with self._lock:
            if self._grace.pop(turn.turn_id, None) is None:
                return False
            self._live[turn.turn_id] = turn
            return True

    def delegate(self, child_session_id: str, turn: Turn) -> None:
        """Note that ``turn`` started a sub-agent with a session of its own."""
        with self._lock:
            self._delegated[child_session_id] = turn
            while len(self._delegated) > MAX_DELEGATED:
                self._delegated.popitem(last=False)

    def delegator(self, session_id: str) -> Turn | None:
        """The turn that started the sub-agent of this session; it may have ended since."""
        with self._lock:
            return self._delegated.get(session_id)

    def get(self, turn_id: str, session_id: str = "") -> Turn | None:
        """The turn with this id; where the host gave no id, the session's newest one."""
        with self._lock:
            if turn_id:
                if turn := self._live.get(turn_id):
                    return turn
                kept = self._grace.get(turn_id)
                return kept[1] if kept and self._clock() - kept[0] <= GRACE_SECONDS else None
            return self._newest(session_id, "")

    def of_task(self, session_id: str, task_id: str) -> Turn | None:
        """For the hooks that get no turn id: the newest turn of this session and task."""
        with self._lock:
            if task_id and (turn := self._newest(session_id, task_id)):
                return turn
            # Compaction gives a session a new id in mid-turn; the task's id stays.
            same_task = [
                turn for turn in self._live.values() if task_id and turn.task_id == task_id
            ]
            if len(same_task) == 1:
                return same_task[0]
            return self._newest(session_id, "")

    def remove(self, turn: Turn, *, grace: bool = False) -> bool:
        """Forget a turn that ended. ``grace`` keeps it findable by its id for a while.

        Returns whether it was live.
        """
        with self._lock:
            live = self._live.get(turn.turn_id) is turn
            if live:
                del self._live[turn.turn_id]
            if grace and live:
                self._keep(turn, self._clock())
            elif not grace:
                self._grace.pop(turn.turn_id, None)
            return live

    def _keep(self, turn: Turn, now: float) -> None:
        self._grace.pop(turn.turn_id, None)  # the order is that of the times
        self._grace[turn.turn_id] = (now, turn)
        while len(self._grace) > MAX_GRACE:
            self._grace.popitem(last=False)

    def _newest(self, session_id: str, task_id: str) -> Turn | None:
        if not session_id:  # nobody's turn is not anybody's
            return None
        for turn in reversed(self._live.values()):
            if (
                turn.session_id == session_id
                and not turn.view.is_background_review
                and (not task_id or turn.task_id == task_id)
            ):
                return turn
        return None

    def _superseded_by(self, new: Turn) -> list[Turn]:
        # The review runs beside its session's next turn. The API server derives a session id
        # from the first message, so that two callers may share one: neither ends the other.
        if new.view.is_background_review or new.platform == "api_server" or not new.session_id:
            return []
        return [
            old
            for old in self._live.values()
            if old.session_id == new.session_id
            and old.turn_id != new.turn_id
            and not old.view.is_background_review
        ]

    def _forget_grace(self, now: float) -> None:
        while self._grace:
            since, _ = next(iter(self._grace.values()))
            if now - since <= GRACE_SECONDS:
                return
            self._grace.popitem(last=False)
