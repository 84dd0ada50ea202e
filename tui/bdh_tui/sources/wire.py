"""Spans from elsewhere as rows of a span store: OTLP as protobuf and as JSON, Jaeger's JSON.

What comes over a wire is not trusted: ids and times are checked, texts and lists are bounded. A
span that can't be read is skipped and counted, never raised about.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bdh_otel import attributes as attr
from bdh_otel.rules import cut
from bdh_otel.store import Row

MAX_ATTRIBUTES = 128
MAX_EVENTS = 64
_INT64 = 1 << 63
_KINDS = {"internal": 0, "server": 1, "client": 2, "producer": 3, "consumer": 4}


@dataclass
class Batch:
    """Rows that were understood, and how many spans were not."""

    rows: list[Row] = field(default_factory=list)
    unreadable: int = 0

    def add(self, make: Callable[[Any], Row], spans: Any) -> None:
        if not isinstance(spans, Iterable):
            self.unreadable += 1
            return
        for span in spans:
            try:
                self.rows.append(make(span))
            except _DAMAGED:
                self.unreadable += 1


#: What reading a span of any shape may raise; the last is for lists in lists in lists.
_DAMAGED = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


def loads(text: bytes) -> Any:
    """JSON. Raises: ValueError, for what is nested beyond reading as well."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error


def from_protobuf(request: Any) -> Batch:
    """An ``ExportTraceServiceRequest``."""
    batch = Batch()
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            batch.add(_protobuf_span, scope.spans)
    return batch


def from_otlp_json(document: Any) -> Batch:
    """An object with ``resourceSpans``, as exporters, the Collector's files and Tempo write it.

    Tempo's older answers call them ``batches``, and write ids in base64 instead of hex.
    """
    batch = Batch()
    body: Any = document.get("trace", document) if isinstance(document, Mapping) else {}
    if not isinstance(body, Mapping):
        body = {}
    resources = body.get("resourceSpans") or body.get("batches") or ()
    for resource in mappings(resources):
        scopes = resource.get("scopeSpans") or resource.get("instrumentationLibrarySpans")
        for scope in mappings(scopes):
            batch.add(_json_span, scope.get("spans") or ())
    return batch


def from_stored_json(document: Mapping[str, Any]) -> Batch:
    """A span as this project's own commands and screens write it, one object a line."""
    batch = Batch()
    batch.add(_stored_span, [document])
    return batch


def from_jaeger(trace: Mapping[str, Any]) -> Batch:
    """One element of ``data`` of Jaeger's ``/api/traces``."""
    batch = Batch()
    batch.add(_jaeger_span, trace.get("spans") or ())
    return batch


def _row(
    *,
    trace_id: str,
    span_id: str,
    parent_id: str | None,
    name: str,
    kind: int,
    start_ns: int,
    end_ns: int | None,
    status: int,
    status_message: str | None,
    attributes: dict[str, Any],
    events: list[Any],
    links: list[Any],
    flags: int = 1,
) -> Row:
    get = attributes.get
    return Row(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent_id or None,
        flags=flags & 0xFF,
        trace_state=None,
        name=cut(name, attr.MAX_CHARACTERS),
        kind=kind if 0 <= kind <= 4 else 0,
        start_ns=start_ns,
        end_ns=end_ns,
        status=status if status in (0, 1, 2) else 0,
        status_message=cut(status_message, attr.MAX_CONTENT) if status_message else None,
        error_type=_text(get(attr.ERROR_TYPE)),
        session=_text(get(attr.CONVERSATION_ID)),
        turn=_text(get(attr.TURN_ID)),
        platform=_text(get(attr.PLATFORM)),
        gate=_text(get(attr.GATE_NAME)),
        path=_text(get(attr.GATE_PATH)),
        decision=_text(get(attr.GATE_DECISION)),
        reason=_text(get(attr.GATE_REASON)),
        outcome=next((_text(attributes[one]) for one in attr.OUTCOMES if one in attributes), None),
        attributes=json.dumps(attributes, ensure_ascii=False),
        events=json.dumps(events, ensure_ascii=False) if events else None,
        links=json.dumps(links, ensure_ascii=False) if links else None,
    )


# OTLP as protobuf


def _protobuf_span(span: Any) -> Row:
    return _row(
        trace_id=_hex(span.trace_id, 16),
        span_id=_hex(span.span_id, 8),
        parent_id=_hex(span.parent_span_id, 8) if span.parent_span_id else None,
        name=span.name,
        kind=span.kind - 1,
        start_ns=_time(span.start_time_unix_nano),
        end_ns=_time(span.end_time_unix_nano),
        status=_status(span.status.code),
        status_message=span.status.message or None,
        attributes=_pairs((pair.key, _protobuf_value(pair.value)) for pair in span.attributes),
        events=[
            (
                cut(event.name, attr.MAX_CHARACTERS),
                int(event.time_unix_nano),
                _pairs((pair.key, _protobuf_value(pair.value)) for pair in event.attributes),
            )
            for event in span.events[:MAX_EVENTS]
        ],
        links=[
            (
                _hex(link.trace_id, 16),
                _hex(link.span_id, 8),
                _pairs((pair.key, _protobuf_value(pair.value)) for pair in link.attributes),
            )
            for link in span.links[:MAX_EVENTS]
        ],
        flags=int(span.flags),
    )


def _protobuf_value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    found = getattr(value, kind)
    if kind == "array_value":
        return [_protobuf_value(one) for one in found.values[: attr.MAX_ITEMS]]
    if kind == "kvlist_value":
        return str({pair.key: _protobuf_value(pair.value) for pair in found.values})
    return f"{len(found)} bytes" if isinstance(found, bytes) else found


# OTLP as JSON


def _json_span(span: Mapping[str, Any]) -> Row:
    status = span.get("status") or {}
    return _row(
        trace_id=_id(span["traceId"], 16),
        span_id=_id(span["spanId"], 8),
        parent_id=_id(span["parentSpanId"], 8) if span.get("parentSpanId") else None,
        name=str(span.get("name", "")),
        kind=_kind(span.get("kind", 1)),
        start_ns=_time(span["startTimeUnixNano"]),
        end_ns=_time(span["endTimeUnixNano"]),
        status=_status(status.get("code", 0)),
        status_message=_text(status.get("message")),
        attributes=_json_attributes(span.get("attributes")),
        events=[
            (
                cut(str(event.get("name", "")), attr.MAX_CHARACTERS),
                _time(event.get("timeUnixNano", 0)),
                _json_attributes(event.get("attributes")),
            )
            for event in mappings(span.get("events"))[:MAX_EVENTS]
        ],
        links=[
            (
                _id(link["traceId"], 16),
                _id(link["spanId"], 8),
                _json_attributes(link.get("attributes")),
            )
            for link in mappings(span.get("links"))[:MAX_EVENTS]
        ],
    )


def _json_attributes(pairs: Any) -> dict[str, Any]:
    return _pairs((str(one["key"]), _json_value(one.get("value"))) for one in mappings(pairs))


def _json_value(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return None
    for kind, found in value.items():
        if kind == "intValue":
            return int(found)
        if kind == "arrayValue":
            items = mappings((found or {}).get("values"))
            return [_json_value(one) for one in items[: attr.MAX_ITEMS]]
        if kind in ("stringValue", "boolValue", "doubleValue"):
            return found
        if kind in ("kvlistValue", "bytesValue"):
            return json.dumps(found)
    return None


def _kind(value: Any) -> int:
    if isinstance(value, str) and not value.isdigit():
        return _KINDS.get(value.removeprefix("SPAN_KIND_").lower(), 0)
    return int(value) - 1


def _status(value: Any) -> int:
    if isinstance(value, str) and not value.isdigit():
        return {"STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": 2}.get(value, 0)
    return int(value)


# The project's own JSON


def _stored_span(span: Mapping[str, Any]) -> Row:
    end = span.get("end_ns")
    return _row(
        trace_id=_id(span["trace_id"], 16),
        span_id=_id(span["span_id"], 8),
        parent_id=_id(span["parent_id"], 8) if span.get("parent_id") else None,
        name=str(span["name"]),
        kind=_KINDS.get(str(span.get("kind")), 0),
        start_ns=_time(span["start_ns"]),
        end_ns=None if end is None else _time(end),
        status={"ok": 1, "error": 2}.get(str(span.get("status")), 0),
        status_message=_text(span.get("status_message")),
        attributes=_pairs(dict(span.get("attributes") or {}).items()),
        events=[
            (
                cut(str(event.get("name")), attr.MAX_CHARACTERS),
                _time(event.get("time_ns", 0)),
                _pairs(dict(event.get("attributes") or {}).items()),
            )
            for event in mappings(span.get("events"))[:MAX_EVENTS]
        ],
        links=[
            (
                _id(link["trace_id"], 16),
                _id(link["span_id"], 8),
                _pairs(dict(link.get("attributes") or {}).items()),
            )
            for link in mappings(span.get("links"))[:MAX_EVENTS]
        ],
    )


# Jaeger


def _jaeger_span(span: Mapping[str, Any]) -> Row:
    tags = {str(tag["key"]): _jaeger_value(tag) for tag in mappings(span.get("tags"))}
    code = str(tags.pop("otel.status_code", "")).upper()
    failed = code == "ERROR" or tags.pop("error", False) in (True, "true")
    message = tags.pop("otel.status_description", None)
    kind = _KINDS.get(str(tags.pop("span.kind", "")), 0)
    for other in ("otel.scope.name", "otel.scope.version", "internal.span.format"):
        tags.pop(other, None)
    trace_id = _id(str(span["traceID"]).zfill(32), 16)
    parent: str | None = None
    links: list[Any] = []
    for reference in mappings(span.get("references")):
        target = _id(str(reference["traceID"]).zfill(32), 16)
        span_id = _id(str(reference["spanID"]).zfill(16), 8)
        if reference.get("refType") == "CHILD_OF" and target == trace_id and parent is None:
            parent = span_id
        else:
            links.append((target, span_id, {}))
    start = _time(int(span["startTime"]) * 1_000)
    return _row(
        trace_id=trace_id,
        span_id=_id(str(span["spanID"]).zfill(16), 8),
        parent_id=parent,
        name=str(span.get("operationName", "")),
        kind=kind,
        start_ns=start,
        end_ns=_time(start + int(span.get("duration", 0)) * 1_000),
        status=2 if failed else 1 if code == "OK" else 0,
        status_message=_text(message),
        attributes=_pairs(tags.items()),
        events=[
            (name, _time(int(log.get("timestamp", 0)) * 1_000), _pairs(fields.items()))
            for log in mappings(span.get("logs"))[:MAX_EVENTS]
            for name, fields in [_jaeger_event(log)]
        ],
        links=links[:MAX_EVENTS],
    )


def _jaeger_event(log: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    fields = {str(one["key"]): _jaeger_value(one) for one in mappings(log.get("fields"))}
    return cut(str(fields.pop("event", "event")), attr.MAX_CHARACTERS), fields


def _jaeger_value(tag: Mapping[str, Any]) -> Any:
    """Jaeger has no lists: they arrive as JSON in a string."""
    value = tag.get("value")
    declared = attr.TABLE.get(str(tag.get("key")))
    if declared and declared.type == "strings" and isinstance(value, str) and value[:1] == "[":
        try:
            return json.loads(value)
        except ValueError:
            return value
    if declared and declared.type == "float" and isinstance(value, int):
        return float(value)
    return value


# Checks


def _pairs(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in items:
        if len(found) >= MAX_ATTRIBUTES:
            break
        kept = _bounded(value)
        if kept is not None:
            found[_name(cut(str(key), 200), kept)] = kept
    return found


def _name(name: str, value: Any) -> str:
    """An attribute of ours with a value that it can't have gets a name that nothing counts on."""
    declared = attr.TABLE.get(name)
    if declared is None or _FITS[declared.type](value):
        return name
    return f"{name} (no {declared.type})"


_FITS: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: (
        isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63
    ),
    "float": lambda value: (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
    ),
    "strings": lambda value: (
        isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
    ),
}


def _bounded(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        return cut(value, attr.MAX_CONTENT)
    if isinstance(value, int):
        return value if -_INT64 <= value < _INT64 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return [_bounded(one) for one in value[: attr.MAX_ITEMS]]
    return cut(str(value), attr.MAX_CHARACTERS)


def _id(value: Any, size: int) -> str:
    """In hex, or (Tempo) in base64."""
    text = str(value)
    if len(text) == 2 * size:
        try:
            return _hex(bytes.fromhex(text), size)
        except ValueError:
            pass
    try:
        return _hex(base64.b64decode(text, validate=True), size)
    except binascii.Error as error:
        raise ValueError(f"{text[:40]!r} is no id") from error


def _hex(value: bytes, size: int) -> str:
    if len(value) != size or not any(value):
        raise ValueError("an id has the wrong length or is zero")
    return value.hex()


def _time(value: Any) -> int:
    """Unix nanoseconds."""
    time_ns = int(value)
    if not 0 <= time_ns < _INT64:
        raise ValueError("a time is out of range")
    return time_ns


def _text(value: Any) -> str | None:
    return None if value in (None, "") else cut(str(value), attr.MAX_CHARACTERS)


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """Those elements of a list that are objects; none if it is no list."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
