"""Stored spans as lines of OTLP JSON, which the Collector's ``otlpjsonfile`` receiver reads.

One line is one ``TracesData`` object. The encoding is that of the OTLP specification: like
protobuf's JSON, but with ids in hex and enums as numbers.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Iterator
from typing import Any

from google.protobuf.json_format import MessageToDict

from bdh_otel.lane import origins
from bdh_otel.otlp import Encoder
from bdh_otel.reader import SpanReader, StoredSpan

#: Most spans of one line.
BATCH = 256
#: Most bytes of a line of several spans. The receiver takes lines of up to 1 MiB (its
#: ``max_log_size``) and tears longer ones apart.
MAX_LINE = 1_000_000
_IDS = ("traceId", "spanId", "parentSpanId")


def lines(reader: SpanReader, encoder: Encoder, *, since_ns: int = 0) -> Iterator[tuple[int, str]]:
    """The ended spans that started at ``since_ns`` or later, as (spans of the line, the line),
    in the order of their storing. Raises what :class:`SpanReader` raises."""
    seq, last = 0, reader.last_seq()
    while seq < last:
        spans = reader.after(seq, limit=BATCH, ended=True)
        if not spans:
            return
        seq = spans[-1].seq
        wanted = [span for span in spans if span.start_ns >= since_ns]
        if wanted:
            yield from _fitting(reader, encoder, wanted)


def _fitting(
    reader: SpanReader, encoder: Encoder, spans: list[StoredSpan]
) -> Iterator[tuple[int, str]]:
    """``spans`` as one line, or as several, each with half of what was too long for one."""
    line = reader.ask(lambda connection: _line(connection, encoder, spans))
    half = len(spans) // 2
    if len(line) <= MAX_LINE or not half:
        yield len(spans), line
        return
    yield from _fitting(reader, encoder, spans[:half])
    yield from _fitting(reader, encoder, spans[half:])


def _line(connection: sqlite3.Connection, encoder: Encoder, spans: list[StoredSpan]) -> str:
    """ASCII, so its length is that of its bytes, too."""
    request = encoder.request(spans, origins(connection, spans))
    data = MessageToDict(request, use_integers_for_enums=True)
    _ids_in_hex(data)
    return json.dumps(data, separators=(",", ":"))


def _ids_in_hex(data: dict[str, Any]) -> None:
    for resource in data.get("resourceSpans", ()):
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                for holder in (span, *span.get("links", ())):
                    for name in _IDS:
                        if name in holder:
                            holder[name] = base64.b64decode(holder[name]).hex()
