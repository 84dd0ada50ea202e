"""A tracer that keeps its spans in memory: for dry runs, which leave nothing behind."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from bdh_otel.reader import Event, LinkedSpan, StoredSpan
from bdh_otel.retention import Bounds
from bdh_otel.rules import Content
from bdh_otel.store import Row
from bdh_otel.tracer import Tracer
from bdh_otel.writer import Recordable, SpanWriter


class MemoryTracer(Tracer):
    """Records as :class:`~bdh_otel.tracer.Tracer` does, and touches no file."""

    def __init__(self, *, content: Content = "full") -> None:
        super().__init__(Path(os.devnull), content=content)
        self._memory = _Memory()
        self._writer = self._memory

    def take(self) -> list[StoredSpan]:
        """The spans that ended since the last call, in the order of their ends."""
        rows, self._memory.rows = self._memory.rows, []
        return [_stored(number, row) for number, row in enumerate(rows, start=1)]


class _Memory(SpanWriter):
    def __init__(self) -> None:
        super().__init__(Path(os.devnull), lambda _: 0, Bounds(None, None))
        self.rows: list[Row] = []

    def add(self, span: Recordable) -> None:
        if not span.provisional:
            self.rows.append(span.row())


def _stored(seq: int, row: Row) -> StoredSpan:
    values: dict[str, Any] = row._asdict()
    events, links = json.loads(row.events or "[]"), json.loads(row.links or "[]")
    return StoredSpan(
        **{
            **values,
            "seq": seq,
            "resource": 0,
            "attributes": json.loads(row.attributes),
            "events": tuple(Event(*event) for event in events),
            "links": tuple(LinkedSpan(*link) for link in links),
        }
    )
