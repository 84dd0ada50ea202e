"""Receipts: what the inbox keeps of every event that Borgee delivered."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from bdh_otel.state_table import storable

if TYPE_CHECKING:
    from borgee_plugin_sdk import InboundMessageEvent

#: Longest text that is kept of a name. Identifiers are kept whole: cut, they name something else.
_MAX_NAME = 512
#: What a 64-bit column holds.
_MAX_INTEGER = 2**63 - 1


class Status(StrEnum):
    """Where a receipt stands.

    ``pending → claimed → processing → completed | failed``; ``processing → in_doubt →
    quarantined``; an operator moves a quarantined one to ``failed`` or back to ``pending``.
    Events that start no turn are ``ignored`` from the beginning.
    """

    PENDING = "pending"
    CLAIMED = "claimed"
    """A slot was given to it; Hermes has not seen it yet."""
    PROCESSING = "processing"
    """Committed right before Hermes was called: from here on it may have had effects."""
    COMPLETED = "completed"
    FAILED = "failed"
    IN_DOUBT = "in_doubt"
    QUARANTINED = "quarantined"
    IGNORED = "ignored"


#: States that nothing leaves by itself and that retention may remove.
FINAL = (Status.COMPLETED, Status.FAILED, Status.IGNORED)


class DispatchClass(StrEnum):
    """Which lane a receipt takes."""

    ORDINARY = "ordinary"
    CONTROL = "control"
    """A command, or the answer to a question of the running turn: may pass it."""
    URGENT_STOP = "urgent_stop"


class Outcome(StrEnum):
    """Why a receipt has its status."""

    TURN_RAN = "turn_ran"
    COMMAND_RAN = "command_ran"
    ANSWERED = "answered"
    """The answer reached the clarify or approval question that waited for it."""
    STOPPED = "stopped"
    UNDELIVERED = "undelivered"
    """The turn ran; its reply could not be sent."""
    NO_TURN = "no_turn"
    """Hermes returned without having started a turn (a plugin or a limit refused it)."""
    HANDLER_ERROR = "handler_error"
    PROCESS_DIED = "process_died"
    SHUTDOWN = "shutdown"
    CONTROL_TIMEOUT = "control_timeout"
    POISON = "poison"
    DISCARDED = "discarded"
    NO_INFERENCE = "no_inference"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class NewReceipt:
    """A receipt that is about to be committed."""

    kind: str
    channel_id: str
    channel_type: str
    author_id: str
    author_name: str
    message_id: str
    session_key: str
    source_body: str
    effective_body: str
    source_created_at: int
    """Unix milliseconds, by the server's clock."""
    dedupe_key: str
    context: dict[str, str] = field(default_factory=dict)
    """guild_id, top_level_channel_id, thread_id, task_id: those that the server sent."""
    reply_to_id: str = ""
    dispatch_class: DispatchClass = DispatchClass.ORDINARY
    forced_queue: bool = False
    status: Status = Status.PENDING
    outcome: str = ""
    error: str = ""
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Receipt:
    """A stored receipt. Times are Unix seconds."""

    ingest_seq: int
    kind: str
    channel_id: str
    channel_type: str
    author_id: str
    author_name: str
    message_id: str
    session_key: str
    source_body: str
    effective_body: str
    reply_to_id: str
    source_created_at: int
    context: dict[str, str]
    dedupe_key: str
    dispatch_class: DispatchClass
    forced_queue: bool
    status: Status
    claim_token: str
    attempt: int
    outcome: str
    error: str
    traceparent: str
    created_at: float
    updated_at: float


def clean(text: Any, limit: int | None = None) -> str:
    """``text`` as something that SQLite and UTF-8 can hold (no lone surrogates)."""
    whole: str = text if isinstance(text, str) else "" if text is None else str(text)
    cut = whole if limit is None else whole[:limit]
    return storable(cut)


def _milliseconds(value: Any) -> int:
    """A server's time as a 64-bit column can hold it."""
    return max(0, min(int(value), _MAX_INTEGER)) if isinstance(value, int) else 0


def chat_type(channel_type: str | None) -> str:
    """Hermes' chat type for a Borgee channel type."""
    return "dm" if (channel_type or "").lower() == "dm" else "channel"


def dedupe_key(event: InboundMessageEvent) -> str:
    """What makes two deliveries the same event: kind, channel and message id.

    Not the author's name, which can change between two deliveries. A mention is the message
    itself, so both kinds share a key and start one turn. Edits and reactions, of which one
    message can have many, are told apart by what they say.
    """
    kind = event.kind.value
    message_id = event.message.id if event.message else event.message_id or ""
    more: list[str] = []
    if kind == "edited":
        more.append(str(event.created_at))
    elif event.reaction is not None:
        more += [event.reaction.user_id, event.reaction.emoji, str(event.reaction.added)]
    return message_key(kind, event.channel_id, message_id, *more)


def message_key(kind: str, channel_id: str, message_id: str, *more: str) -> str:
    """The key of an event by its parts; ``more`` tells apart what one message can have many of."""
    if not message_id:
        return f"unnamed {uuid.uuid4()}"
    parts = ["message" if kind == "mention" else kind, channel_id, message_id, *more]
    # The length of each part makes the key unambiguous, whatever ids contain.
    return clean(" ".join(f"{len(part)}:{part}" for part in parts))


def from_event(event: InboundMessageEvent, session_key: str, traceparent: str = "") -> NewReceipt:
    """The receipt of an event, still unclassified. Raises: ValueError for an unusable event."""
    kind = event.kind.value
    message = event.message
    starts_turn = kind in ("message", "mention")
    if starts_turn and (message is None or not message.id):
        raise ValueError("the event carries no message id")
    if starts_turn and not event.channel_id:
        raise ValueError("the event carries no channel id")
    context = event.conversation_context
    body = clean(message.body if message else "")
    if event.reaction is not None:
        body = clean(event.reaction.emoji)
    empty = starts_turn and not body.strip()
    return NewReceipt(
        kind=kind,
        channel_id=clean(event.channel_id),
        channel_type=clean(event.channel_type, _MAX_NAME),
        author_id=clean(
            message.author_id if message else event.reaction.user_id if event.reaction else "",
            _MAX_NAME,
        ),
        author_name=clean(event.author_name, _MAX_NAME),
        message_id=clean(message.id if message else event.message_id),
        session_key=session_key,
        source_body=body,
        effective_body=body,
        source_created_at=_milliseconds(event.created_at),
        dedupe_key=dedupe_key(event),
        context={
            name: clean(value)
            for name in ("guild_id", "top_level_channel_id", "thread_id", "task_id")
            if context is not None
            and (value := getattr(context, name, None))
            and len(value) <= _MAX_NAME
        },
        reply_to_id=clean(message.reply_to_id if message else ""),
        status=Status.PENDING if starts_turn and not empty else Status.IGNORED,
        outcome=""
        if starts_turn and not empty
        else Outcome.EMPTY
        if empty
        else Outcome.NO_INFERENCE,
        traceparent=traceparent,
    )


def poison(event: Any, session_key: str, reason: str, traceparent: str = "") -> NewReceipt:
    """A quarantined receipt for an event that could not be understood.

    Nothing is replayed by the server, so refusing the event would lose it.
    """
    message = getattr(event, "message", None)
    kind = getattr(getattr(event, "kind", None), "value", None)
    try:
        key = dedupe_key(event)
    except Exception:
        key = f"poison {uuid.uuid4()}"
    return NewReceipt(
        kind=clean(kind or "unknown", _MAX_NAME),
        channel_id=clean(getattr(event, "channel_id", "")),
        channel_type=clean(getattr(event, "channel_type", ""), _MAX_NAME),
        author_id=clean(getattr(message, "author_id", ""), _MAX_NAME),
        author_name=clean(getattr(event, "author_name", ""), _MAX_NAME),
        message_id=clean(getattr(message, "id", getattr(event, "message_id", ""))),
        session_key=session_key,
        source_body=clean(getattr(message, "body", "")),
        effective_body=clean(getattr(message, "body", "")),
        source_created_at=_milliseconds(getattr(event, "created_at", 0)),
        dedupe_key=key,
        status=Status.QUARANTINED,
        outcome=Outcome.POISON,
        error=clean(reason, 500),
        traceparent=traceparent,
    )
