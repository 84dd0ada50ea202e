"""What the bridge would do with a message: the very code of a turn, without its consequences.

Nothing is written, the graph is asked with ``learn: false``, circuit breakers are looked at and
not touched, and spans stay in memory. Nothing can be known of an answer that was not given, so a
final one that is just long enough is assumed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bdh_bridge.bridge import message_view
from bdh_bridge.gates.answer import MINIMUM_CHARACTERS
from bdh_bridge.gates.blacklist import Blacklist, resolve_blacklist
from bdh_bridge.gates.view import AnswerView
from bdh_bridge.graph.client import GraphClient
from bdh_bridge.graph.excerpts import ExcerptCache
from bdh_bridge.outbox.store import Outbox
from bdh_bridge.read_path import ReadPath
from bdh_bridge.retrieval import Retriever
from bdh_bridge.routing.rewrite import Rewriter
from bdh_bridge.routing.router import make_router
from bdh_bridge.state import PROBE_LEASE, BreakerDecision, Pause, SharedState
from bdh_bridge.telemetry import record_decision
from bdh_bridge.turns import Turn
from bdh_bridge.write_path import WritePath
from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.database import StoreError
from bdh_otel.memory import MemoryTracer
from bdh_otel.reader import StoredSpan

if TYPE_CHECKING:
    from bdh_bridge.routing.providers import NousCredentials
    from bdh_bridge.settings import Loaded


@dataclass(frozen=True, slots=True)
class Question:
    """A message as the host would hand it over. ``history`` holds the messages before it."""

    message: Any
    history: Sequence[Mapping[str, Any]] = ()
    platform: str = "cli"
    sender: str = ""
    session: str = "explain"


@dataclass(frozen=True, slots=True)
class Explanation:
    """``should_retrieve`` and ``store_candidate`` are what the bridge acts on, whoever decided;
    the reasons are codes of :class:`~bdh_bridge.gates.reasons.Reason`. ``router`` is empty where a
    gate ended the turn before any routing. ``queries`` would go to the graph, the primary first.

    ``read_outcome`` and ``context`` tell what came of asking the graph; both are empty where it
    was not asked. ``spans`` are the turn's, its root included.
    """

    should_retrieve: bool
    store_candidate: bool
    read_reason: str
    write_reason: str
    router: str
    queries: tuple[str, ...]
    write_query: str
    read_outcome: str
    context: str
    spans: tuple[StoredSpan, ...]


class DryRun:
    """Explains messages for one home. With ``ask_graph`` the graph is queried, too.

    ``job_prompt`` and ``nous_credentials`` come from the host, where there is one.
    """

    def __init__(
        self,
        loaded: Loaded,
        *,
        ask_graph: bool,
        job_prompt: Callable[[str], str | None],
        nous_credentials: NousCredentials | None = None,
    ) -> None:
        settings, paths = loaded.settings, loaded.paths
        self._ask_graph = ask_graph
        self._tracer = MemoryTracer()
        self._state = UntouchedState(loaded)
        self._graph = GraphClient(settings.api_url, settings.api_token, settings.vault_id)
        blacklist = Blacklist(lambda: resolve_blacklist(settings, paths))
        rewriter = None
        if settings.asks_model:
            rewriter = Rewriter(
                settings, self._state, self._tracer, nous_credentials, None, asides=False
            )
        self._read = ReadPath(
            settings,
            blacklist,
            self._state,
            Retriever(self._graph, self._state, self._tracer),
            ExcerptCache(self._graph),
            self._tracer,
            job_prompt,
            make_router(settings, paths, self._tracer, rewriter, background=False),
        )
        self._write = WritePath(
            settings,
            blacklist,
            self._state,
            Outbox(paths.outbox, spool=paths.outbox_spool),  # opened by nobody
            self._tracer,
            job_prompt,
            lambda: None,
        )

    def explain(self, question: Question) -> Explanation:
        self._tracer.take()
        turn = self._turn(question)
        history = _as_the_host_gives_it(question)
        queries = self._read.queries(turn, turn.view, history)
        context = None
        if queries and self._ask_graph:
            context = self._read.retrieve(turn, queries, history)
        answer = AnswerView(
            session_id=question.session,
            finish_reason="stop",
            content="x" * MINIMUM_CHARACTERS,
            turn_id=turn.turn_id,
            platform=question.platform,
        )
        decisions = self._write.decisions(turn, turn.view, answer)
        for decision in decisions:
            record_decision(self._tracer, turn.span, decision)
        store = decisions[-1].allowed
        asked = bool(queries) and self._ask_graph
        outcome = turn.read_outcome if asked or not queries else ""
        turn.span.set_attributes({attr.TURN_READ_OUTCOME: outcome or None})
        if not store:
            turn.span.set_attribute(attr.TURN_WRITE_OUTCOME, str(decisions[-1].reason))
        turn.span.end()
        spans = self._tracer.take()
        return Explanation(
            should_retrieve=bool(queries),
            store_candidate=store,
            read_reason=_read_reason(spans),
            write_reason=str(decisions[-1].reason),
            router=next(
                (str(s.attributes[attr.ROUTE_ROUTER]) for s in spans if s.name == names.ROUTE), ""
            ),
            queries=tuple(queries),
            write_query=(turn.write_query or turn.view.subject) if store else "",
            read_outcome=turn.read_outcome if asked else "",
            context=context or "",
            spans=tuple(spans),
        )

    def close(self) -> None:
        self._graph.close()
        self._state.close()

    def _turn(self, question: Question) -> Turn:
        view = message_view(
            question.message,
            session_id=question.session,
            turn_id="explain",
            platform=question.platform,
            sender_id=question.sender,
            is_background_review=False,
        )
        span = self._tracer.start_span(
            names.TURN,
            attributes={
                attr.CONVERSATION_ID: question.session,
                attr.PLATFORM: question.platform,
                attr.TURN_MESSAGE: view.text,
            },
        )
        return Turn(
            turn_id="explain",
            session_id=question.session,
            task_id="",
            platform=question.platform,
            model="",
            sender_id=question.sender,
            view=view,
            span=span,
            created=time.monotonic(),
        )


class UntouchedState(SharedState):
    """The home's shared state, looked at only. Where there is none yet, none is made."""

    def __init__(self, loaded: Loaded) -> None:
        super().__init__(loaded.paths.state)
        self._exists = loaded.paths.state.exists

    def breaker_allows(self, key: str, *, lease: float = PROBE_LEASE) -> BreakerDecision:
        try:
            found = self.breakers() if self._exists() else []
        except StoreError:
            found = []
        breaker = next((one for one in found if one.key == key), None)
        if breaker is None or breaker.wait <= 0:
            return BreakerDecision(True, "closed")
        if breaker.open or breaker.probing:
            left = max(0.0, breaker.failed_at + breaker.wait - time.time())
            return BreakerDecision(False, "open", left, breaker.failures)
        return BreakerDecision(True, "probe", failures=breaker.failures)

    def record_success(self, key: str) -> None:
        pass

    def record_failure(self, key: str, *, retry_after: float | None = None) -> None:
        pass

    def paused(self, session_id: str) -> Pause | None:
        return super().paused(session_id) if self._exists() else None


def _as_the_host_gives_it(question: Question) -> list[Mapping[str, Any]]:
    """The host's history ends with the current message."""
    history = list(question.history)
    current = {"role": "user", "content": question.message}
    if not history or dict(history[-1]) != current:
        history.append(current)
    return history


def _read_reason(spans: Sequence[StoredSpan]) -> str:
    """Why it would be read or not: of the decisions before the graph was asked, the last."""
    reasons = [
        span.reason or ""
        for span in spans
        if span.path == "read" and span.gate not in ("circuit", "relevance")
    ]
    return reasons[-1] if reasons else ""
