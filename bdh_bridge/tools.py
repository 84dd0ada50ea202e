"""The tools that the model may call on purpose: ``bdh_query`` and ``bdh_stats``.

A tool always answers with JSON that the model can act on, errors included. Unlike automatic
retrieval a call is an intention of the conversation: neither blacklist nor eligibility stand in
its way. Who may read, who may teach and what a scheduled job may do still hold, and a pause lets
nothing be taught.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import SpanKind

from bdh_bridge.gates.bridge import Pauses, bridge
from bdh_bridge.gates.cron import cron
from bdh_bridge.gates.decision import Decision, GatePath
from bdh_bridge.gates.sender import sender
from bdh_bridge.graph.client import (
    GraphClient,
    GraphError,
    GraphStatusError,
    GraphUnauthorizedError,
    GraphUnreachableError,
    GraphVaultError,
)
from bdh_bridge.graph.models import QueryResult
from bdh_bridge.read_path import MAX_QUERY_BYTES
from bdh_bridge.retrieval import record_failure, record_scores
from bdh_bridge.telemetry import record_decision, server_attributes
from bdh_bridge.text import bounded, defused, one_line
from bdh_otel import attributes as attr
from bdh_otel import names

if TYPE_CHECKING:
    from bdh_bridge.settings import Settings
    from bdh_bridge.turns import Turn, Turns
    from bdh_otel.tracer import LocalSpan, Tracer

TOOLSET = "bdh"
SOURCE = "hermes_tool"
QUERY_TIMEOUT, STATS_TIMEOUT = 30.0, 5.0
#: A second attempt is made only where the first certainly did not arrive.
QUERY_ATTEMPTS, RETRY_PAUSE = 2, 0.5
MAX_NOTES = 10
#: Characters. A model's context is dear, and what fills it is the server's choice.
MAX_RESPONSE_CHARS, MAX_TITLE_CHARS, MAX_EXCERPT_CHARS = 8_000, 300, 1_000
MAX_CONCEPTS = 50
#: Figures of ``bdh_stats``, and characters of JSON of each of them.
MAX_STATS, MAX_STAT_CHARS = 50, 2_000

QUERY_SCHEMA: dict[str, Any] = {
    "name": "bdh_query",
    "description": (
        "Search the user's own knowledge graph on purpose: past decisions, project facts, lessons "
        "and ideas that they keep there. Use it when the answer may depend on what the user "
        "already worked out, and the context given with the message is not enough. The graph "
        "learns from the query. Returns activated notes with scores."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "query": {
                "type": "string",
                "description": "What to look for, as a question or key words, in any language.",
            },
            "vault_id": {
                "type": "string",
                "description": "Vault to search. Leave out for the usual one.",
            },
        },
        "required": ["query"],
    },
}
STATS_SCHEMA: dict[str, Any] = {
    "name": "bdh_stats",
    "description": (
        "Size and state of the user's knowledge graph (notes, links, learned links, queries so "
        "far). Reads only; nothing is learned."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "vault_id": {"type": "string", "description": "Vault. Leave out for the usual one."}
        },
    },
}

_ADVICE = {
    "unreachable": "The knowledge graph can't be reached. Answer from what you already know.",
    "timeout": (
        "The knowledge graph did not answer in time and may still be working on the query; do not "
        "ask it again now. Answer from what you already know."
    ),
    "connection_lost": (
        "The connection broke and the query may have arrived; do not repeat it. Answer from what "
        "you already know."
    ),
    "unauthorized": (
        "The graph refused the bridge's token. The operator has to set BDH_API_TOKEN. Answer from "
        "what you already know."
    ),
    "unknown_vault": "There is no such vault. Use one of available_vaults or leave vault_id out.",
    "bad_answer": "What answers there is no BDH graph. Answer from what you already know.",
    "http_error": "The graph reported an error. Answer from what you already know.",
    "not_permitted": "This sender may not read the knowledge graph. Answer without it.",
    "invalid_arguments": "Correct the arguments and call again.",
    "disabled": "The knowledge graph is switched off. Answer from what you already know.",
    "internal": "The knowledge graph could not be asked. Answer from what you already know.",
}


class ToolFailure(Exception):
    """What the model is told: a code of ``_ADVICE`` and details."""

    def __init__(self, code: str, message: str, **extra: Any) -> None:
        super().__init__(message)
        self.code = code
        self.extra = extra


class Tools:
    """Handlers with Hermes' signature: ``(args, task_id=, session_id=, …) -> JSON string``."""

    def __init__(
        self,
        settings: Settings,
        graph: GraphClient,
        turns: Turns,
        tracer: Tracer,
        job_prompt: Callable[[str], str | None],
        state: Pauses,
    ) -> None:
        self._settings = settings
        self._state = state
        self._graph = graph
        self._turns = turns
        self._tracer = tracer
        self._job_prompt = job_prompt
        self._server = server_attributes(graph.api_url)

    def bdh_query(self, args: Any, **kwargs: Any) -> str:
        return self._run("bdh_query", args, kwargs, self._query)

    def bdh_stats(self, args: Any, **kwargs: Any) -> str:
        return self._run("bdh_stats", args, kwargs, self._stats)

    def _run(
        self,
        name: str,
        args: Any,
        kwargs: Mapping[str, Any],
        call: Callable[[Mapping[str, Any], Turn | None, str, LocalSpan], dict[str, Any]],
    ) -> str:
        """One tool call as a span. Never raises."""
        session_id = str(kwargs.get("session_id") or "")
        turn = self._turns.of_task(session_id, str(kwargs.get("task_id") or ""))
        arguments = args if isinstance(args, Mapping) else {}
        span = self._tracer.start_span(
            names.execute_tool(name),
            parent=turn.span if turn else None,
            attributes={
                attr.OPERATION_NAME: "execute_tool",
                attr.TOOL_NAME: name,
                attr.TOOL_TYPE: "function",
                attr.TOOL_ARGUMENTS: _dump(arguments),
            },
        )
        if turn is None and session_id:
            span.set_attribute(attr.CONVERSATION_ID, session_id)
        with span:
            try:
                if not self._settings.enabled:
                    raise ToolFailure("disabled", "BDH_ENABLED is false")
                result = call(arguments, turn, session_id, span)
                outcome = str((result.get("degraded") and "degraded") or "ok")
            except ToolFailure as failure:
                outcome = failure.code
                span.fail(failure.code, str(failure))
                result = _error(failure)
            except Exception as error:  # the agent's loop must go on
                outcome = "internal"
                span.fail(error)
                result = _error(ToolFailure("internal", type(error).__name__))
            text = _dump(result)
            span.set_attributes({attr.TOOL_OUTCOME: outcome, attr.TOOL_RESULT: text})
        if turn is None:
            self._tracer.flush()
        return text

    def _query(
        self, args: Mapping[str, Any], turn: Turn | None, session_id: str, span: LocalSpan
    ) -> dict[str, Any]:
        query = args.get("query")
        if not isinstance(query, str) or not query.strip():
            raise ToolFailure("invalid_arguments", "query must be a non-empty string")
        vault = self._vault(args)
        learn = self._may_learn(turn, session_id, span)
        result = self._ask(bounded(query, MAX_QUERY_BYTES), vault, learn, span)
        if turn is not None:
            turn.used_bdh_query = True
        return _answer(result, learn)

    def _stats(
        self, args: Mapping[str, Any], turn: Turn | None, session_id: str, span: LocalSpan
    ) -> dict[str, Any]:
        self._may_read(turn, session_id, span)
        try:
            stats = self._graph.stats(
                timeout=STATS_TIMEOUT, vault_id=self._vault(args), traceparent=span.traceparent
            )
        except GraphError as error:
            raise _failure(error) from error
        return _small_part(stats)

    def _ask(self, query: str, vault: str | None, learn: bool, parent: LocalSpan) -> QueryResult:
        name = self._graph.vault_id if vault is None else vault
        span = self._tracer.start_span(
            names.retrieval(name), kind=SpanKind.CLIENT, parent=parent, attributes=self._server
        )
        span.set_attributes(
            {
                attr.OPERATION_NAME: "retrieval",
                attr.HTTP_METHOD: "POST",
                attr.RETRIEVAL_VAULT: name,
                attr.RETRIEVAL_SOURCE: SOURCE,
                attr.RETRIEVAL_LEARN: learn,
                attr.RETRIEVAL_QUERY: query,
            }
        )
        with span:
            for attempt in range(1, QUERY_ATTEMPTS + 1):
                span.set_attribute(attr.RETRIEVAL_ATTEMPTS, attempt)
                try:
                    result = self._graph.query(
                        query,
                        source=SOURCE,
                        learn=None if learn else False,
                        timeout=QUERY_TIMEOUT,
                        vault_id=vault,
                        traceparent=span.traceparent,
                    )
                except GraphError as error:
                    if attempt < QUERY_ATTEMPTS and _certainly_not_arrived(error):
                        time.sleep(RETRY_PAUSE)
                        continue
                    record_failure(span, error)
                    raise _failure(error) from error
                span.set_attribute(attr.HTTP_STATUS_CODE, 200)
                record_scores(span, result)
                if result.degraded:
                    span.set_attribute(attr.RETRIEVAL_OUTCOME, "degraded")
                return result
        raise AssertionError("the loop returns or raises")

    def _may_read(self, turn: Turn | None, session_id: str, span: LocalSpan) -> None:
        decision = self._sender(GatePath.READ, self._principal(turn, session_id))
        if not decision.allowed:
            record_decision(self._tracer, span, decision)
            raise ToolFailure("not_permitted", str(decision.reason))

    def _may_learn(self, turn: Turn | None, session_id: str, span: LocalSpan) -> bool:
        """Whether the query may teach the graph. Raises ToolFailure if it may not be asked."""
        self._may_read(turn, session_id, span)
        who = self._principal(turn, session_id)
        where, session = (who.platform, who.session_id) if who else ("", session_id)
        decisions = (
            bridge(GatePath.WRITE, session, self._settings, self._state),
            cron(GatePath.WRITE, where, session, self._job_prompt),
            self._sender(GatePath.WRITE, who),
        )
        denied = [decision for decision in decisions if not decision.allowed]
        for decision in denied:
            record_decision(self._tracer, span, decision)
        return not denied

    def _principal(self, turn: Turn | None, session_id: str) -> Turn | None:
        """The turn on whose behalf the tool is called: a sub-agent's is that of who delegated."""
        found = turn or self._turns.delegator(session_id)
        return found.principal if found else None

    def _sender(self, path: GatePath, who: Turn | None) -> Decision:
        settings = self._settings
        listed = settings.read_senders if path is GatePath.READ else settings.write_senders
        return sender(path, who.platform if who else "", who.sender_id if who else "", listed)

    def _vault(self, args: Mapping[str, Any]) -> str | None:
        vault = args.get("vault_id")
        if vault is None or vault == "":
            return None
        if not isinstance(vault, str) or len(vault) > 128:
            raise ToolFailure("invalid_arguments", "vault_id must be a short string")
        return vault


def _certainly_not_arrived(error: GraphError) -> bool:
    return isinstance(error, GraphUnreachableError) or (
        isinstance(error, GraphStatusError) and error.status in (429, 503)
    )


def _failure(error: GraphError) -> ToolFailure:
    extra: dict[str, Any] = {}
    if isinstance(error, GraphVaultError):
        extra["available_vaults"] = list(error.available)
    if error.status and not isinstance(error, GraphUnauthorizedError):
        extra["status"] = error.status
    return ToolFailure(error.kind, str(error), **extra)


def no_bridge() -> str:
    """The answer of a tool in a Hermes home for which the bridge is not switched on."""
    return _dump(_error(ToolFailure("disabled", "the bridge is not enabled in this profile")))


def _error(failure: ToolFailure) -> dict[str, Any]:
    advice = _ADVICE.get(failure.code, _ADVICE["internal"])
    detail = one_line(str(failure), 300)
    return {"error": failure.code, "detail": detail, "advice": advice, **failure.extra}


def _answer(result: QueryResult, learned: bool) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "notes": [
            {
                "id": one_line(note.id, MAX_TITLE_CHARS),
                "title": one_line(note.title, MAX_TITLE_CHARS),
                "score": round(note.score, 4),
            }
            | ({"excerpt": defused(note.excerpt, MAX_EXCERPT_CHARS)} if note.excerpt else {})
            for note in result.notes[:MAX_NOTES]
        ],
        "response": defused(result.response, MAX_RESPONSE_CHARS),
        "new_concepts": [
            one_line(title, MAX_TITLE_CHARS) for title in result.new_concepts[:MAX_CONCEPTS]
        ],
        "hebbian_updates": result.hebbian_updates,
        "neurons": result.neurons,
        "synapses": result.synapses,
    }
    if not learned:
        answer["learned"] = False
    if result.degraded:
        answer["degraded"] = result.degraded
        answer["response"] = ""
        answer["advice"] = (
            "The graph's language model failed; the notes are still good."
            if result.degraded == "llm_error"
            else "The graph could not search properly; treat this as no result."
        )
    return answer


def _small_part(stats: Mapping[str, Any]) -> dict[str, Any]:
    """The figures that are of a size fit for a model's context."""
    small = {}
    for name, value in list(stats.items())[:MAX_STATS]:
        if len(name) <= MAX_TITLE_CHARS and len(_dump(value)) <= MAX_STAT_CHARS:
            small[name] = value
    return small


def _dump(value: Any) -> str:
    """JSON that every encoder takes: a peer's JSON may carry half surrogates."""
    return json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace").decode()
