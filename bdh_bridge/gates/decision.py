"""What a gate says."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class GatePath(StrEnum):
    """Which way of the turn a gate stands on."""

    READ = "read"
    WRITE = "write"


class Verdict(StrEnum):
    ALLOW = "allow"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Decision:
    """One gate's answer.

    ``reason`` is a code of :class:`bdh_bridge.gates.reasons.Reason`: low cardinality, safe to
    export. ``rule`` says which rule matched in words that may hold private text, so it stays
    on this machine. ``details`` are further span attributes (thresholds, values, line numbers).
    """

    gate: str
    path: GatePath
    verdict: Verdict
    reason: str
    rule: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def allowed(self) -> bool:
        return self.verdict is Verdict.ALLOW


def allow(gate: str, path: GatePath, reason: str, rule: str = "", **details: Any) -> Decision:
    return Decision(gate, path, Verdict.ALLOW, reason, rule, details)


def skip(gate: str, path: GatePath, reason: str, rule: str = "", **details: Any) -> Decision:
    return Decision(gate, path, Verdict.SKIP, reason, rule, details)
