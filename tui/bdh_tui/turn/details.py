"""Everything that one span says."""

from __future__ import annotations

import time
from typing import Any

from textual.content import Content

from bdh_bridge.operator.explain import why
from bdh_otel import attributes as attr
from bdh_otel.escape import escape
from bdh_otel.reader import StoredSpan
from bdh_otel.tree import duration
from bdh_tui.text import BAD, HEAD, MUTED, SKIP, Line, lines, plain
from bdh_tui.turn.waterfall import mark_of

_KINDS = ("internal", "server", "client", "producer", "consumer")


def details(span: StoredSpan) -> Content:
    """Name and times, the gate's reason in words, then attributes: content last and in full."""
    parts: list[Content] = [_head(span)]
    if span.gate:
        mark, style = mark_of(span)
        parts.append(Line().add(f"{mark} {span.decision}", style).add(f": {why(span)}").content())
    if span.failed:
        what = plain(span.error_type or "failed", 200)
        message = lines(span.status_message or "", 2_000)
        parts.append(Line().add(f"! {what} ", BAD).add(message).content())
    short, long = _attributes(span)
    width = max((len(name) for name, _ in short), default=0)
    parts += [Line().cell(name, width + 2, MUTED).add(value).content() for name, value in short]
    for name, value in long:
        parts.append(Line().add(name, MUTED).content())
        parts.append(Content("  " + value.replace("\n", "\n  ")))
    for event in span.events:
        values = " ".join(f"{key}={_text(value)}" for key, value in event.attributes.items())
        parts.append(
            Line().add("event  ", MUTED).add(plain(f"{event.name} {values}", 400)).content()
        )
    for link in span.links:
        text = f"span {link.span_id} of trace {link.trace_id}"
        parts.append(Line().add("linked to  ", MUTED).add(plain(text)).content())
    return Content("\n").join(parts)


def _head(span: StoredSpan) -> Content:
    moment = time.strftime("%H:%M:%S", time.localtime(span.start_ns / 1e9))
    kind = _KINDS[span.kind] if 0 <= span.kind < len(_KINDS) else str(span.kind)
    line = Line().add(plain(span.name, 100), HEAD)
    line.add(f"  {moment}.{span.start_ns // 1_000_000 % 1_000:03d}", MUTED)
    line.add(f" · {duration(span.duration_ns)}", SKIP if span.end_ns is None else MUTED)
    return line.add(f" · {kind} · span {span.span_id}", MUTED).content()


def _attributes(span: StoredSpan) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    short: list[tuple[str, str]] = []
    long: list[tuple[str, str]] = []
    inherited = set(attr.CONTEXT) if span.parent_id else set()
    for name, value in sorted(span.attributes.items()):
        if name in inherited:
            continue
        text = _text(value)
        label = escape(name)
        if len(text) > 80 or "\n" in text:
            long.append((label, lines(text)))
        else:
            short.append((label, escape(text)))
    return short, long


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(map(str, value)) if len(value) > 1 else ", ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
