"""Turns and traces out of a span store, as the screens want them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from bdh_otel import names
from bdh_otel.reader import SpanReader, StoredSpan
from bdh_tui.turns import TurnSummary, late_deliveries, summarise

#: SQLite's oldest limit of values in one statement is 999.
_SLICE = 400


class History:
    """Questions to the store at ``path``. Safe from any thread; raises what the reader raises."""

    def __init__(self, path: Path) -> None:
        self.reader = SpanReader(path)

    def close(self) -> None:
        """Breaks off what is being asked: leaving waits for no count."""
        self.reader.interrupt()
        self.reader.close()

    def page(self, limit: int, before: tuple[int, int] | None = None) -> list[TurnSummary]:
        """Turns, newest first; ``before`` is the ``sort`` of the last one already there."""
        condition, values = "name = ?", [names.TURN]  # type: tuple[str, list[object]]
        if before is not None:
            condition, values = f"{condition} AND (start_ns, seq) < (?, ?)", [*values, *before]
        roots = self.reader.rows(
            f"SELECT trace_id FROM spans WHERE {condition}"  # noqa: S608 (our own words)
            " ORDER BY start_ns DESC, seq DESC LIMIT ?",
            (*values, limit),
        )
        return self.turns([str(root["trace_id"]) for root in roots])

    def turns(self, trace_ids: Collection[str]) -> list[TurnSummary]:
        """The turns among these traces, newest first."""
        by_trace: dict[str, list[StoredSpan]] = {}
        for span in self._spans_of(trace_ids):
            by_trace.setdefault(span.trace_id, []).append(span)
        if not by_trace:
            return []
        late = self._late(min(spans[0].start_ns for spans in by_trace.values()))
        found = (summarise(spans, late.get(trace, ())) for trace, spans in by_trace.items())
        return sorted((turn for turn in found if turn), key=lambda turn: turn.sort, reverse=True)

    def trace(self, trace_id: str) -> tuple[list[StoredSpan], list[StoredSpan]]:
        """All spans of a trace, and the deliveries that left in traces of their own."""
        spans = self.reader.trace(trace_id)
        late = self._late(spans[0].start_ns) if spans else {}
        return spans, late.get(trace_id, [])

    def touched(self, spans: Iterable[StoredSpan]) -> set[str]:
        """The traces whose turn looks different because of ``spans``."""
        found = {span.trace_id for span in spans}
        return found | set(late_deliveries(spans))

    def _spans_of(self, trace_ids: Collection[str]) -> list[StoredSpan]:
        found: list[StoredSpan] = []
        ids: Sequence[str] = list(trace_ids)
        for start in range(0, len(ids), _SLICE):
            part = ids[start : start + _SLICE]
            marks = ", ".join("?" * len(part))
            found += self.reader.select(f"trace_id IN ({marks}) ORDER BY start_ns, seq", part)
        return found

    def _late(self, since_ns: int) -> dict[str, list[StoredSpan]]:
        return late_deliveries(
            self.reader.select(
                "name = ? AND start_ns >= ? AND links IS NOT NULL ORDER BY start_ns LIMIT 1000",
                (names.DELIVER, since_ns),
            )
        )
