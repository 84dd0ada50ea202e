"""The states of a write, and the record of one.

::

    pending ─▶ sending ─┬▶ delivered     the server answered
       ▲          │     ├▶ unconfirmed   sent in full, no answer in time: servers finish those
       └──────────┤     ├▶ failed        the server said no, or it was too old to go on trying
     certainly    │     └▶ in_doubt ─▶ quarantined   perhaps learned: only the operator decides
     not arrived  └◀──────────┘ asked again with the same key, where the server honours it
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    PENDING = "pending"
    SENDING = "sending"
    DELIVERED = "delivered"
    UNCONFIRMED = "unconfirmed"
    FAILED = "failed"
    IN_DOUBT = "in_doubt"
    QUARANTINED = "quarantined"
    DISCARDED = "discarded"


@dataclass(frozen=True, slots=True)
class Write:
    """One row of the outbox. Times are Unix seconds; ``query`` and ``user_prompt`` are empty once
    delivered or discarded."""

    seq: int
    id: str
    """A UUID; also the request's ``Idempotency-Key``."""
    state: State
    destination: str
    vault_id: str
    source: str
    query: str
    user_prompt: str
    body_bytes: int
    traceparent: str
    session_id: str
    turn_id: str
    platform: str
    model: str
    created_at: float
    """When the turn produced it."""
    accepted_at: float
    """When it was first on disk: its age counts from here."""
    updated_at: float
    attempts: int
    next_at: float
    """Not asked again before (``in_doubt`` and ``unconfirmed`` only; the rest waits by lane)."""
    sent_at: float | None
    """When it first left this machine in a way that may have arrived."""
    server_instance: str | None
    """The server that was asked then, if it honours keys."""
    settle_until: float | None
    """Until when that server can be asked again without risk; None: not at all."""
    http_status: int | None
    error_type: str | None
    error_detail: str | None
    degraded: bool
    new_concepts: int
    hebbian_updates: int
    claim_token: str | None
    claim_owner: str | None
    claimed_from: State | None

    def age(self, now: float) -> float:
        """Seconds since it was accepted; never negative, whatever the clock did."""
        return max(0.0, now - self.accepted_at)
