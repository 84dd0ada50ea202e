"""Log records that carry the ids of the span they were made under.

The fields are named as OpenTelemetry's own logging instrumentation names them, so a formatter
made for that (``%(otelTraceID)s``) works. Records stay where the host's handlers put them; none
is exported.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from contextvars import ContextVar, Token
from typing import Any

from opentelemetry.trace import Span, SpanContext

_current: ContextVar[SpanContext | Span | None] = ContextVar("bdh_log_span", default=None)


@contextlib.contextmanager
def in_logs(span: SpanContext | Span | None) -> Iterator[None]:
    """Records made inside carry the ids of ``span``; a span that is entered inside takes over."""
    token = enter(span)
    try:
        yield
    finally:
        leave(token)


def enter(span: SpanContext | Span | None) -> Token[SpanContext | Span | None]:
    return _current.set(span)


def leave(token: Token[SpanContext | Span | None]) -> None:
    # A span may be left in another thread than it was entered in: then there is nothing to undo.
    with contextlib.suppress(ValueError, RuntimeError):
        _current.reset(token)


def carry_ids(*packages: str) -> None:
    """From now on the records of loggers below ``packages`` have ``otelTraceID`` and
    ``otelSpanID`` in hex (``0`` where there is no span), and ``otelTraceSampled``."""
    before = logging.getLogRecordFactory()
    if isinstance(before, _Factory):
        before.add(packages)
    else:
        logging.setLogRecordFactory(_Factory(before, packages))


class _Factory:
    """Wraps the record factory that was there; others' records pass as they are."""

    def __init__(self, before: Callable[..., logging.LogRecord], packages: tuple[str, ...]) -> None:
        self._before = before
        self._prefixes: tuple[str, ...] = ()
        self.add(packages)

    def add(self, packages: tuple[str, ...]) -> None:
        self._prefixes = tuple(dict.fromkeys((*self._prefixes, *packages)))

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._before(*args, **kwargs)
        if record.name.startswith(self._prefixes):
            _stamp(record)
        return record


def _stamp(record: logging.LogRecord) -> None:
    span = _current.get()
    context = span if isinstance(span, SpanContext) else None
    if isinstance(span, Span) and span.is_recording():  # else it was left somewhere else
        context = span.get_span_context()
    record.otelTraceID = f"{context.trace_id:032x}" if context else "0"
    record.otelSpanID = f"{context.span_id:016x}" if context else "0"
    record.otelTraceSampled = bool(context and context.trace_flags.sampled)


class IdFormatter(logging.Formatter):
    """Ends each line of a record that was made under a span with the ids of that span."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        trace_id = getattr(record, "otelTraceID", "0")
        if trace_id == "0":
            return line
        return f"{line} trace_id={trace_id} span_id={getattr(record, 'otelSpanID', '0')}"
