"""A span that is recorded on this machine.

It implements OpenTelemetry's own :class:`opentelemetry.trace.Span`, so it works with
``use_span``, ``set_span_in_context`` and whatever else takes a span of the API, without the
SDK: recording costs some microseconds, and neither samplers, limits nor ``OTEL_SDK_DISABLED``
of the host thin what is recorded here.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Mapping
from contextvars import Token
from types import TracebackType
from typing import Any

from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)

from bdh_otel import attributes as attr
from bdh_otel import logs
from bdh_otel.rules import Rules, cut
from bdh_otel.store import Row

#: Most events and links of one span; later ones are dropped.
MAX_EVENTS = 64
#: Most characters of the name of a span or an event.
MAX_NAME = 200

#: What `error.type` is when a span failed and nobody said how (semantic conventions).
OTHER = "_OTHER"

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class LocalSpan(Span):
    """Made by :meth:`bdh_otel.tracer.Tracer.start_span`.

    As a context manager it ends on leaving; an ``Exception`` on the way is recorded as a
    failure and goes on its way.
    """

    def __init__(
        self,
        name: str,
        *,
        trace_id: int,
        span_id: int,
        parent_id: int | None,
        flags: int,
        trace_state: TraceState | None,
        kind: SpanKind,
        start_ns: int | None,
        attributes: dict[str, attr.Value],
        rules: Rules,
        save: Callable[[LocalSpan], None],
        catch: tuple[bool, bool] = (True, True),
    ) -> None:
        self.name = name
        self.kind = kind
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent_id = parent_id
        self.attributes = attributes
        self.end_ns: int | None = None
        self.provisional = False
        """A row of this span, still open, may be in the store."""
        self._flags = flags
        self._trace_state = trace_state
        self._started = time.perf_counter_ns() if start_ns is None else None
        self.start_ns = time.time_ns() if start_ns is None else start_ns
        self._rules = rules
        self._save = save
        self._catch = catch
        self._in_logs: Token[Any] | None = None
        self._status = StatusCode.UNSET
        self._status_message: str | None = None
        self._events: list[tuple[str, int, dict[str, attr.Value]]] = []
        self._links: list[tuple[SpanContext, dict[str, attr.Value]]] = []

    # Recording

    def set_attribute(self, key: str, value: Any) -> None:
        """Declared attributes only (:mod:`bdh_otel.attributes`); None is ignored."""
        if self.end_ns is None:
            self._rules.put(self.attributes, key, value)

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        if self.end_ns is None:
            put, own = self._rules.put, self.attributes
            for key, value in attributes.items():
                put(own, key, value)

    def add_event(
        self, name: str, attributes: Mapping[str, Any] | None = None, timestamp: int | None = None
    ) -> None:
        if self.end_ns is None and len(self._events) < MAX_EVENTS:
            when = time.time_ns() if timestamp is None else timestamp
            self._events.append((cut(name, MAX_NAME), when, self._rules.checked(attributes)))

    def add_link(self, context: SpanContext, attributes: Mapping[str, Any] | None = None) -> None:
        if self.end_ns is None and len(self._links) < MAX_EVENTS and context.is_valid:
            self._links.append((context, self._rules.checked(attributes)))

    def update_name(self, name: str) -> None:
        if self.end_ns is None:
            self.name = name

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """ERROR is for failures alone: a skip, or an answer that helps nobody, is none."""
        code = status.status_code if isinstance(status, Status) else status
        if self.end_ns is not None or code is StatusCode.UNSET or self._status is StatusCode.OK:
            return
        self._status = code
        text = status.description if isinstance(status, Status) else description
        message = self._rules.content(text) if code is StatusCode.ERROR and text else None
        self._status_message = message

    def fail(self, error_type: str | BaseException, message: str = "") -> None:
        """Status ERROR with ``error.type``; ``message`` stays on this machine."""
        if isinstance(error_type, BaseException):
            message = message or str(error_type)
            error_type = class_name(error_type)
        self.set_attribute(attr.ERROR_TYPE, error_type)
        self.set_status(StatusCode.ERROR, message)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Mapping[str, Any] | None = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """An ``exception`` event. No stack trace: it would hold paths and values."""
        described = {
            attr.EXCEPTION_TYPE: class_name(exception),
            attr.EXCEPTION_MESSAGE: self._rules.content(str(exception)),
        }
        self.add_event("exception", {**described, **(attributes or {})}, timestamp)

    def end(self, end_time: int | None = None) -> None:
        """End and queue the span. Later calls, on this span in any way, do nothing."""
        if self.end_ns is not None:
            return
        if self._status is StatusCode.ERROR and attr.ERROR_TYPE not in self.attributes:
            self.attributes[attr.ERROR_TYPE] = OTHER
        if end_time is not None:
            self.end_ns = end_time
        elif self._started is not None:
            # A step of the wall clock while the span was open must not show as its duration.
            self.end_ns = self.start_ns + time.perf_counter_ns() - self._started
        else:
            self.end_ns = max(time.time_ns(), self.start_ns)
        self._save(self)

    def save_provisional(self) -> None:
        """Queue the span as it is now, still open, so that it is seen before it ends."""
        if self.end_ns is None:
            snapshot = copy.copy(self)
            snapshot.attributes = dict(self.attributes)
            snapshot._events = list(self._events)
            snapshot._links = list(self._links)
            self.provisional = True
            self._save(snapshot)

    def __enter__(self) -> LocalSpan:
        self._in_logs = logs.enter(self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        if self._in_logs is not None:
            logs.leave(self._in_logs)
        # What was already noted as the span's failure says more than the exception's class.
        if isinstance(exc_val, Exception) and self._status is not StatusCode.ERROR:
            record, fail = self._catch
            if record:
                self.record_exception(exc_val)
            if fail:
                self.fail(exc_val)
        self.end()

    # Being looked at

    def is_recording(self) -> bool:
        return self.end_ns is None

    def get_span_context(self) -> SpanContext:
        return SpanContext(
            self.trace_id,
            self.span_id,
            is_remote=False,
            trace_flags=TraceFlags(self._flags),
            trace_state=self._trace_state,
        )

    @property
    def traceparent(self) -> str:
        """Value of the W3C ``traceparent`` header for a request made under this span."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self._flags:02x}"

    def row(self) -> Row:
        """The span as the store keeps it."""
        own = self.attributes
        get: Callable[[str], Any] = own.get
        outcome = None
        for name in attr.OUTCOMES:
            if name in own:
                outcome = own[name]
                break
        # By position: this runs for every span at the end of a turn, and names cost a fifth of it.
        return Row(
            f"{self.trace_id:032x}",
            f"{self.span_id:016x}",
            None if self.parent_id is None else f"{self.parent_id:016x}",
            self._flags,
            self._trace_state.to_header() if self._trace_state else None,
            cut(self.name, MAX_NAME),
            self.kind.value,
            self.start_ns,
            self.end_ns,
            self._status.value,
            self._status_message,
            get(attr.ERROR_TYPE),
            get(attr.CONVERSATION_ID),
            get(attr.TURN_ID),
            get(attr.PLATFORM),
            get(attr.GATE_NAME),
            get(attr.GATE_PATH),
            get(attr.GATE_DECISION),
            get(attr.GATE_REASON),
            outcome,  # type: ignore[arg-type]
            _encode(own),
            _encode(self._events) if self._events else None,
            _encode(
                [
                    (f"{to.trace_id:032x}", f"{to.span_id:016x}", attributes)
                    for to, attributes in self._links
                ]
            )
            if self._links
            else None,
        )

    def add_links(self, links: Any) -> None:
        """``links`` of the API: :class:`opentelemetry.trace.Link` or span contexts."""
        for link in links:
            if isinstance(link, Link):
                self.add_link(link.context, link.attributes)
            elif isinstance(link, Span):
                self.add_link(link.get_span_context())
            else:
                self.add_link(link)


def class_name(error: BaseException) -> str:
    """``TimeoutError``, ``httpx.ConnectError``: built-in classes without their module."""
    kind = type(error)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
