"""Ask the graph within the turn's budget: every query a span, every failure a count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from opentelemetry.trace import SpanKind

from bdh_bridge.deadline import Deadline
from bdh_bridge.gates.circuit import circuit
from bdh_bridge.gates.decision import GatePath
from bdh_bridge.graph.client import GraphClient, GraphError
from bdh_bridge.graph.models import QueryResult, merge
from bdh_bridge.telemetry import Outage, record_decision, server_attributes
from bdh_otel import attributes as attr
from bdh_otel import names

if TYPE_CHECKING:
    from bdh_bridge.state import SharedState
    from bdh_otel.tracer import LocalSpan, Tracer

#: Seconds for all variants of a turn together.
RETRIEVAL_TIMEOUT = 2.0
SOURCE = "automatic_retrieval"


class Retriever:
    """Automatic retrieval: read-only queries, guarded by the circuit that all processes share."""

    def __init__(
        self,
        graph: GraphClient,
        state: SharedState,
        tracer: Tracer,
        *,
        timeout: float = RETRIEVAL_TIMEOUT,
    ) -> None:
        self._graph = graph
        self._state = state
        self._tracer = tracer
        self._timeout = timeout
        self._outage = Outage(f"graph {graph.api_url}")
        self._key = f"graph:{graph.api_url}"
        self._server = server_attributes(graph.api_url)

    def retrieve(self, queries: Sequence[str], parent: LocalSpan) -> QueryResult | str:
        """The merged answer to the variants, the primary first, or why there is none.

        The server answers one query at a time, so they are asked one after the other; what has
        arrived when the time is up is what counts.
        """
        breaker = self._state.breaker_allows(self._key)
        decision = circuit(GatePath.READ, breaker)
        record_decision(self._tracer, parent, decision)
        if not decision.allowed:
            return str(decision.reason)
        deadline = Deadline(self._timeout)
        results: list[QueryResult] = []
        failure = ""
        for number, query in enumerate(queries, start=1):
            if deadline.remaining <= 0:
                break
            try:
                results.append(self._ask(query, number, deadline, parent))
            except GraphError as error:
                failure = error.kind
                if not results:
                    self._outage.failed(
                        _told(error), "turns go on without context until it answers"
                    )
                break
        if not results:
            self._state.record_failure(self._key)
            return failure or "timeout"
        # Whatever the breaker said before: other turns may have failed meanwhile, and only failures
        # in a row open the circuit.
        self._state.record_success(self._key)
        self._outage.recovered()
        return merge(results)

    def _ask(self, query: str, number: int, deadline: Deadline, parent: LocalSpan) -> QueryResult:
        vault = self._graph.vault_id
        span = self._tracer.start_span(
            names.retrieval(vault), kind=SpanKind.CLIENT, parent=parent, attributes=self._server
        )
        span.set_attributes(
            {
                attr.OPERATION_NAME: "retrieval",
                attr.HTTP_METHOD: "POST",
                attr.RETRIEVAL_VAULT: vault,
                attr.RETRIEVAL_SOURCE: SOURCE,
                attr.RETRIEVAL_LEARN: False,
                attr.RETRIEVAL_ATTEMPTS: 1,
                attr.RETRIEVAL_VARIANT: number,
                attr.RETRIEVAL_QUERY: query,
            }
        )
        if vault:
            span.set_attribute(attr.DATA_SOURCE_ID, vault)
        with span:
            try:
                result = self._graph.query(
                    query,
                    source=SOURCE,
                    learn=False,
                    respond=False,
                    timeout=deadline.remaining,
                    traceparent=span.traceparent,
                )
            except GraphError as error:
                record_failure(span, error)
                raise
            span.set_attribute(attr.HTTP_STATUS_CODE, 200)
            record_scores(span, result)
            return result


def _told(error: GraphError) -> str:
    """For the log: what a server says may quote the question, so its words stay in the span."""
    return f"{error.kind} (HTTP {error.status})" if error.status else str(error)


def record_failure(span: LocalSpan, error: GraphError) -> None:
    """Why the graph gave no answer."""
    outcome = "invalid_answer" if error.kind == "bad_answer" else error.kind
    span.set_attributes(
        {
            attr.RETRIEVAL_OUTCOME: outcome,
            attr.RETRIEVAL_ERROR: str(error),
            attr.HTTP_STATUS_CODE: error.status,
        }
    )
    span.fail(outcome, str(error))


def record_scores(span: LocalSpan, result: QueryResult) -> None:
    """Everything that the graph said about how it searched."""
    outcome = "ok" if result.has_evidence else "no_evidence"
    span.set_attributes({attr.RETRIEVAL_NOTES: len(result.notes), attr.RETRIEVAL_OUTCOME: outcome})
    routing = result.routing
    if routing is None or not result.has_evidence:
        return
    span.set_attributes(
        {
            attr.RETRIEVAL_VECTOR_TOP: routing.vector_top,
            attr.RETRIEVAL_BM25_TOP: routing.bm25_top,
            attr.RETRIEVAL_HYBRID_TOP: routing.hybrid_top,
            attr.RETRIEVAL_HYBRID_SECOND: routing.hybrid_second,
            attr.RETRIEVAL_HYBRID_MARGIN: routing.hybrid_margin,
            attr.RETRIEVAL_QUERY_TERMS: routing.query_terms,
            attr.RETRIEVAL_MATCHED_TERMS_COUNT: routing.matched_terms,
            attr.RETRIEVAL_MATCHED_TERMS: routing.matched,
            attr.RETRIEVAL_HYBRID_ENABLED: routing.hybrid_enabled,
        }
    )
