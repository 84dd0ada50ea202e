"""The way of an answer into the outbox: gates, payload, one committed row."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from opentelemetry.trace import SpanKind

from bdh_bridge.gates.cron import is_cron
from bdh_bridge.gates.decision import Decision, GatePath, allow, skip
from bdh_bridge.gates.reasons import Reason
from bdh_bridge.gates.write import write_gates
from bdh_bridge.outbox.store import Accepted, NewWrite, Outbox, Refused, Spooled
from bdh_bridge.telemetry import record_decision
from bdh_bridge.text import bounded, without_context_blocks
from bdh_bridge.transcripts import WrittenTurn
from bdh_otel import attributes as attr
from bdh_otel import names

if TYPE_CHECKING:
    from bdh_bridge.gates.blacklist import Blacklist
    from bdh_bridge.gates.view import AnswerView, TurnView
    from bdh_bridge.settings import Settings
    from bdh_bridge.state import SharedState
    from bdh_bridge.transcripts import Transcripts
    from bdh_bridge.turns import Turn
    from bdh_otel.tracer import LocalSpan, Tracer

log = logging.getLogger(__name__)

SOURCE = "assistant_response"
#: UTF-8 bytes. Together well under the server's limit of 1 MiB, JSON's escapes included.
MAX_QUERY_BYTES = 16 * 1024
MAX_ANSWER_BYTES = 256 * 1024


class WritePath:
    """Decides for one answer at a time whether the graph may learn from it, and queues it."""

    def __init__(
        self,
        settings: Settings,
        blacklist: Blacklist,
        state: SharedState,
        outbox: Outbox,
        tracer: Tracer,
        job_prompt: Callable[[str], str | None],
        wake_worker: Callable[[], None],
        transcripts: Transcripts | None = None,
    ) -> None:
        """``transcripts`` is given where sessions are to be summarised."""
        self._settings = settings
        self._blacklist = blacklist
        self._state = state
        self._outbox = outbox
        self._tracer = tracer
        self._job_prompt = job_prompt
        self._wake_worker = wake_worker
        self._transcripts = transcripts

    def run(self, turn: Turn | None, view: TurnView | None, answer: AnswerView) -> None:
        """``turn`` and ``view`` are None where no message was captured for this turn.

        ``answer.content`` has its quoted context blocks cut out already.
        """
        parent = turn.span if turn else self._orphan_root(answer)
        last: Decision | None = None
        for last in self.decisions(turn, view, answer):
            record_decision(self._tracer, parent, last)
        if turn is None:
            if isinstance(last, Decision):
                parent.set_attribute(attr.TURN_WRITE_OUTCOME, str(last.reason))
            parent.end()
            return
        if last is None or view is None or not last.allowed:
            # A tool call in the middle of the turn decides nothing about its answer.
            if last is not None and not turn.accepted_write:
                turn.write_outcome = str(last.reason)
            return
        self._queue(turn, view, answer)

    def decisions(
        self, turn: Turn | None, view: TurnView | None, answer: AnswerView
    ) -> list[Decision]:
        """Every decision about this answer; it is queued if the last one allows it."""
        decisions = list(
            write_gates(
                answer, view, self._settings, self._blacklist, self._state, self._job_prompt
            )
        )
        if turn is None or view is None or not decisions[-1].allowed:
            return decisions
        if not _query(turn, view):  # nothing but a quoted context block
            decisions.append(skip("captured", GatePath.WRITE, Reason.NO_USER_MESSAGE))
            return decisions
        if turn.store_candidate is not None:
            store = turn.store_candidate
            reason = Reason.ROUTER_STORE if store else Reason.ROUTER_NO_STORE
            decisions.append((allow if store else skip)("route", GatePath.WRITE, reason))
            if not store:
                return decisions
        with turn.lock:
            if turn.accepted_write:
                decisions.append(skip("once", GatePath.WRITE, Reason.ALREADY_WRITTEN))
        return decisions

    def _queue(self, turn: Turn, view: TurnView, answer: AnswerView) -> None:
        query = _query(turn, view)
        prompt = bounded(answer.content, MAX_ANSWER_BYTES)
        span = self._tracer.start_span(names.WRITE, kind=SpanKind.PRODUCER, parent=turn.span)
        with span:
            span.set_attributes(
                {
                    attr.MESSAGING_SYSTEM: "bdh_outbox",
                    attr.MESSAGING_DESTINATION: self._settings.vault_id,
                    attr.MESSAGING_OPERATION: "enqueue",
                    attr.MESSAGING_OPERATION_TYPE: "send",
                    attr.WRITE_CHARACTERS: len(query) + len(prompt),
                    attr.WRITE_QUERY: query,
                }
            )
            result = self._outbox.accept(
                NewWrite(
                    query=query,
                    user_prompt=prompt,
                    source=SOURCE,
                    destination=self._settings.api_url,
                    vault_id=self._settings.vault_id,
                    traceparent=span.traceparent,
                    session_id=turn.session_id,
                    turn_id=turn.turn_id,
                    platform=turn.platform,
                    model=turn.model,
                    created_ns=time.time_ns(),
                )
            )
            self._note(turn, span, result)
        if isinstance(result, Refused):
            return
        if self._transcripts is not None and not is_cron(turn.platform, turn.session_id):
            self._transcripts.add(
                WrittenTurn(query, prompt, span.traceparent),
                session_id=turn.session_id,
                write_id=result.id,
                platform=turn.platform,
                destination=self._settings.api_url,
                vault_id=self._settings.vault_id,
            )
        self._wake_worker()

    def _note(self, turn: Turn, span: LocalSpan, result: Accepted | Spooled | Refused) -> None:
        if isinstance(result, Refused):
            # The outbox has already said so in the log, once for each cause.
            turn.write_outcome = "refused"
            outcome = "refused" if result.reason.startswith("too_many") else "failed"
            span.set_attribute(attr.WRITE_OUTCOME, outcome)
            span.fail(result.reason, result.detail)
            return
        with turn.lock:
            turn.accepted_write = result.id
        spooled = isinstance(result, Spooled)
        turn.write_outcome = "spooled" if spooled else "queued"
        span.set_attributes(
            {
                attr.WRITE_OUTCOME: turn.write_outcome,
                attr.WRITE_ID: result.id,
                attr.MESSAGING_MESSAGE_ID: result.id,
            }
        )

    def _orphan_root(self, answer: AnswerView) -> LocalSpan:
        """A root of its own for an answer whose turn the bridge never saw begin."""
        return self._tracer.start_span(
            names.TURN,
            attributes={
                attr.CONVERSATION_ID: answer.session_id,
                attr.TURN_ID: answer.turn_id,
                attr.PLATFORM: answer.platform,
                attr.TURN_ROUTE: "skip",
                attr.TURN_CLOSE_REASON: "end_of_turn",
            },
        )


def _query(turn: Turn, view: TurnView) -> str:
    return bounded(
        without_context_blocks(turn.write_query or view.subject), MAX_QUERY_BYTES
    ).strip()
