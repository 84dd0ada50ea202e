"""The tracer: OpenTelemetry's API, recording into the span store of this machine.

It never sets, replaces or asks the global tracer provider. Where another plugin's span is
current, ours join its trace.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Span,
    SpanContext,
    SpanKind,
    TraceFlags,
    TraceState,
    get_current_span,
    use_span,
)

from bdh_otel import attributes as attr
from bdh_otel.process import this_process
from bdh_otel.retention import Bounds
from bdh_otel.rules import Content, Rules
from bdh_otel.span import LocalSpan
from bdh_otel.store import SpanStore
from bdh_otel.writer import SpanWriter

__all__ = ["LocalSpan", "Tracer"]

SERVICE_NAME = "hermes-bdh-bridge"

_TRACEPARENT = re.compile(
    r"\s*([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?\s*"
)


class Tracer(trace.Tracer):
    """Records spans into ``path``.

    ``resource`` describes the process (semantic conventions, e.g. ``service.version``).
    ``content`` is how much of people's text is kept: nothing (``off``), a ``preview``, or up to
    65,536 characters (``full``). ``max_rows`` and ``max_bytes`` are the bounds of the store that
    this process enforces when nobody else does. ``strict`` (default: ``BDH_OTEL_STRICT=1``)
    raises on an undeclared attribute instead of dropping it.
    """

    def __init__(
        self,
        path: Path,
        resource: Mapping[str, Any] | None = None,
        *,
        content: Content = "preview",
        max_rows: int | None = 1_000_000,
        max_bytes: int | None = 1 << 30,
        scope: str = "bdh_bridge",
        strict: bool | None = None,
    ) -> None:
        if strict is None:
            strict = os.environ.get("BDH_OTEL_STRICT") == "1"
        self._rules = Rules(content, strict=strict)
        self._given = dict(resource or {})
        self._scope = scope
        self._instance: tuple[int, str] = (0, "")
        self._writer = SpanWriter(path, self._register, Bounds(max_rows, max_bytes))

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, Any] | None = None,
        links: Any = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
        *,
        parent: Span | SpanContext | None = None,
    ) -> LocalSpan:
        """Start a span; it is stored when it ends.

        The parent is ``parent``, or else the span of ``context``, or else the current span,
        whoever made it; without any, the span starts a trace. Session, turn, platform and model
        (:data:`bdh_otel.attributes.CONTEXT`) are taken over from a parent of ours.
        ``links`` may hold links, spans or span contexts. ``start_time`` is in Unix nanoseconds.
        """
        above: Span | SpanContext = get_current_span(context) if parent is None else parent
        own: dict[str, attr.Value] = {}
        parent_id: int | None = None
        flags, state = 1, None
        if isinstance(above, LocalSpan):
            trace_id, parent_id = above.trace_id, above.span_id
            flags, state = above._flags, above._trace_state
            inherited = above.attributes
            for key in attr.CONTEXT:
                if key in inherited:
                    own[key] = inherited[key]
        else:
            remote = above if isinstance(above, SpanContext) else above.get_span_context()
            if remote.is_valid:
                trace_id, parent_id = remote.trace_id, remote.span_id
                flags, state = int(remote.trace_flags), remote.trace_state or None
            else:
                trace_id = _random(16)
        span = LocalSpan(
            name,
            trace_id=trace_id,
            span_id=_random(8),
            parent_id=parent_id,
            flags=flags,
            trace_state=state,
            kind=kind,
            start_ns=start_time,
            attributes=own,
            rules=self._rules,
            save=self._writer.add,
            catch=(record_exception, set_status_on_exception),
        )
        if attributes:
            put = self._rules.put
            for key, value in attributes.items():
                put(own, key, value)
        if links:
            span.add_links(links)
        return span

    def span(
        self,
        name: str,
        *,
        parent: Span | SpanContext | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, Any] | None = None,
        links: Any = None,
    ) -> LocalSpan:
        """For ``with``: ends the span, and notes an exception as its failure, on leaving.

        The span does not become the current one of the context: pass it on as ``parent``.
        """
        return self.start_span(name, None, kind, attributes, links, parent=parent)

    @contextlib.contextmanager
    def start_as_current_span(  # type: ignore[override]
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, Any] | None = None,
        links: Any = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
        end_on_exit: bool = True,
    ) -> Iterator[LocalSpan]:
        """As the API has it: the span is the current one inside."""
        span = self.start_span(name, context, kind, attributes, links, start_time)
        with use_span(
            span,
            end_on_exit=end_on_exit,
            record_exception=record_exception,
            set_status_on_exception=set_status_on_exception,
        ):
            yield span

    @staticmethod
    def remote_parent(traceparent: str | None) -> SpanContext | None:
        """The span that a ``traceparent`` value names; None if it is malformed."""
        match = _TRACEPARENT.fullmatch((traceparent or "").lower())
        if match is None or match[1] == "ff":
            return None
        context = SpanContext(
            int(match[2], 16), int(match[3], 16), True, TraceFlags(int(match[4], 16)), TraceState()
        )
        return context if context.is_valid else None

    def flush(self, timeout: float = 0.25) -> bool:
        """Commit every span that ended so far; takes at most about ``timeout`` seconds.

        False if that did not succeed; the spans stay queued. Never raises.
        """
        return self._writer.flush(timeout)

    def shutdown(self, timeout: float = 1.0) -> bool:
        """Flush, and close the store. A span that ends later opens it again."""
        return self._writer.shutdown(timeout)

    @property
    def dropped(self) -> int:
        """Spans lost because the queue was full, as far as not yet noted in the store."""
        return self._writer.dropped

    def _register(self, store: SpanStore) -> int:
        process = this_process()
        if self._instance[0] != process.pid:  # also in the child of a fork
            self._instance = (process.pid, str(uuid.uuid4()))
        resource = {
            "service.name": SERVICE_NAME,
            "host.name": process.host,
            "process.pid": process.pid,
            **self._given,
            "service.instance.id": self._instance[1],
        }
        return store.register(self._instance[1], process, self._scope, resource)


def _random(size: int) -> int:
    """A random id that is not zero. From the system: hosts seed ``random``, and processes fork."""
    return int.from_bytes(os.urandom(size), "big") or 1
