"""Counts of decisions and scores in a window, read from the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bdh_bridge.gates.relevance import MINIMUM_HYBRID, MINIMUM_TERMS, MINIMUM_VECTOR
from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.reader import SpanReader
from bdh_tui.window import STEPS, Window

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
BUCKETS = 20
#: Terms are counted up to this many.
MOST_TERMS = 10


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
    """``turns``, ``read`` (context given), ``written`` (queued): by part of the window."""

    turns: tuple[int, ...]
    read: tuple[int, ...]
    written: tuple[int, ...]
    funnels: dict[str, tuple[Step, ...]]
    reasons: tuple[ReasonCount, ...]
    histograms: tuple[Histogram, ...]


def figures(reader: SpanReader, window: Window) -> Figures:
    """Raises what the reader raises."""
    since = window.since_ns()
    reasons, funnels = _decisions(reader, since)
    turns, read, written = _trend(reader, since, window)
    return Figures(turns, read, written, funnels, reasons, _histograms(reader, since))


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
    reader: SpanReader, since: int
) -> tuple[tuple[ReasonCount, ...], dict[str, tuple[Step, ...]]]:
    rows = reader.rows(
        "SELECT path, gate, decision, reason, count(*) AS count, max(start_ns) AS last"
        " FROM spans WHERE start_ns >= ? AND gate IS NOT NULL GROUP BY 1, 2, 3, 4",
        (since,),
    )
    sums: dict[tuple[str, str], list[int]] = {}
    reasons = []
    for row in rows:
        path, gate = str(row["path"] or "read"), str(row["gate"])
        skipped = row["decision"] == "skip"
        sums.setdefault((path, gate), [0, 0])[skipped] += row["count"]
        if skipped:
            reasons.append(
                ReasonCount(path, gate, str(row["reason"] or ""), row["count"], row["last"])
            )
    reasons.sort(key=lambda one: (-one.count, one.path, one.gate, one.reason))
    return tuple(reasons), {path: _funnel(path, sums) for path in ORDER}


def _funnel(path: str, sums: dict[tuple[str, str], list[int]]) -> tuple[Step, ...]:
    order: Sequence[str] = ORDER[path]
    present = [gate for where, gate in sums if where == path]
    known = [gate for gate in order if gate in present]
    others = sorted(gate for gate in present if gate not in order)
    return tuple(Step(gate, *sums[path, gate]) for gate in [*known, *others])


def _trend(
    reader: SpanReader, since: int, window: Window
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    rows = reader.rows(
        "SELECT (start_ns - ?) / ? AS part, count(*) AS turns,"
        " sum(json_extract(attributes, ?) = 'context') AS given,"
        " sum(json_extract(attributes, ?) = 'queued') AS queued"
        " FROM spans WHERE name = ? AND start_ns >= ? GROUP BY 1",
        (
            since,
            window.seconds * 1_000_000_000 // STEPS,
            f'$."{attr.TURN_READ_OUTCOME}"',
            f'$."{attr.TURN_WRITE_OUTCOME}"',
            names.TURN,
            since,
        ),
    )
    series = [[0] * STEPS for _ in range(3)]
    for row in rows:
        part = min(max(int(row["part"]), 0), STEPS - 1)
        for line, value in zip(series, (row["turns"], row["given"], row["queued"]), strict=True):
            line[part] += value or 0
    turns, read, written = (tuple(line) for line in series)
    return turns, read, written


def _histograms(reader: SpanReader, since: int) -> tuple[Histogram, ...]:
    bounds = {"hybrid": MINIMUM_HYBRID, "vector": MINIMUM_VECTOR, "terms": MINIMUM_TERMS} | {
        str(row["unit"]): float(row["bound"])
        for row in reader.rows(
            "SELECT json_extract(attributes, ?) AS unit, max(json_extract(attributes, ?)) AS bound"
            " FROM spans WHERE gate = 'relevance' AND start_ns >= ? GROUP BY 1",
            (f'$."{attr.GATE_UNIT}"', f'$."{attr.GATE_THRESHOLD}"', since),
        )
        if row["unit"] and isinstance(row["bound"], int | float)
    }
    wanted = (
        ("hybrid score", "hybrid", attr.RETRIEVAL_HYBRID_TOP, 1 / BUCKETS, BUCKETS),
        ("vector score", "vector", attr.RETRIEVAL_VECTOR_TOP, 1 / BUCKETS, BUCKETS),
        ("matched terms", "terms", attr.RETRIEVAL_MATCHED_TERMS_COUNT, 1.0, MOST_TERMS + 1),
    )
    found = []
    for title, unit, name, size, buckets in wanted:
        counts = [0] * buckets
        for row in reader.rows(
            "SELECT CAST(json_extract(attributes, ?) / ? + 1e-9 AS INTEGER) AS bucket,"
            " count(*) AS count FROM spans"
            " WHERE name >= 'retrieval' AND name < 'retrievam' AND start_ns >= ?"
            " AND json_extract(attributes, ?) IS NOT NULL GROUP BY 1",
            (f'$."{name}"', size, since, f'$."{name}"'),
        ):
            counts[min(max(int(row["bucket"]), 0), buckets - 1)] += row["count"]
        found.append(Histogram(title, tuple(counts), size, bounds.get(unit)))
    return tuple(found)
