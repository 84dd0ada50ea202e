"""Spans of the way through the inbox, in the trace of the turn that follows.

``borgee.receive`` begins the trace; its ``traceparent`` is stored with the receipt, so a message
that is dispatched hours later, or by another process, still belongs to it. While Hermes has the
message, ``borgee.dispatch`` is the current span of the context: Hermes copies the context to its
agent thread, and the bridge's own spans become its children.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry import context as otel_context
from opentelemetry.trace import SpanKind, set_span_in_context

from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.rules import AttributeMisuse
from bdh_otel.tracer import LocalSpan, Tracer

if TYPE_CHECKING:
    from hermes_borgee.dispatch import Dispatch
    from hermes_borgee.receipts import NewReceipt, Receipt

log = logging.getLogger(__name__)

PLATFORM = "borgee"

#: Outcomes that are failures: of the message, not of a moment in which the host can't take it.
FAILURES = frozenset(
    {
        "failed",
        "quarantined",
        "undelivered",
        "no_turn",
        "handler_error",
        "control_timeout",
        "never_sent",
        "refused",
        "uncertain",
    }
)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    try:
        yield
    except AttributeMisuse:  # raised only where tests ask for it
        raise
    except Exception as error:
        log.debug("[bdh-bridge] borgee: a span is lost (%s)", type(error).__name__)


def _end(span: LocalSpan) -> None:
    outcome = span.attributes.get(attr.BORGEE_OUTCOME)
    if outcome in FAILURES:
        span.fail(str(outcome))
    span.end()


class Tracing:
    """The adapter's tracer. Telemetry never fails a message: each method swallows its errors."""

    def __init__(self, home: Path) -> None:
        from bdh_bridge.settings import load
        from bdh_bridge.telemetry import describe_process

        loaded = load(home)
        settings = loaded.settings
        self._tracer = Tracer(
            loaded.paths.spans,
            describe_process(loaded, "agent"),
            content=settings.otel_content,
            max_rows=settings.otel_store_max_rows,
            max_bytes=settings.otel_store_max_bytes,
            scope="hermes_borgee",
        )

    def receive(self) -> LocalSpan:
        """Open the span of one delivery; :meth:`received` ends it."""
        span = self._tracer.start_span(names.BORGEE_RECEIVE, kind=SpanKind.CONSUMER)
        span.set_attribute(attr.PLATFORM, PLATFORM)
        return span

    def received(self, span: LocalSpan, receipt: NewReceipt | None, outcome: str) -> None:
        with _quiet():
            span.set_attribute(attr.BORGEE_OUTCOME, outcome)
            if receipt is not None:
                span.set_attributes(
                    {
                        attr.BORGEE_KIND: receipt.kind,
                        attr.BORGEE_LANE: receipt.dispatch_class.value,
                        attr.BORGEE_CHANNEL: receipt.channel_id,
                    }
                )
            _end(span)

    def claimed(self, receipt: Receipt) -> None:
        """The claim as a span of its own: how long the message waited for its turn."""
        with _quiet():
            span = self._tracer.start_span(
                names.BORGEE_CLAIM, parent=self._tracer.remote_parent(receipt.traceparent)
            )
            span.set_attributes(
                {
                    attr.PLATFORM: PLATFORM,
                    attr.BORGEE_RECEIPT: receipt.ingest_seq,
                    attr.BORGEE_LANE: receipt.dispatch_class.value,
                    attr.BORGEE_ATTEMPT: receipt.attempt,
                    attr.BORGEE_WAITED: max(0.0, time.time() - receipt.created_at),
                }
            )
            span.end()

    @contextlib.contextmanager
    def dispatch(self, dispatch: Dispatch) -> Iterator[None]:
        """``borgee.dispatch`` around Hermes' work, current in the context."""
        receipt = dispatch.receipt
        span = self._tracer.start_span(
            names.BORGEE_DISPATCH,
            parent=self._tracer.remote_parent(receipt.traceparent),
            kind=SpanKind.INTERNAL,
        )
        span.set_attributes(
            {
                attr.PLATFORM: PLATFORM,
                attr.BORGEE_RECEIPT: receipt.ingest_seq,
                attr.BORGEE_LANE: receipt.dispatch_class.value,
                attr.BORGEE_ATTEMPT: receipt.attempt,
            }
        )
        token = otel_context.attach(set_span_in_context(span))
        try:
            yield
        finally:
            otel_context.detach(token)
            with _quiet():
                span.set_attribute(attr.BORGEE_OUTCOME, dispatch.verdict or None)
                _end(span)
                self._tracer.flush()

    @contextlib.contextmanager
    def send(self, operation: str, channel_id: str) -> Iterator[LocalSpan]:
        """``borgee.send``: one reply, edit or deletion; a child of the turn that sends it."""
        span = self._tracer.start_span(names.BORGEE_SEND, kind=SpanKind.PRODUCER)
        with _quiet():
            span.set_attributes(
                {
                    attr.PLATFORM: PLATFORM,
                    attr.BORGEE_OPERATION: operation,
                    attr.BORGEE_CHANNEL: channel_id,
                }
            )
        try:
            yield span
        finally:
            with _quiet():
                _end(span)

    def shutdown(self) -> None:
        with _quiet():
            self._tracer.shutdown()
