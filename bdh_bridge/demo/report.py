"""What the demo claims, what was seen, and the JSON form of both."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from bdh_bridge import DISTRIBUTION, __version__


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement, whether it was seen to hold, and what was seen."""

    claim: str
    holds: bool
    seen: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command line as a person would type it, and what it printed."""

    line: str
    output: str


@dataclass(slots=True)
class Step:
    """One step of the demo. ``prompt`` is what ``speaker`` said, ``via`` how it reached Hermes."""

    title: str
    via: str = ""
    speaker: str = "you"
    prompt: str = ""
    answer: str = ""
    commands: list[Command] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    trace_id: str = ""
    elapsed: float = 0.0
    """Seconds that the step took."""

    def claim(self, claim: str, holds: object, seen: object) -> None:
        self.claims.append(Claim(claim, bool(holds), str(seen)))

    @property
    def ok(self) -> bool:
        return bool(self.claims) and all(claim.holds for claim in self.claims)


def as_json(steps: Sequence[Step], *, elapsed: float, home: Path, spans: Path) -> dict[str, Any]:
    """The report: ``ok``, versions, where the span store is, and every step with its claims."""
    return {
        "ok": bool(steps) and all(step.ok for step in steps),
        "elapsed": round(elapsed, 3),
        "versions": {
            DISTRIBUTION: __version__,
            "hermes-agent": metadata.version("hermes-agent"),
            "python": platform.python_version(),
            "system": platform.system(),
        },
        "home": str(home),
        "span_store": str(spans),
        "steps": [
            {**asdict(step), "elapsed": round(step.elapsed, 3), "ok": step.ok} for step in steps
        ],
    }


def write_report(file: Path, report: dict[str, Any]) -> None:
    """Write the report in one go, so that a reader never sees half of it."""
    partial = file.with_name(f"{file.name}.partial")
    partial.write_text(json.dumps(report, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    partial.replace(file)
