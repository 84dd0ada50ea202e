"""Deliveries as spans of the turn that wrote."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode

from bdh_bridge.outbox.states import State, Write
from bdh_bridge.outbox.transitions import Transition
from bdh_bridge.settings import Loaded
from bdh_bridge.telemetry import describe_process
from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.tracer import Tracer

log = logging.getLogger(__name__)

#: A delivery later than this starts a trace of its own, linked to the turn's: few backends and
#: no reader expect a trace to grow for hours.
LATE = 300.0

_FAILURES = frozenset({State.FAILED, State.IN_DOUBT, State.QUARANTINED})


class DeliveryTrace:
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def turn_of(self, write: Write) -> SpanContext | None:
        """The span under which ``write`` was made."""
        return self._tracer.remote_parent(write.traceparent)

    def record(self, transition: Transition, started_ns: int | None = None) -> None:
        """One span for one change of state. A retry that met the same trouble as the one before
        is no change: a server that is down for a week leaves one span, not ten thousand."""
        try:
            self._record(transition, started_ns)
        except Exception:  # whatever is wrong with the telemetry, the writes go on
            log.exception("[bdh-bridge] a delivery could not be recorded as a span")

    def _record(self, transition: Transition, started_ns: int | None) -> None:
        after = transition.after
        if transition.repeats:
            return
        now_ns = time.time_ns()
        turn = self._tracer.remote_parent(after.traceparent)
        # From the turn on: a requeued write is young again, but its turn's trace is not.
        late = now_ns / 1e9 - after.created_at > LATE
        span = self._tracer.start_span(
            names.DELIVER,
            kind=SpanKind.CONSUMER,
            parent=None if late else turn,
            links=[Link(turn)] if late and turn is not None else None,
            start_time=started_ns or now_ns,
            attributes=_attributes(transition, now_ns / 1e9),
        )
        span.add_event(f"{_came_from(transition.before)} -> {after.state}")
        if after.state in _FAILURES:
            span.set_attribute(attr.ERROR_TYPE, after.error_type or "unknown")
            span.set_status(Status(StatusCode.ERROR, after.error_type))
        span.end()


def _came_from(before: Write) -> str:
    if before.claimed_from is not None:
        return f"{before.claimed_from} -> {before.state}"
    return str(before.state)


def _attributes(transition: Transition, now: float) -> dict[str, str | int | float | bool]:
    after = transition.after
    address = urlsplit(after.destination)
    values: dict[str, str | int | float | bool | None] = {
        attr.CONVERSATION_ID: after.session_id,
        attr.TURN_ID: after.turn_id,
        attr.PLATFORM: after.platform,
        attr.REQUEST_MODEL: after.model,
        attr.WRITE_ID: after.id,
        attr.MESSAGING_SYSTEM: "bdh_outbox",
        attr.MESSAGING_OPERATION: "deliver",
        attr.MESSAGING_OPERATION_TYPE: "process",
        attr.MESSAGING_MESSAGE_ID: after.id,
        attr.MESSAGING_DESTINATION: after.vault_id,
        attr.SERVER_ADDRESS: address.hostname,
        attr.SERVER_PORT: address.port,
        attr.DELIVERY_OUTCOME: "retry" if after.state is State.PENDING else str(after.state),
        attr.DELIVERY_STATE: str(after.state),
        attr.DELIVERY_REASON: after.error_type,
        attr.DELIVERY_ERROR: after.error_detail,
        attr.DELIVERY_ATTEMPT: after.attempts,
        attr.DELIVERY_AGE: after.age(now),
        attr.DELIVERY_NEW_CONCEPTS: after.new_concepts,
        attr.DELIVERY_HEBBIAN_UPDATES: after.hebbian_updates,
        attr.DELIVERY_DEGRADED: after.degraded,
        attr.HTTP_STATUS_CODE: after.http_status,
    }
    return {name: value for name, value in values.items() if value is not None and value != ""}


def record_all(loaded: Loaded, transitions: Sequence[Transition]) -> None:
    """Record what an operator's command changed."""
    if not transitions:
        return
    settings = loaded.settings
    tracer = Tracer(
        loaded.paths.spans, describe_process(loaded, "command"), content=settings.otel_content
    )
    trace = DeliveryTrace(tracer)
    for transition in transitions:
        trace.record(transition)
    tracer.shutdown()
