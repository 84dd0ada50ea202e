"""Gate ``circuit``: a graph that does not answer is left alone for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bdh_bridge.gates.decision import Decision, GatePath, allow, skip
from bdh_bridge.gates.reasons import Reason
from bdh_otel import attributes as attr

if TYPE_CHECKING:
    from bdh_bridge.state import BreakerDecision

NAME = "circuit"

_REASONS = {
    "closed": Reason.CIRCUIT_CLOSED,
    "probe": Reason.CIRCUIT_PROBE,
    "open": Reason.CIRCUIT_OPEN,
}


def circuit(path: GatePath, breaker: BreakerDecision) -> Decision:
    """What the breaker said (:meth:`SharedState.breaker_allows`), as a traced decision."""
    reason = _REASONS[breaker.reason]
    if breaker.allowed:
        return allow(NAME, path, reason)
    details: dict[str, Any] = {attr.GATE_RETRY_IN: round(breaker.retry_in, 3)}
    return skip(NAME, path, reason, **details)
