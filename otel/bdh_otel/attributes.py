"""Every attribute that a span may carry: one declaration each.

A constant holds the attribute's name (``GATE_NAME == "bdh.gate.name"``) and :data:`TABLE` what
was declared about it: type, meaning, and how private it is. An attribute is

- *exportable*: may leave the machine with exported spans;
- *local*: stays in the span store of this machine;
- *content*: local text of people (messages, titles, queries). How much of it the store keeps is
  the operator's choice (``off``, ``preview``, ``full``), and it leaves the machine only when the
  operator has asked for that twice.

Names follow the OpenTelemetry semantic conventions where one exists, and start with ``bdh.``
where none does. ``docs/telemetry.md`` is generated from this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Type = Literal["string", "bool", "int", "float", "strings"]
Privacy = Literal["exportable", "local", "content"]
Value = str | bool | int | float | tuple[str, ...]

#: Most characters of a string that is no content, and most items of a list.
MAX_CHARACTERS = 1_000
MAX_ITEMS = 64
#: Most characters of a content attribute under ``full``.
MAX_CONTENT = 65_536


@dataclass(frozen=True, slots=True)
class Attribute:
    """A declaration. ``preview`` is the most characters that ``preview`` keeps of content;
    ``codes`` are all the values that there are, where they are few and have a name."""

    name: str
    type: Type
    meaning: str
    privacy: Privacy
    preview: int = 200
    codes: tuple[str, ...] = ()


_table: dict[str, Attribute] = {}


def _declare(
    name: str,
    type_: Type,
    meaning: str,
    privacy: Privacy = "exportable",
    *,
    preview: int = 200,
    codes: tuple[str, ...] = (),
) -> str:
    if name in _table:
        raise ValueError(f"{name} is declared twice")
    _table[name] = Attribute(name, type_, meaning, privacy, preview, codes)
    return name


# What every span of a turn carries, so that a filter needs no join.
CONVERSATION_ID = _declare("gen_ai.conversation.id", "string", "Session of the host")
TURN_ID = _declare("bdh.turn.id", "string", "Turn of the host")
PLATFORM = _declare(
    "bdh.platform", "string", "Where the message came from: `cli`, `telegram`, `cron`, …"
)
REQUEST_MODEL = _declare(
    "gen_ai.request.model",
    "string",
    "Model asked: the host's, or on `chat` spans the rewrite provider's",
)
#: Children inherit these from their parent.
CONTEXT = (CONVERSATION_ID, TURN_ID, PLATFORM, REQUEST_MODEL)

ERROR_TYPE = _declare(
    "error.type",
    "string",
    "Set on failures only: an outcome code, a status code, or an exception's class",
)

# The turn
TURN_ROUTE = _declare(
    "bdh.turn.route",
    "string",
    "Which of the four ways the turn took",
    codes=(
        "skip",
        "retrieve_only",
        "store_only",
        "retrieve_and_store",
    ),
)
TURN_READ_OUTCOME = _declare(
    "bdh.turn.read_outcome",
    "string",
    "How the read path ended: `context`, `no_context`, the skip's reason, or `failed`",
)
TURN_WRITE_OUTCOME = _declare(
    "bdh.turn.write_outcome",
    "string",
    "How the write path ended: `queued`, the skip's reason, or `failed`",
)
TURN_CLOSE_REASON = _declare(
    "bdh.turn.close_reason",
    "string",
    "What closed the turn",
    codes=(
        "end_of_turn",
        "api_error",
        "interrupted",
        "next_turn",
        "process_died",
        "expired",
    ),
)
TURN_FIRST = _declare("bdh.turn.first", "bool", "First turn of its session")
TURN_EXPLICIT_QUERY = _declare(
    "bdh.turn.explicit_query", "bool", "The model called `bdh_query` in this turn"
)
TURN_MESSAGE_CHARACTERS = _declare(
    "bdh.turn.message_characters", "int", "Length of the user's message in characters"
)
TURN_ANSWER_CHARACTERS = _declare(
    "bdh.turn.answer_characters", "int", "Length of the assistant's answer in characters"
)
TURN_MESSAGE = _declare(
    "bdh.turn.message", "string", "The user's message", "content", preview=4_000
)
TURN_ANSWER = _declare("bdh.turn.answer", "string", "The assistant's answer", "content")
SENDER = _declare("user.id", "string", "Sender of the message on its platform", "local")

# Gates
GATE_NAME = _declare("bdh.gate.name", "string", "Gate that decided")
GATE_PATH = _declare(
    "bdh.gate.path",
    "string",
    "Which way of the turn the gate stands on",
    codes=(
        "read",
        "write",
    ),
)
GATE_DECISION = _declare(
    "bdh.gate.decision",
    "string",
    "What the gate said",
    codes=(
        "allow",
        "skip",
    ),
)
GATE_REASON = _declare("bdh.gate.reason", "string", "Why, as a reason code")
GATE_RULE = _declare(
    "bdh.gate.rule.text", "string", "Rule that matched, as the operator wrote it", "local"
)
GATE_RULE_LINE = _declare(
    "bdh.gate.rule.line", "int", "Line of that rule in the blacklist file, from 1"
)
GATE_THRESHOLD = _declare("bdh.gate.threshold", "float", "Bound that the value was held against")
GATE_VALUE = _declare("bdh.gate.value", "float", "The value")
GATE_UNIT = _declare("bdh.gate.unit", "string", "What value and threshold count")
GATE_RULES = _declare("bdh.gate.rules", "int", "Rules that were tried")
GATE_RULE_ERRORS = _declare(
    "bdh.gate.rule_errors", "int", "Rules that could not be used: invalid, or out of time"
)
GATE_RETRY_IN = _declare(
    "bdh.gate.retry_in", "float", "Seconds until an open circuit is probed again"
)

# Routing and rewrite
ROUTE_ROUTER = _declare(
    "bdh.route.router",
    "string",
    "What decided",
    codes=(
        "mechanical",
        "rewrite",
        "local",
        "fallback",
    ),
)
ROUTE_REASON = _declare(
    "bdh.route.reason",
    "string",
    "Whether the local router was sure; if not, or if it did not decide, why",
    codes=(
        "sure",
        "in_doubt",
        "follow_up",
        "loading",
        "unavailable",
        "failed",
    ),
)
ROUTE_RETRIEVE_PROBABILITY = _declare(
    "bdh.route.retrieve_probability", "float", "Local router: how likely a read helps, 0 to 1"
)
ROUTE_STORE_PROBABILITY = _declare(
    "bdh.route.store_probability", "float", "Local router: how likely the turn is worth storing"
)
ROUTE_RETRIEVE_THRESHOLD = _declare(
    "bdh.route.retrieve_threshold", "float", "Probability from which the bridge reads"
)
ROUTE_STORE_THRESHOLD = _declare(
    "bdh.route.store_threshold", "float", "Probability from which the bridge stores"
)
ROUTE_GREY_ZONE = _declare(
    "bdh.route.grey_zone", "bool", "Too close to a threshold for the local router alone"
)
ROUTE_FEATURES = _declare(
    "bdh.route.features",
    "strings",
    "What moved the local router most, in logits",
)
REWRITE_SHOULD_RETRIEVE = _declare("bdh.rewrite.should_retrieve", "bool", "The router wants a read")
REWRITE_STORE_CANDIDATE = _declare(
    "bdh.rewrite.store_candidate", "bool", "The router wants the turn stored"
)
REWRITE_CONFIDENCE = _declare("bdh.rewrite.confidence", "float", "The router's own, 0 to 1")
REWRITE_REASON = _declare("bdh.rewrite.reason", "string", "The router's own words", "content")
REWRITE_SCHEMA_VERSION = _declare(
    "bdh.rewrite.schema_version", "int", "Schema of the answer; 1 is the legacy form"
)
REWRITE_KNOWLEDGE_TYPES = _declare(
    "bdh.rewrite.knowledge_types", "strings", "Kinds of knowledge that the router saw"
)
REWRITE_VARIANTS = _declare("bdh.rewrite.variants", "int", "Query variants that will be sent")
REWRITE_QUERIES = _declare("bdh.rewrite.queries", "strings", "These queries", "content")
REWRITE_HOPS = _declare("bdh.rewrite.hops", "int", "Providers visited, skipped ones included")
REWRITE_FALLBACK = _declare(
    "bdh.rewrite.fallback", "bool", "No provider answered; the mechanical gate decides"
)
REWRITE_PROMPT = _declare(
    "bdh.rewrite.prompt",
    "string",
    "Where the prompt came from",
    codes=(
        "built_in",
        "file",
    ),
)
REWRITE_HISTORY_MESSAGES = _declare(
    "bdh.rewrite.history_messages", "int", "Messages of the history given to the router"
)

# One provider of the chain
OPERATION_NAME = _declare(
    "gen_ai.operation.name",
    "string",
    "Kind of operation",
    codes=(
        "chat",
        "execute_tool",
        "retrieval",
    ),
)
PROVIDER_NAME = _declare("gen_ai.provider.name", "string", "Provider asked")
RESPONSE_MODEL = _declare("gen_ai.response.model", "string", "Model that answered")
RESPONSE_FINISH_REASONS = _declare(
    "gen_ai.response.finish_reasons", "strings", "Why the model stopped"
)
INPUT_TOKENS = _declare("gen_ai.usage.input_tokens", "int", "Tokens of the prompt")
OUTPUT_TOKENS = _declare("gen_ai.usage.output_tokens", "int", "Tokens of the answer")
HOP_INDEX = _declare("bdh.hop.index", "int", "Place in the provider chain, from 1")
HOP_OUTCOME = _declare(
    "bdh.hop.outcome",
    "string",
    "How the visit of a provider ended",
    codes=(
        "ok",
        "no_credential",
        "circuit_open",
        "out_of_time",
        "rate_limited",
        "timeout",
        "network",
        "http_error",
        "too_large",
        "internal_error",
        "invalid_json",
        "schema_rejected",
        "empty",
    ),
)
HOP_ASIDE = _declare(
    "bdh.hop.aside",
    "bool",
    "Asked on the side, to learn whether the provider is back: no turn waited for it",
)
HOP_RETRY_AFTER = _declare(
    "bdh.hop.retry_after", "float", "Seconds for which the provider asked to be left alone"
)
HOP_ERROR = _declare("bdh.hop.error", "string", "What the provider or the network said", "local")

# HTTP and where it went
HTTP_METHOD = _declare("http.request.method", "string", "HTTP method")
HTTP_STATUS_CODE = _declare("http.response.status_code", "int", "HTTP status")
SERVER_ADDRESS = _declare("server.address", "string", "Host of the peer")
SERVER_PORT = _declare("server.port", "int", "Port of the peer")
URL = _declare("url.full", "string", "URL of the request", "local")

# Retrieval
RETRIEVAL_VAULT = _declare("bdh.retrieval.vault", "string", "Vault asked; empty: the default one")
DATA_SOURCE_ID = _declare("gen_ai.data_source.id", "string", "The vault, by its conventional name")
RETRIEVAL_SOURCE = _declare("bdh.retrieval.source", "string", "`source` of the graph query")
RETRIEVAL_OUTCOME = _declare(
    "bdh.retrieval.outcome",
    "string",
    "How the query ended",
    codes=(
        "ok",
        "no_evidence",
        "degraded",
        "timeout",
        "unreachable",
        "connection_lost",
        "unauthorized",
        "unknown_vault",
        "invalid_answer",
        "http_error",
    ),
)
RETRIEVAL_ATTEMPTS = _declare("bdh.retrieval.attempts", "int", "Requests made")
RETRIEVAL_LEARN = _declare("bdh.retrieval.learn", "bool", "The graph may learn from this query")
RETRIEVAL_NOTES = _declare("bdh.retrieval.notes", "int", "Notes that the graph activated")
RETRIEVAL_VARIANT = _declare(
    "bdh.retrieval.variant", "int", "Which of the query variants, from 1 (the primary)"
)
RETRIEVAL_VECTOR_TOP = _declare("bdh.retrieval.vector_top", "float", "Best vector score, 0 to 1")
RETRIEVAL_BM25_TOP = _declare("bdh.retrieval.bm25_top", "float", "Best lexical score, 0 to 1")
RETRIEVAL_HYBRID_TOP = _declare("bdh.retrieval.hybrid_top", "float", "Best hybrid score, 0 to 1")
RETRIEVAL_HYBRID_SECOND = _declare(
    "bdh.retrieval.hybrid_second", "float", "Second best hybrid score"
)
RETRIEVAL_HYBRID_MARGIN = _declare(
    "bdh.retrieval.hybrid_margin", "float", "Distance of the best two hybrid scores"
)
RETRIEVAL_QUERY_TERMS = _declare(
    "bdh.retrieval.bm25_query_terms", "int", "Terms of the query in the lexical search"
)
RETRIEVAL_MATCHED_TERMS_COUNT = _declare(
    "bdh.retrieval.bm25_matched_terms", "int", "How many of them occur in notes"
)
RETRIEVAL_MATCHED_TERMS = _declare(
    "bdh.retrieval.matched_terms", "strings", "These terms", "content"
)
RETRIEVAL_HYBRID_ENABLED = _declare(
    "bdh.retrieval.hybrid_enabled", "bool", "The graph searched both ways"
)
RETRIEVAL_QUERY = _declare("gen_ai.retrieval.query.text", "string", "The query", "content")
RETRIEVAL_ERROR = _declare(
    "bdh.retrieval.error", "string", "What the graph or the network said", "local"
)

# Context
CONTEXT_NOTES = _declare("bdh.context.notes", "int", "Notes given to the model")
CONTEXT_CHARACTERS = _declare("bdh.context.characters", "int", "Characters of the block")
CONTEXT_ALREADY_PRESENT = _declare(
    "bdh.context.already_present", "int", "Notes left out: the conversation still holds them"
)
CONTEXT_LEFT_OUT = _declare(
    "bdh.context.left_out", "int", "Notes left out for the bounds of the block"
)
CONTEXT_EXCERPTS = _declare("bdh.context.excerpts", "int", "Notes given with an excerpt")
CONTEXT_TITLES = _declare("bdh.context.titles", "strings", "Titles of the notes", "content")
CONTEXT_TEXT = _declare(
    "bdh.context.text", "string", "The block as the model was given it", "content", preview=4_000
)

# Write and delivery
WRITE_ID = _declare("bdh.write.id", "string", "Row of the outbox")
WRITE_OUTCOME = _declare(
    "bdh.write.outcome",
    "string",
    "What became of the write (refused: the outbox is full)",
    codes=(
        "queued",
        "spooled",
        "refused",
        "failed",
    ),
)
WRITE_CHARACTERS = _declare("bdh.write.characters", "int", "Characters to be delivered")
WRITE_CONTEXT_REMOVED = _declare(
    "bdh.write.context_removed", "bool", "A quoted context block was cut out of the answer"
)
WRITE_QUERY = _declare("bdh.write.query", "string", "What the turn was about", "content")
DELIVERY_OUTCOME = _declare(
    "bdh.delivery.outcome",
    "string",
    "What the attempt came to, or what the operator decided",
    codes=(
        "delivered",
        "retry",
        "unconfirmed",
        "in_doubt",
        "quarantined",
        "failed",
        "discarded",
    ),
)
DELIVERY_STATE = _declare("bdh.delivery.state", "string", "State of the write afterwards")
DELIVERY_REASON = _declare("bdh.delivery.reason", "string", "Why, as a reason code")
DELIVERY_ATTEMPT = _declare("bdh.delivery.attempt", "int", "Which attempt, from 1")
DELIVERY_AGE = _declare("bdh.delivery.age", "float", "Seconds since the write was queued")
DELIVERY_RETRY_IN = _declare("bdh.delivery.retry_in", "float", "Seconds until the next attempt")
DELIVERY_NEW_CONCEPTS = _declare("bdh.delivery.new_concepts", "int", "Notes the graph created")
DELIVERY_MERGED_CONCEPTS = _declare(
    "bdh.delivery.merged_concepts", "int", "Concepts merged into existing notes"
)
DELIVERY_HEBBIAN_UPDATES = _declare(
    "bdh.delivery.hebbian_updates", "int", "Links of the graph that were strengthened"
)
DELIVERY_DEGRADED = _declare(
    "bdh.delivery.degraded", "bool", "The graph's model or encoder failed while learning"
)
DELIVERY_ERROR = _declare(
    "bdh.delivery.error", "string", "What the graph or the network said", "local"
)
MESSAGING_SYSTEM = _declare("messaging.system", "string", "`bdh_outbox`")
MESSAGING_DESTINATION = _declare("messaging.destination.name", "string", "Vault written to")
MESSAGING_OPERATION = _declare(
    "messaging.operation.name",
    "string",
    "What was done with the write",
    codes=(
        "enqueue",
        "deliver",
    ),
)
MESSAGING_OPERATION_TYPE = _declare(
    "messaging.operation.type",
    "string",
    "The same in the words of the conventions",
    codes=(
        "send",
        "process",
    ),
)
MESSAGING_MESSAGE_ID = _declare(
    "messaging.message.id", "string", "Row of the outbox, by its conventional name"
)

# Tools
TOOL_NAME = _declare("gen_ai.tool.name", "string", "Tool called by the model")
TOOL_TYPE = _declare("gen_ai.tool.type", "string", "`function`")
TOOL_CALL_ID = _declare("gen_ai.tool.call.id", "string", "The host's id of the call")
TOOL_ARGUMENTS = _declare(
    "gen_ai.tool.call.arguments", "string", "Arguments of the call, JSON", "content"
)
TOOL_RESULT = _declare("gen_ai.tool.call.result", "string", "Result of the call, JSON", "content")
TOOL_OUTCOME = _declare(
    "bdh.tool.outcome",
    "string",
    "How the call ended; but for `ok` and `degraded` the error code that the model was given",
    codes=(
        "ok",
        "degraded",
        "unreachable",
        "timeout",
        "connection_lost",
        "unauthorized",
        "unknown_vault",
        "bad_answer",
        "http_error",
        "not_permitted",
        "invalid_arguments",
        "disabled",
        "internal",
    ),
)

# Synthesis
SYNTHESIS_OUTCOME = _declare(
    "bdh.synthesis.outcome",
    "string",
    "What became of the session",
    codes=(
        "queued",
        "too_few_turns",
        "nothing_durable",
        "failed",
    ),
)
SYNTHESIS_TURNS = _declare("bdh.synthesis.turns", "int", "Written turns of the session")
SYNTHESIS_CHARACTERS = _declare("bdh.synthesis.characters", "int", "Length of the transcript")
SYNTHESIS_TRIGGER = _declare(
    "bdh.synthesis.trigger",
    "string",
    "What ended the session",
    codes=(
        "finalize",
        "reset",
        "quiet",
    ),
)

# Borgee
BORGEE_KIND = _declare(
    "bdh.borgee.kind",
    "string",
    "What happened in Borgee",
    codes=("message", "mention", "edited", "deleted", "reaction", "unknown"),
)
BORGEE_LANE = _declare(
    "bdh.borgee.lane",
    "string",
    "Lane that the receipt takes",
    codes=("ordinary", "control", "urgent_stop"),
)
#: By the span that says it. ``deferred_…`` gives a receipt back to the inbox, to be claimed again.
BORGEE_OUTCOMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "borgee.receive": ("pending", "ignored", "quarantined", "echo", "duplicate", "failed"),
        "borgee.dispatch": (
            "turn_ran",
            "command_ran",
            "answered",
            "stopped",
            "undelivered",
            "no_turn",
            "handler_error",
            "shutdown",
            "control_timeout",
            "deferred_busy",
            "deferred_idle",
            "deferred_inbox",
            "deferred_claim_lost",
            "deferred_no_handler",
            "deferred_not_registered",
            "deferred_starting",
            "deferred_draining",
        ),
        "borgee.send": ("sent", "never_sent", "refused", "uncertain"),
    }
)
BORGEE_OUTCOME = _declare(
    "bdh.borgee.outcome",
    "string",
    "What became of the event, the receipt or the message",
    codes=tuple(code for codes in BORGEE_OUTCOMES.values() for code in codes),
)
BORGEE_OPERATION = _declare(
    "bdh.borgee.operation",
    "string",
    "What was asked of Borgee",
    codes=("send", "edit", "delete"),
)
BORGEE_RECEIPT = _declare("bdh.borgee.receipt", "int", "Number of the receipt in the inbox")
BORGEE_ATTEMPT = _declare("bdh.borgee.attempt", "int", "How often it was claimed, from 1")
BORGEE_WAITED = _declare("bdh.borgee.waited", "float", "Seconds from the receipt to its claim")
BORGEE_PARTS = _declare("bdh.borgee.parts", "int", "Messages that a long reply took")
BORGEE_CHANNEL = _declare("bdh.borgee.channel", "string", "Channel of the message", "local")

# Breaker, worker, export
BREAKER_KEY = _declare("bdh.breaker.key", "string", "Peer that the circuit breaker guards")
BREAKER_STATE = _declare(
    "bdh.breaker.state",
    "string",
    "State of the circuit breaker",
    codes=(
        "closed",
        "open",
        "probe",
    ),
)
BREAKER_FAILURES = _declare("bdh.breaker.failures", "int", "Failures in a row")
WORKER_DUTY = _declare(
    "bdh.worker.duty",
    "string",
    "Duty that the worker did",
    codes=(
        "close_abandoned",
        "prune_spans",
        "prune_outbox",
    ),
)
WORKER_ITEMS = _declare("bdh.worker.items", "int", "Rows that the duty handled")

# Metrics alone
TOKEN_TYPE = _declare(
    "gen_ai.token.type",
    "string",
    "Which tokens",
    codes=(
        "input",
        "output",
    ),
)
OUTBOX_STATE = _declare(
    "bdh.outbox.state", "string", "State of writes in the outbox; `spooled`: still in a spool file"
)
EXPORT_ENDPOINT = _declare(
    "bdh.export.endpoint", "string", "Backend: the operator's name for it, or host and port"
)

# Events of a span
EXCEPTION_TYPE = _declare("exception.type", "string", "Class of the exception")
EXCEPTION_MESSAGE = _declare("exception.message", "string", "Its message", "local")

TABLE: Mapping[str, Attribute] = MappingProxyType(_table)

#: Release of the semantic conventions that the names above follow.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"

#: What is told about a process, all of it exportable; other keys of a resource stay here.
RESOURCE: Mapping[str, str] = MappingProxyType(
    {
        "service.name": "`hermes-bdh-bridge`",
        "service.version": "Version of the bridge",
        "service.instance.id": "One process: a random id",
        "host.name": "Name of the machine",
        "process.pid": "Process id",
        "bdh.role": "`agent`, `worker` or `command`",
        "bdh.hermes.version": "Version of the host",
        "bdh.hermes.profile": "Profile of the host",
    }
)

#: What a span says about its own end; it carries one of these at most.
OUTCOMES = (
    HOP_OUTCOME,
    RETRIEVAL_OUTCOME,
    DELIVERY_OUTCOME,
    WRITE_OUTCOME,
    TOOL_OUTCOME,
    SYNTHESIS_OUTCOME,
    BORGEE_OUTCOME,
    TURN_ROUTE,
)
