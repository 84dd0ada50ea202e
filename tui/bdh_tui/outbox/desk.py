"""The outbox of a Hermes home."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from typing import TypeVar

from bdh_bridge.outbox.review import DISCARDABLE, REQUEUEABLE, RISKY, Review, Selection
from bdh_bridge.outbox.states import State, Write
from bdh_bridge.outbox.store import Outbox
from bdh_bridge.outbox.transitions import Transition
from bdh_bridge.settings import Loaded
from bdh_otel.database import StoreError
from bdh_tui.queue.desk import Desk, DeskError, Item, Tone
from bdh_tui.text import age, count

T = TypeVar("T")

_TONES: dict[State, Tone] = {
    State.PENDING: "waiting",
    State.SENDING: "waiting",
    State.UNCONFIRMED: "waiting",
    State.IN_DOUBT: "trouble",
    State.QUARANTINED: "trouble",
    State.FAILED: "trouble",
    State.DELIVERED: "settled",
    State.DISCARDED: "settled",
}


class OutboxDesk(Desk):
    name = "outbox"
    states = {str(state): tone for state, tone in _TONES.items()}  # noqa: RUF012
    delivers = True

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._outbox = Outbox(loaded.paths.outbox, spool=loaded.paths.outbox_spool)

    def counts(self) -> dict[str, int] | None:
        if not self._loaded.paths.outbox.exists():  # looking must not make one
            spooled = self._outbox.spool.usage()[0]
            return {str(State.PENDING): spooled} if spooled else None
        stats = self._ask(self._outbox.stats)
        return {str(state): count for state, count in stats.by_state.items()}

    def items(self, states: Collection[str], limit: int) -> list[Item]:
        if not self._loaded.paths.outbox.exists():
            return []
        wanted = Selection(states=tuple(map(State, states)), limit=limit)
        found = self._ask(lambda: Review(self._outbox).select(wanted))
        return [self._item(write) for write in reversed(found)]

    def text(self, item: Item) -> str:
        write: Write = item.row
        values = asdict(write)
        for hidden in ("claim_token", "query", "user_prompt"):
            del values[hidden]
        told = [f"{name:16} {_shown(name, value)}" for name, value in values.items() if value]
        for name, body in (("query", write.query), ("user_prompt", write.user_prompt)):
            told.append(f"\n{name}:\n{body or '(dropped)'}")
        return "\n".join(told)

    def can_discard(self, item: Item) -> bool:
        return item.row.state in DISCARDABLE

    def can_requeue(self, item: Item) -> bool:
        return item.row.state in REQUEUEABLE

    def risk(self, item: Item) -> str:
        if item.row.state not in RISKY:
            return ""
        return "the graph may have learned it already, and would then learn it twice."

    def discard(self, items: Sequence[Item]) -> str:
        moved = self._ask(lambda: Review(self._outbox).discard([item.row for item in items]))
        return self._told(moved, "discarded")

    def requeue(self, items: Sequence[Item]) -> str:
        moved = self._ask(lambda: Review(self._outbox).requeue([item.row for item in items]))
        if moved:
            self._wake()
        return self._told(moved, "back in the queue")

    def deliver(self) -> str:
        if not self._loaded.paths.outbox.exists():
            return "There is nothing to deliver."
        self._ask(lambda: Review(self._outbox).hurry(self._loaded.settings.api_url))
        return self._wake()

    def close(self) -> None:
        self._outbox.close()

    def _wake(self) -> str:
        """The worker delivers, in a process of its own: this one may be closed at any time."""
        from bdh_bridge.worker.launch import LaunchOutcome, ensure_worker, start_process
        from bdh_bridge.worker.lock import is_held

        settings = self._loaded.settings
        if settings.worker == "off":
            return "BDH_WORKER=off: run bdh-bridge outbox deliver"
        if is_held(self._loaded.paths.worker_lock) or settings.worker == "process":
            launch = ensure_worker(self._loaded)
        else:
            launch = start_process(self._loaded)
        if launch.outcome is LaunchOutcome.FAILED:
            raise DeskError(f"the worker can't be started: {launch.detail}")
        return {
            LaunchOutcome.STARTED: "A worker was started and delivers now.",
            LaunchOutcome.ALREADY_RUNNING: "The worker was woken and delivers now.",
            LaunchOutcome.NOT_NEEDED: "There is nothing to deliver.",
        }.get(launch.outcome, launch.detail)

    def _told(self, moved: Sequence[Transition], what: str) -> str:
        from bdh_bridge.worker.trace import record_all

        if not moved:
            return "Nothing was done: its state has changed meanwhile."
        record_all(self._loaded, moved)
        return f"{len(moved)} {what}."

    def _item(self, write: Write) -> Item:
        trace = write.traceparent.split("-")
        return Item(
            id=write.id,
            state=str(write.state),
            tone=_TONES[write.state],
            since=write.accepted_at,
            attempts=write.attempts,
            where=write.vault_id or "default vault",
            what=write.query,
            why=self._why(write),
            trace_id=trace[1] if len(trace) > 1 else "",
            row=write,
        )

    def _why(self, write: Write) -> str:
        error = write.error_type or ""
        detail = f": {write.error_detail}" if write.error_detail else ""
        because = f" ({error}{detail})" if error or detail else ""
        if write.state is State.PENDING:
            if write.destination != self._loaded.settings.api_url:
                return f"held: meant for {write.destination}, which is not the configured graph"
            return f"waits for the graph{because}" if error else "waits for the worker"
        if write.state is State.SENDING:
            return "on its way now"
        if write.state is State.DELIVERED:
            concepts = count(write.new_concepts, "new concept")
            learned = f"{concepts}, {count(write.hebbian_updates, 'link')} strengthened"
            return f"learned: {learned}" + (", graph degraded" if write.degraded else "")
        if write.state is State.UNCONFIRMED:
            return f"sent in full, no answer in time; most likely learned{because}"
        if write.state is State.IN_DOUBT:
            left = (write.settle_until or 0) - time.time()
            again = f"; the server can still be asked for {age(left)}" if left > 0 else ""
            return f"the connection broke while sending{because}{again}"
        if write.state is State.QUARANTINED:
            return f"nobody can say whether the graph learned it: you decide{because}"
        if write.state is State.DISCARDED:
            return "dropped by the operator"
        return f"given up{because}"

    def _ask(self, question: Callable[[], T]) -> T:
        try:
            return question()
        except (StoreError, OSError) as error:
            raise DeskError(str(error)) from error


def _shown(name: str, value: object) -> str:
    if isinstance(value, float) and (name.endswith("_at") or name == "settle_until"):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    return str(value)
