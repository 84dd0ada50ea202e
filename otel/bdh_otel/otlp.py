"""Stored spans as OTLP protobuf: the one place that decides what leaves the machine.

Only what is declared exportable passes (:mod:`bdh_otel.attributes`); attributes that this
version doesn't know, which a newer one may have stored, do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)

from bdh_otel import attributes as attr
from bdh_otel.reader import StoredSpan


@dataclass(frozen=True, slots=True)
class Origin:
    """Who made a span: the attributes of its process, and the instrumentation scope."""

    attributes: Mapping[str, Any]
    scope: str


class Encoder:
    """Turns spans into requests of the OTLP protocol.

    ``content`` lets people's text pass; ``extra`` are the operator's own resource attributes
    (``OTEL_RESOURCE_ATTRIBUTES``), which win.
    """

    def __init__(self, *, content: bool = False, extra: Mapping[str, str] | None = None) -> None:
        passing = {"exportable", "content"} if content else {"exportable"}
        self._passing = {name for name, one in attr.TABLE.items() if one.privacy in passing}
        self._content = content
        self._extra = dict(extra or {})

    def encode(self, spans: Sequence[StoredSpan], origins: Mapping[int, Origin]) -> bytes:
        """:meth:`request` as bytes."""
        return bytes(self.request(spans, origins).SerializeToString())

    def request(self, spans: Sequence[StoredSpan], origins: Mapping[int, Origin]) -> Any:
        """An ``ExportTraceServiceRequest``; ``origins`` by :attr:`StoredSpan.resource`. Raises
        nothing for what a store can hold."""
        known = {number: self._origin(origin) for number, origin in origins.items()}
        unknown = self._origin(Origin({}, ""))
        sdk_spans = [self._span(span, *known.get(span.resource, unknown)) for span in spans]
        return encode_spans(sdk_spans)

    def _origin(self, origin: Origin) -> tuple[Resource, InstrumentationScope]:
        own = {key: value for key, value in origin.attributes.items() if key in attr.RESOURCE}
        scope = InstrumentationScope(
            origin.scope, str(own.get("service.version", "")), attr.SCHEMA_URL
        )
        return Resource({**own, **self._extra}, attr.SCHEMA_URL), scope

    def _span(
        self, span: StoredSpan, resource: Resource, scope: InstrumentationScope
    ) -> ReadableSpan:
        state = TraceState.from_header([span.trace_state]) if span.trace_state else None
        status = Status(
            StatusCode(span.status), span.status_message if self._content and span.failed else None
        )
        return ReadableSpan(
            name=span.name,
            context=_context(span.trace_id, span.span_id, span.flags, state),
            parent=_context(span.trace_id, span.parent_id, span.flags, state)
            if span.parent_id
            else None,
            resource=resource,
            attributes=self._attributes(span.attributes),
            events=[
                Event(event.name, self._attributes(event.attributes), event.time_ns)
                for event in span.events
            ],
            links=[
                Link(_context(link.trace_id, link.span_id), self._attributes(link.attributes))
                for link in span.links
            ],
            kind=SpanKind(span.kind),
            instrumentation_scope=scope,
            status=status,
            start_time=span.start_ns,
            end_time=span.end_ns,
        )

    def _attributes(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in attributes.items() if name in self._passing}


def _context(
    trace_id: str, span_id: str, flags: int = 1, state: TraceState | None = None
) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), False, TraceFlags(flags), state)
