"""The way of a turn from the message to its context: gates, route, retrieval, block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bdh_bridge.gates import eligibility as eligibility_gate
from bdh_bridge.gates import injectable as injectable_gate
from bdh_bridge.gates.decision import Decision, GatePath, allow, skip
from bdh_bridge.gates.read import read_gates
from bdh_bridge.gates.reasons import Reason
from bdh_bridge.gates.relevance import relevance
from bdh_bridge.gates.sender import sender
from bdh_bridge.graph.context import build_context, titles_in_history
from bdh_bridge.telemetry import record_decision
from bdh_bridge.text import bounded, without_context_blocks
from bdh_otel import attributes as attr
from bdh_otel import names

if TYPE_CHECKING:
    from bdh_bridge.gates.blacklist import Blacklist
    from bdh_bridge.gates.view import TurnView
    from bdh_bridge.graph.excerpts import ExcerptCache
    from bdh_bridge.graph.models import QueryResult
    from bdh_bridge.retrieval import Retriever
    from bdh_bridge.routing.router import Router
    from bdh_bridge.settings import Settings
    from bdh_bridge.state import SharedState
    from bdh_bridge.turns import Turn
    from bdh_otel.tracer import Tracer

#: A longer message says no more about what to look for, and the server's limit is 1 MiB.
MAX_QUERY_BYTES = 8 * 1024

#: Read skips that say nothing about whether the turn is worth storing.
_READ_ONLY_SKIPS = frozenset(
    {Reason.NOT_INJECTABLE, Reason.SENDER_NOT_LISTED, Reason.SENDER_UNKNOWN}
)


class ReadPath:
    """Decides for one turn at a time whether the graph is read, and builds the context."""

    def __init__(
        self,
        settings: Settings,
        blacklist: Blacklist,
        state: SharedState,
        retriever: Retriever,
        excerpts: ExcerptCache,
        tracer: Tracer,
        job_prompt: Callable[[str], str | None],
        router: Router | None = None,
    ) -> None:
        self._settings = settings
        self._blacklist = blacklist
        self._state = state
        self._retriever = retriever
        self._excerpts = excerpts
        self._tracer = tracer
        self._job_prompt = job_prompt
        self._router = router

    def run(self, turn: Turn, view: TurnView, history: Sequence[Any]) -> str | None:
        """The context block for this turn, or None. ``history`` may end with the message."""
        queries = self.queries(turn, view, history)
        return self.retrieve(turn, queries, history) if queries else None

    def retrieve(self, turn: Turn, queries: Sequence[str], history: Sequence[Any]) -> str | None:
        """What the graph has to say to ``queries``, as a context block, if it is worth giving."""
        answer = self._retriever.retrieve(queries, turn.span)
        if isinstance(answer, str):
            turn.read_outcome = answer if answer == Reason.CIRCUIT_OPEN else "failed"
            return None
        decision = relevance(_evidence(answer), answer.notes)
        record_decision(self._tracer, turn.span, decision)
        if not decision.allowed:
            turn.read_outcome = str(decision.reason)
            return None
        return self._context(turn, answer, history)

    def queries(self, turn: Turn, view: TurnView, history: Sequence[Any]) -> list[str]:
        """What to ask the graph for this turn, the primary query first; empty: nothing."""
        last: Decision | None = None
        for last in read_gates(
            view, self._settings, self._blacklist, self._state, self._job_prompt
        ):
            if last.gate == eligibility_gate.NAME and self._router is not None:
                break  # the router decides instead; recorded below if it can't
            record_decision(self._tracer, turn.span, last)
        if last is None:
            return []
        if self._router is not None and self._worth_routing(view, last):
            return self._route(self._router, turn, view, history, last)
        if last.gate == eligibility_gate.NAME:
            if self._router is not None:  # small talk: no model has to be asked about it
                record_decision(self._tracer, turn.span, last)
                turn.store_candidate = False
            span = self._tracer.start_span(names.ROUTE, parent=turn.span)
            span.set_attribute(attr.ROUTE_ROUTER, "mechanical")
            span.end()
        if not last.allowed:
            turn.read_outcome = str(last.reason)
            return []
        return self._own_words(turn, view)

    def _worth_routing(self, view: TurnView, last: Decision) -> bool:
        if last.gate == eligibility_gate.NAME:
            return last.reason != Reason.CASUAL
        if last.reason not in _READ_ONLY_SKIPS:
            return False
        return sender(
            GatePath.WRITE, view.platform, view.sender_id, self._settings.write_senders
        ).allowed

    def _route(
        self, router: Router, turn: Turn, view: TurnView, history: Sequence[Any], last: Decision
    ) -> list[str]:
        """Let the router decide; where it can't, the mechanical decision ``last`` stands."""
        readable = last.gate == eligibility_gate.NAME
        route = router.route(view.subject, history, view.platform, turn.span)
        if route is None:
            if readable:
                record_decision(self._tracer, turn.span, last)
            if not last.allowed:
                turn.read_outcome = str(last.reason)
                return []
            return self._own_words(turn, view)
        turn.store_candidate = route.store
        turn.write_query = route.write_query
        if not readable:
            turn.read_outcome = str(last.reason)
            return []
        routed = (allow if route.read else skip)(
            "route",
            GatePath.READ,
            Reason.ROUTER_RETRIEVE if route.read else Reason.ROUTER_NO_RETRIEVE,
        )
        record_decision(self._tracer, turn.span, routed)
        if not route.read:
            turn.read_outcome = str(routed.reason)
            return []
        return list(route.queries) or self._own_words(turn, view)

    def _own_words(self, turn: Turn, view: TurnView) -> list[str]:
        """The message as the query; nothing, if it is but a quoted context block."""
        query = bounded(without_context_blocks(view.subject), MAX_QUERY_BYTES).strip()
        if query:
            return [query]
        decision = skip(injectable_gate.NAME, GatePath.READ, Reason.EMPTY_MESSAGE)
        record_decision(self._tracer, turn.span, decision)
        turn.read_outcome = str(decision.reason)
        return []

    def _context(self, turn: Turn, answer: QueryResult, history: Sequence[Any]) -> str | None:
        missing = any(not note.excerpt for note in answer.notes)
        block = build_context(
            answer.notes,
            answer.response,
            present=titles_in_history(history),
            excerpts=self._excerpts.current() if missing else None,
        )
        span = self._tracer.start_span(names.CONTEXT, parent=turn.span)
        span.set_attributes(
            {
                attr.CONTEXT_NOTES: block.notes,
                attr.CONTEXT_CHARACTERS: len(block.text),
                attr.CONTEXT_ALREADY_PRESENT: block.already_present,
                attr.CONTEXT_LEFT_OUT: len(answer.notes) - block.notes - block.already_present,
                attr.CONTEXT_EXCERPTS: block.excerpts,
                attr.CONTEXT_TITLES: block.titles,
                attr.CONTEXT_TEXT: block.text,
            }
        )
        span.end()
        if not block.text:
            turn.read_outcome = "already_present" if block.already_present else "no_context"
            return None
        turn.retrieved = True
        turn.read_outcome = "context"
        return block.text


def _evidence(answer: QueryResult) -> Mapping[str, float] | None:
    """What the relevance gate reads; ``{}`` where the server found no evidence to report."""
    if not answer.has_evidence:
        return {}
    if answer.routing is None:
        return None
    return {
        "hybrid_top_score": answer.routing.hybrid_top,
        "vector_top_score": answer.routing.vector_top,
        "bm25_matched_term_count": answer.routing.matched_terms,
    }
