"""The spans that there are: their names, their kinds, and what each one says.

Names have few values: the part after the blank is a gate, a model, a vault or a tool, never an
id and never text.
"""

from __future__ import annotations

from dataclasses import dataclass

from opentelemetry.trace import SpanKind

TURN = "bdh.turn"
ROUTE = "bdh.route"
REWRITE = "bdh.rewrite"
CONTEXT = "bdh.context"
WRITE = "bdh.write"
DELIVER = "bdh.deliver"
SYNTHESIS = "bdh.synthesis"
DUTY = "bdh.worker"
BORGEE_RECEIVE = "borgee.receive"
BORGEE_CLAIM = "borgee.claim"
BORGEE_DISPATCH = "borgee.dispatch"
BORGEE_SEND = "borgee.send"

_GATE, _CHAT, _RETRIEVAL, _TOOL = "bdh.gate", "chat", "retrieval", "execute_tool"


def gate(name: str) -> str:
    """``bdh.gate {name}``."""
    return f"{_GATE} {name}"


def chat(model: str) -> str:
    """``chat {model}``, as the GenAI conventions name it."""
    return f"{_CHAT} {model}" if model else _CHAT


def retrieval(vault: str) -> str:
    """``retrieval {vault}``; ``retrieval`` alone for the server's default vault."""
    return f"{_RETRIEVAL} {vault}" if vault else _RETRIEVAL


def execute_tool(tool: str) -> str:
    """``execute_tool {tool}``, as the GenAI conventions name it."""
    return f"{_TOOL} {tool}"


@dataclass(frozen=True, slots=True)
class SpanType:
    """One kind of span. ``prefix`` is what its name starts with, ``name`` how it is written."""

    prefix: str
    name: str
    kind: SpanKind
    meaning: str


SPANS = (
    SpanType(TURN, TURN, SpanKind.INTERNAL, "One turn of the conversation: the root of its trace"),
    SpanType(_GATE, "bdh.gate {gate}", SpanKind.INTERNAL, "One decision to go on or to stop"),
    SpanType(ROUTE, ROUTE, SpanKind.INTERNAL, "Which router decided, and how sure it was"),
    SpanType(REWRITE, REWRITE, SpanKind.INTERNAL, "Classification and rewrite of the message"),
    SpanType(_CHAT, "chat {model}", SpanKind.CLIENT, "One provider of the chain, skipped or asked"),
    SpanType(_RETRIEVAL, "retrieval {vault}", SpanKind.CLIENT, "One query to the graph"),
    SpanType(CONTEXT, CONTEXT, SpanKind.INTERNAL, "What was given to the model"),
    SpanType(WRITE, WRITE, SpanKind.PRODUCER, "The turn was put into the outbox"),
    SpanType(
        DELIVER,
        DELIVER,
        SpanKind.CONSUMER,
        "One attempt to deliver it: a child of `bdh.write`; linked to it when over 5 minutes late",
    ),
    SpanType(_TOOL, "execute_tool {tool}", SpanKind.INTERNAL, "A tool that the model called"),
    SpanType(SYNTHESIS, SYNTHESIS, SpanKind.INTERNAL, "Summary of a finished session"),
    SpanType(
        BORGEE_RECEIVE, BORGEE_RECEIVE, SpanKind.CONSUMER, "An event of Borgee was put in the inbox"
    ),
    SpanType(BORGEE_CLAIM, BORGEE_CLAIM, SpanKind.INTERNAL, "Its turn has come"),
    SpanType(BORGEE_DISPATCH, BORGEE_DISPATCH, SpanKind.INTERNAL, "Hermes has the message"),
    SpanType(
        BORGEE_SEND, BORGEE_SEND, SpanKind.PRODUCER, "A message to Borgee, or a change of one"
    ),
    SpanType(DUTY, DUTY, SpanKind.INTERNAL, "A duty of the worker that did something"),
)
