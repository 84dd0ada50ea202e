"""Counting a window of the store piece by piece, and going on with what is stored later.

Spans are counted in the order in which they were stored, each once: what is new first, then back
to the start of the window. So the first figures are there at once, a window of millions of spans
holds nobody up, and the next look costs what came in since.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field

from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.reader import SpanReader
from bdh_tui.window import STEPS, Window

#: Sequence numbers that one question to the store spans: some 50 ms.
PIECE = 10_000
#: Scores are counted in this many buckets from 0 to 1, terms up to this many.
BUCKETS, MOST_TERMS = 20, 10
#: Unit of a score → attribute, size of a bucket, number of buckets.
SCORES = {
    "hybrid": (attr.RETRIEVAL_HYBRID_TOP, 1 / BUCKETS, BUCKETS),
    "vector": (attr.RETRIEVAL_VECTOR_TOP, 1 / BUCKETS, BUCKETS),
    "terms": (attr.RETRIEVAL_MATCHED_TERMS_COUNT, 1.0, MOST_TERMS + 1),
}

Decision = tuple[str, str, str, str]
"""Path, gate, decision, reason."""


@dataclass(slots=True)
class Part:
    """What is counted of one part of the window. A decision's value is how often, and when last
    (Unix nanoseconds)."""

    turns: int = 0
    read: int = 0
    written: int = 0
    decisions: dict[Decision, tuple[int, int]] = field(default_factory=dict)
    scores: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    bounds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counted:
    """The parts put together: ``turns``, ``read`` and ``written`` by part, oldest first; the
    rest as in :class:`Part`. ``share`` of the window (0 to 1) has been counted."""

    share: float
    turns: tuple[int, ...]
    read: tuple[int, ...]
    written: tuple[int, ...]
    decisions: dict[Decision, tuple[int, int]]
    scores: dict[str, tuple[int, ...]]
    bounds: dict[str, float]


class Tally:
    """The last ``STEPS`` parts of a window, the last one still growing. Safe from any thread."""

    def __init__(self, reader: SpanReader, window: Window) -> None:
        self._reader = reader
        self.size = window.seconds * 1_000_000_000 // STEPS
        """Nanoseconds of a part."""
        self._lock = threading.Lock()
        self._start_over()

    def _start_over(self) -> None:
        self._parts: dict[int, Part] = {}
        self._low = self._high = self._floor = 0
        self._begun = False

    def advance(self, seconds: float = 0.2) -> Counted:
        """Count for about that long, and tell what is known. Raises what the reader raises."""
        deadline = time.monotonic() + seconds
        with self._lock:
            self._begin()
            while self._step() and time.monotonic() < deadline:
                pass
            return self._together()

    def _step(self) -> bool:
        """One piece more: of what is new, or else of what is old; False once there is none."""
        last = self._reader.last_seq()
        if self._high < last:
            upper = min(self._high + PIECE, last)
            self._take(self._high, upper)
            self._high = upper
        elif self._low > self._floor:
            lower = max(self._floor, self._low - PIECE)
            self._take(lower, self._low)
            self._low = lower
        else:
            return False
        return True

    def _together(self) -> Counted:
        series = [[0] * STEPS for _ in range(3)]
        decisions: dict[Decision, tuple[int, int]] = {}
        scores = {unit: [0] * buckets for unit, (_, _, buckets) in SCORES.items()}
        bounds: dict[str, float] = {}
        first = self._now() - STEPS + 1
        for number, part in sorted(self._parts.items()):
            # What a clock that is ahead puts into the future is the newest.
            place = min(number - first, STEPS - 1)
            for line, value in zip(series, (part.turns, part.read, part.written), strict=True):
                line[place] += value
            for kind, (count, last) in part.decisions.items():
                before, when = decisions.get(kind, (0, 0))
                decisions[kind] = (before + count, max(when, last))
            for unit, counts in part.scores.items():
                for bucket, count in counts.items():
                    scores[unit][bucket] += count
            for unit, bound in part.bounds.items():
                bounds[unit] = max(bounds.get(unit, bound), bound)
        for number, turns in self._under_way().items():
            series[0][min(max(number - first, 0), STEPS - 1)] += turns
        whole = self._high - self._floor
        return Counted(
            1.0 if self._low <= self._floor else (self._high - self._low) / whole,
            tuple(series[0]),
            tuple(series[1]),
            tuple(series[2]),
            decisions,
            {unit: tuple(counts) for unit, counts in scores.items()},
            bounds,
        )

    @property
    def _since_ns(self) -> int:
        return (self._now() - STEPS + 1) * self.size

    def _now(self) -> int:
        return time.time_ns() // self.size

    def _begin(self) -> None:
        """Find out where the window begins, and leave out what it or the store has lost."""
        oldest, first = self._reader.ask(_oldest)
        last = self._reader.last_seq()
        if self._begun and last < self._high:  # another file is there now
            self._start_over()
        if not self._begun:
            lowest = self._reader.rows(
                "SELECT min(seq) AS seq FROM spans WHERE start_ns >= ?", (self._since_ns,)
            )[0]["seq"]
            self._low = self._high = last
            self._floor = last if lowest is None else int(lowest) - 1
            self._begun = True
        self._floor = max(self._floor, min(first - 1, self._low))
        bound = max(self._since_ns, oldest) // self.size
        for number in [one for one in self._parts if one < bound]:
            del self._parts[number]

    def _take(self, after: int, upto: int) -> None:
        between = (self.size, after, upto, self._since_ns)
        # All is read before any of it is counted: a question that fails is asked again.
        decided, bound, turned, scored = (
            self._reader.rows(sql, between) for sql in (_DECISIONS, _BOUNDS, _TURNS, _SCORES)
        )
        part = defaultdict(Part) | self._parts
        for row in decided:
            decisions = part[row["part"]].decisions
            kind = (str(row["path"] or "read"), str(row["gate"]), str(row["decision"] or ""),
                    str(row["reason"] or ""))  # fmt: skip
            count, when = decisions.get(kind, (0, 0))
            decisions[kind] = (count + row["count"], max(when, row["last"]))
        for row in bound:
            if isinstance(row["bound"], int | float):
                bounds = part[row["part"]].bounds
                unit = str(row["unit"])
                bounds[unit] = max(bounds.get(unit, row["bound"]), row["bound"])
        for row in turned:
            one = part[row["part"]]
            one.turns += row["turns"]
            one.read += row["given"] or 0
            one.written += row["queued"] or 0
        for row in scored:
            for unit, (_, _, buckets) in SCORES.items():
                if row[unit] is not None:
                    scores = part[row["part"]].scores[unit]
                    bucket = min(max(row[unit], 0), buckets - 1)
                    scores[bucket] = scores.get(bucket, 0) + row["count"]
        self._parts = dict(part)

    def _under_way(self) -> dict[int, int]:
        """Turns that have not ended, by part. They are stored again by another number when they
        do: these are counted anew each time."""
        rows = self._reader.rows(
            "SELECT start_ns / ? AS part, count(*) AS turns FROM spans"
            " WHERE end_ns IS NULL AND name = ? AND start_ns >= ? GROUP BY 1",
            (self.size, names.TURN, self._since_ns),
        )
        return {row["part"]: row["turns"] for row in rows}


def _oldest(connection: sqlite3.Connection) -> tuple[int, int]:
    """Start (Unix nanoseconds) and sequence number of the oldest span."""
    row = connection.execute(
        "SELECT (SELECT min(start_ns) FROM spans), (SELECT min(seq) FROM spans)"
    ).fetchone()
    return row[0] or 0, row[1] or 0


_RANGE = "seq > ? AND seq <= ? AND start_ns >= ? AND end_ns IS NOT NULL"
# By the sequence alone: an index by name or time would lead through the whole window each time.
_FROM = "FROM spans NOT INDEXED WHERE"
_DECISIONS = (
    "SELECT start_ns / ? AS part, path, gate, decision, reason, count(*) AS count,"
    f" max(start_ns) AS last {_FROM} {_RANGE} AND gate IS NOT NULL GROUP BY 1, 2, 3, 4, 5"
)
_BOUNDS = (
    f"SELECT start_ns / ? AS part, json_extract(attributes, '$.\"{attr.GATE_UNIT}\"') AS unit,"
    f" max(json_extract(attributes, '$.\"{attr.GATE_THRESHOLD}\"')) AS bound {_FROM} {_RANGE}"
    " AND gate = 'relevance' GROUP BY 1, 2 HAVING unit IS NOT NULL"
)
_TURNS = (
    "SELECT start_ns / ? AS part, count(*) AS turns,"
    f" sum(json_extract(attributes, '$.\"{attr.TURN_READ_OUTCOME}\"') = 'context') AS given,"
    f" sum(json_extract(attributes, '$.\"{attr.TURN_WRITE_OUTCOME}\"') = 'queued') AS queued"
    f" {_FROM} {_RANGE} AND name = '{names.TURN}' GROUP BY 1"
)
_BUCKETS = ", ".join(
    f"CAST(json_extract(attributes, '$.\"{name}\"') / {size} + 1e-9 AS INTEGER) AS {unit}"
    for unit, (name, size, _) in SCORES.items()
)
_SCORES = (
    f"SELECT start_ns / ? AS part, {_BUCKETS}, count(*) AS count {_FROM} {_RANGE}"
    " AND name >= 'retrieval' AND name < 'retrievam' GROUP BY 1, 2, 3, 4"
)
