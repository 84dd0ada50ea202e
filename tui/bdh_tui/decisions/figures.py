"""Counts of decisions and scores in a window, read from the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bdh_bridge.gates.relevance import MINIMUM_HYBRID, MINIMUM_TERMS, MINIMUM_VECTOR
from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.reader import SpanReader
from bdh_tui.decisions.tally import SCORES, Counted
from bdh_tui.window import Window

#: Gates in the order in which they are asked; others follow.
ORDER = {
    "read": (
        "bridge", "origin", "cron", "platform", "blacklist", "injectable", "sender",
        "eligibility", "route", "circuit", "relevance",
    ),
    "write": (
        "bridge", "answer", "captured", "origin", "cron", "platform", "sender", "blacklist",
        "route", "once",
    ),
}  # fmt: skip
#: Unit of a score → title, and the bound where no span says which it was.
TITLES: dict[str, tuple[str, float]] = {
    "hybrid": ("hybrid score", MINIMUM_HYBRID),
    "vector": ("vector score", MINIMUM_VECTOR),
    "terms": ("matched terms", MINIMUM_TERMS),
}


@dataclass(frozen=True, slots=True)
class Step:
    """A gate in the funnel: how many it let through and how many it stopped."""

    gate: str
    allowed: int
    skipped: int


@dataclass(frozen=True, slots=True)
class ReasonCount:
    """How often a gate stopped a path for a reason; ``last_ns`` when it last did."""

    path: str
    gate: str
    reason: str
    count: int
    last_ns: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """``counts`` per bucket of ``size``, from 0; ``threshold`` in the same unit, if known."""

    title: str
    counts: tuple[int, ...]
    size: float
    threshold: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """``turns``, ``read`` (context given), ``written`` (queued): by part of the window, of which
    ``share`` (0 to 1) has been counted."""

    turns: tuple[int, ...]
    read: tuple[int, ...]
    written: tuple[int, ...]
    funnels: dict[str, tuple[Step, ...]]
    reasons: tuple[ReasonCount, ...]
    histograms: tuple[Histogram, ...]
    share: float


def figures(counted: Counted) -> Figures:
    """What the screen shows of a count."""
    reasons, funnels = _decisions(counted)
    return Figures(
        counted.turns,
        counted.read,
        counted.written,
        funnels,
        reasons,
        tuple(_histogram(unit, counts, counted.bounds) for unit, counts in counted.scores.items()),
        counted.share,
    )


def examples(reader: SpanReader, reason: ReasonCount, window: Window, limit: int) -> list[str]:
    """Messages of the latest turns that were stopped for this reason."""
    rows = reader.rows(
        "SELECT trace_id FROM spans WHERE gate = ? AND decision = 'skip' AND start_ns >= ?"
        " AND reason = ? AND path = ? ORDER BY start_ns DESC LIMIT ?",
        (reason.gate, window.since_ns(), reason.reason, reason.path, limit),
    )
    found = []
    for row in rows:
        roots = reader.rows(
            "SELECT json_extract(attributes, ?) AS text FROM spans WHERE trace_id = ? AND name = ?",
            (f'$."{attr.TURN_MESSAGE}"', row["trace_id"], names.TURN),
        )
        found += [str(root["text"]) for root in roots if root["text"]]
    return found


def _decisions(
    counted: Counted,
) -> tuple[tuple[ReasonCount, ...], dict[str, tuple[Step, ...]]]:
    sums: dict[tuple[str, str], list[int]] = {}
    reasons = []
    for (path, gate, decision, reason), (count, last_ns) in counted.decisions.items():
        skipped = decision == "skip"
        sums.setdefault((path, gate), [0, 0])[skipped] += count
        if skipped:
            reasons.append(ReasonCount(path, gate, reason, count, last_ns))
    reasons.sort(key=lambda one: (-one.count, one.path, one.gate, one.reason))
    return tuple(reasons), {path: _funnel(path, sums) for path in ORDER}


def _funnel(path: str, sums: dict[tuple[str, str], list[int]]) -> tuple[Step, ...]:
    order: Sequence[str] = ORDER[path]
    present = [gate for where, gate in sums if where == path]
    known = [gate for gate in order if gate in present]
    others = sorted(gate for gate in present if gate not in order)
    return tuple(Step(gate, *sums[path, gate]) for gate in [*known, *others])


def _histogram(unit: str, counts: tuple[int, ...], bounds: dict[str, float]) -> Histogram:
    title, usual = TITLES[unit]
    return Histogram(title, counts, SCORES[unit][1], bounds.get(unit, usual))
