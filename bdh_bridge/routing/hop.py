"""One step of the provider chain, asked or left out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class HopOutcome(StrEnum):
    """How a hop ended. Low cardinality, safe to export."""

    OK = "ok"

    # Not asked
    NO_CREDENTIAL = "no_credential"
    CIRCUIT_OPEN = "circuit_open"
    OUT_OF_TIME = "out_of_time"

    # Asked in vain: the provider
    RATE_LIMITED = "rate_limited"
    TIMEOUT = "timeout"
    NETWORK = "network"
    HTTP_ERROR = "http_error"
    TOO_LARGE = "too_large"
    INTERNAL_ERROR = "internal_error"

    # Asked in vain: the answer
    INVALID_JSON = "invalid_json"
    SCHEMA_REJECTED = "schema_rejected"
    EMPTY = "empty"

    @property
    def asked(self) -> bool:
        return self not in _NOT_ASKED

    @property
    def failed(self) -> bool:
        return self.asked and self is not HopOutcome.OK


_NOT_ASKED = frozenset({HopOutcome.NO_CREDENTIAL, HopOutcome.CIRCUIT_OPEN, HopOutcome.OUT_OF_TIME})


class HopError(Exception):
    """A hop that gave no decision.

    ``detail`` is a phrase for the operator; it may quote the provider, so it stays on this
    machine. ``retry_after`` is in seconds, as the provider asked.
    """

    def __init__(
        self,
        outcome: HopOutcome,
        detail: str,
        *,
        status_code: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{outcome}: {detail}")
        self.outcome = outcome
        self.detail = detail
        self.status_code = status_code
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Hop:
    """What became of one provider. ``index`` counts from 1 in chain order; ``seconds`` is the
    time the turn waited for it; tokens are None where the provider did not say."""

    index: int
    provider: str
    model: str
    outcome: HopOutcome
    seconds: float = 0.0
    detail: str = ""
    status_code: int | None = None
    retry_after: float | None = None
    response_model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
