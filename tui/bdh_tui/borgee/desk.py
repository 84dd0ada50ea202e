"""The Borgee inbox of a Hermes home.

Decisions are made by ``bdh-bridge borgee inbox`` in a process of its own: it asks the running
gateway, or, where none runs, opens Hermes' own sessions, which belong into no screen's process.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from bdh_otel.database import StoreError
from bdh_tui.queue.desk import Desk, DeskError, Item, Tone
from bdh_tui.text import age, count
from hermes_borgee.operator import NoInbox, Operator
from hermes_borgee.receipts import Outcome, Receipt, Status

T = TypeVar("T")

_TONES: dict[Status, Tone] = {
    Status.PENDING: "waiting",
    Status.CLAIMED: "waiting",
    Status.PROCESSING: "waiting",
    Status.IN_DOUBT: "trouble",
    Status.QUARANTINED: "trouble",
    Status.FAILED: "settled",
    Status.COMPLETED: "settled",
    Status.IGNORED: "settled",
}
_WHY = {
    Status.PENDING: "waits for its turn",
    Status.CLAIMED: "has a slot; Hermes has not seen it yet",
    Status.PROCESSING: "Hermes works on it",
    Status.IN_DOUBT: "it may have had effects before the gateway ended",
    Status.QUARANTINED: "nobody can say how far it got, and its session waits for you",
    Status.FAILED: "its turn failed",
    Status.COMPLETED: "its turn ran",
    Status.IGNORED: "starts no turn",
}
_OUTCOMES = {
    Outcome.UNDELIVERED: "the reply could not be sent",
    Outcome.NO_TURN: "Hermes started no turn",
    Outcome.HANDLER_ERROR: "the handler raised an error",
    Outcome.PROCESS_DIED: "the gateway's process died",
    Outcome.SHUTDOWN: "the gateway was stopped",
    Outcome.CONTROL_TIMEOUT: "a command took too long",
    Outcome.POISON: "the event could not be understood",
    Outcome.DISCARDED: "dropped by the operator",
}
#: Seconds for one decision: Hermes has to be loaded, and a gateway gets 15 s to answer.
_PATIENCE = 90.0


class InboxDesk(Desk):
    name = "inbox"
    states = {str(status): tone for status, tone in _TONES.items()}  # noqa: RUF012

    def __init__(self, home: Path) -> None:
        self._operator = Operator(home)

    def counts(self) -> dict[str, int] | None:
        try:
            found = self._ask(self._operator.counts)
        except NoInbox:
            return None
        return {str(status): amount for status, amount in found.items()}

    def note(self) -> str:
        health = self._ask(self._operator.health)
        gaps = self._ask(self._operator.gaps)
        told = []
        if health is not None:
            because = f" ({health.reason})" if health.reason else ""
            told.append(f"{health.state} for {age(time.time() - health.since)}{because}")
        if gaps:
            ago = age(time.time() - gaps[-1].started_at)
            told.append(f"{count(len(gaps), 'time')} not connected, last {ago} ago: messages of"
                        " such times are not dispatched")  # fmt: skip
        return "; ".join(told)

    def items(self, states: Collection[str], limit: int) -> list[Item]:
        wanted = [Status(state) for state in states]
        found = self._ask(lambda: self._operator.receipts(wanted, limit))
        held: dict[str, int] = {}
        for receipt in found:
            if receipt.status is Status.QUARANTINED:
                held.setdefault(receipt.session_key, receipt.ingest_seq)
        return [_item(receipt, held) for receipt in reversed(found)]

    def text(self, item: Item) -> str:
        receipt: Receipt = item.row
        values = {**asdict(receipt)}
        for hidden in ("claim_token", "source_body", "effective_body"):
            del values[hidden]
        told = [f"{name:16} {_shown(name, value)}" for name, value in values.items() if value]
        told.append(f"\nmessage:\n{receipt.source_body or '(no text)'}")
        if receipt.effective_body != receipt.source_body:
            told.append(f"\nas Hermes gets it:\n{receipt.effective_body}")
        return "\n".join(told)

    def can_discard(self, item: Item) -> bool:
        return item.row.status is Status.QUARANTINED

    def can_requeue(self, item: Item) -> bool:
        return item.row.status is Status.QUARANTINED

    def risk(self, item: Item) -> str:
        return "tools, requests and replies may happen a second time; its session is reset first."

    def discard(self, items: Sequence[Item]) -> str:
        return "\n".join(self._decide("discard", item) for item in items)

    def requeue(self, items: Sequence[Item]) -> str:
        return "\n".join(self._decide("requeue", item, "--may-repeat-effects") for item in items)

    def close(self) -> None:
        """Nothing is kept open."""

    def _decide(self, action: str, item: Item, *more: str) -> str:
        command = [sys.executable, "-P", "-m", "bdh_bridge.cli", "--home", str(self._operator.home)]
        command += ["borgee", "inbox", action, item.id, *more]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_PATIENCE, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DeskError(f"not decided: {error}") from error
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise DeskError(last.removeprefix("error: "))
        return done.stdout.strip() or "Done."

    def _ask(self, question: Callable[[], T]) -> T:
        try:
            return question()
        except (StoreError, OSError) as error:
            raise DeskError(str(error)) from error


def _item(receipt: Receipt, held: dict[str, int]) -> Item:
    barrier = held.get(receipt.session_key, receipt.ingest_seq)
    why = _WHY[receipt.status]
    if receipt.status is Status.PENDING and barrier < receipt.ingest_seq:
        why = f"waits behind {barrier}, which is quarantined"
    because = _OUTCOMES.get(Outcome(receipt.outcome)) if receipt.outcome in set(Outcome) else None
    detail = ": ".join(part for part in (because or "", receipt.error) if part)
    trace = receipt.traceparent.split("-")
    return Item(
        id=str(receipt.ingest_seq),
        state=str(receipt.status),
        tone=_TONES[receipt.status],
        since=receipt.created_at,
        attempts=receipt.attempt,
        where=f"{receipt.author_name} in {receipt.channel_id}",
        what=receipt.effective_body,
        why=f"{why} ({detail})" if detail else why,
        trace_id=trace[1] if len(trace) > 1 else "",
        row=receipt,
    )


def _shown(name: str, value: object) -> str:
    if isinstance(value, float) and name.endswith("_at"):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    return str(value)
