"""A trace as a tree, for an operator who asks: why was this retrieved, why was that not stored?

``✓`` a gate allowed, ``✗`` a gate skipped, ``!`` something failed, ``…`` still open. Everything
that comes from people or peers is escaped (:mod:`bdh_otel.escape`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from bdh_otel import names
from bdh_otel.describe import describe, label
from bdh_otel.escape import escape, one_line
from bdh_otel.reader import StoredSpan
from bdh_otel.wrap import wrapped

_COLOURS = {
    "good": "\x1b[32m",
    "skip": "\x1b[33m",
    "bad": "\x1b[1;31m",
    "head": "\x1b[1m",
    "dim": "\x1b[2m",
}
_RESET = "\x1b[0m"
#: Nanoseconds from which a duration is shown: what decisions take by computing alone is noise.
_WORTH_TELLING = 100_000
#: Nanoseconds from which a gate that passed isn't folded.
_WORTH_A_LINE = 5_000_000
#: Where a line of folded gates goes on: below the first gate's name.
_HANGING = " " * 8


def colours_wanted(stream: TextIO = sys.stdout, environ: Mapping[str, str] | None = None) -> bool:
    """Whether ``stream`` is a terminal that shows colours; ``NO_COLOR`` is honoured."""
    variables = os.environ if environ is None else environ
    if variables.get("NO_COLOR") or variables.get("TERM") == "dumb":
        return False
    return stream.isatty()


def render(
    spans: Iterable[StoredSpan],
    *,
    colour: bool = False,
    late: bool = False,
    fold: bool = False,
    width: int = 0,
) -> str:
    """The tree of one trace, or of several, one after the other; ends with a line break.

    A span whose parent isn't among ``spans`` is shown as a root, never left out. ``late``: the
    spans are an addition to a trace that was shown before. ``fold``: gates in a row that just
    let the turn pass share a line, so that the others stand out. ``width``: columns from which
    a line goes on below, 0 for never.
    """
    view = _View(Painter(colour), late, fold, width)
    return "".join(f"{line}\n" for line in _lines(list(spans), view))


class Painter:
    """Colours text, or leaves it as it is."""

    def __init__(self, colour: bool) -> None:
        self._colour = colour

    def __call__(self, style: str, text: str) -> str:
        return f"{_COLOURS[style]}{text}{_RESET}" if self._colour and text else text


@dataclass(frozen=True, slots=True)
class _View:
    paint: Painter
    late: bool
    fold: bool
    width: int


def _lines(spans: list[StoredSpan], view: _View) -> Iterator[str]:
    known = {span.span_id for span in spans}
    children: dict[str, list[StoredSpan]] = {}
    roots: list[StoredSpan] = []
    for span in sorted(spans, key=lambda one: (one.start_ns, one.seq)):
        if span.parent_id in known and span.parent_id != span.span_id:
            children.setdefault(str(span.parent_id), []).append(span)
        else:
            roots.append(span)
    shown: set[str] = set()
    for root in roots:
        yield from _tree(root, children, shown, view)
    # Parents that form a ring have no root; broken input must not hide spans.
    for span in spans:
        if span.span_id not in shown:
            yield from _tree(span, children, shown, view)


def _tree(
    root: StoredSpan,
    children: dict[str, list[StoredSpan]],
    shown: set[str],
    view: _View,
) -> Iterator[str]:
    paint = view.paint
    said = describe(root)[1]
    yield from _root_lines(root, view)
    # An explicit stack: a trace may be deeper than Python's.
    shown.add(root.span_id)
    stack = [("", _unshown(children.get(root.span_id, ()), shown))]
    while stack:
        indent, siblings = stack[-1]
        if not siblings:
            stack.pop()
            continue
        passed = _passed(siblings, children) if view.fold else 0
        if passed > 1:
            folded, siblings[:passed] = siblings[:passed], []
            branch = "├─ " if siblings else "└─ "
            first, rest = indent + branch, indent + ("│  " if siblings else "   ") + _HANGING
            line = _folded_line(folded, paint)
            yield from wrapped(paint("dim", first), paint("dim", rest), line, view.width)
            continue
        span = siblings.pop(0)
        last = not siblings
        below = _unshown(children.get(span.span_id, ()), shown)
        branch, rail = ("└─ ", "   ") if last else ("├─ ", "│  ")
        head, *more = _span_lines(span, paint, said)
        deeper = indent + rail + ("│  " if below else "   ")
        first, rest = paint("dim", indent + branch), paint("dim", deeper)
        yield from wrapped(first, rest, head, view.width)
        for line in more:
            yield from wrapped(rest, rest, line, view.width)
        stack.append((indent + rail, below))


def _passed(siblings: list[StoredSpan], children: dict[str, list[StoredSpan]]) -> int:
    """How many of the first siblings are gates of one path with nothing to tell."""
    count = 0
    for span in siblings:
        plain = span.decision == "allow" and not (span.failed or span.events or span.links)
        quick = span.duration_ns is not None and span.duration_ns < _WORTH_A_LINE
        if (
            not (plain and quick)
            or span.path != siblings[0].path
            or span.span_id in children
            or len(describe(span)[0]) > 1
        ):
            break
        count += 1
    return count


def _folded_line(spans: Sequence[StoredSpan], paint: Painter) -> str:
    gates = " · ".join(one_line(span.gate or span.name, 40) for span in spans)
    return f"{paint('good', '✓')} {escape(spans[0].path or 'gate'):<5} {paint('dim', gates)}"


def _unshown(spans: Sequence[StoredSpan], shown: set[str]) -> list[StoredSpan]:
    found = [span for span in spans if span.span_id not in shown]
    shown.update(span.span_id for span in found)
    return found


def _root_lines(span: StoredSpan, view: _View) -> Iterator[str]:
    paint = view.paint
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(span.start_ns / 1e9))
    origin = [f"{'later in ' if view.late else ''}trace {span.trace_id[:8]}"]
    if span.platform:
        origin.append(one_line(span.platform, 40))
    if span.session:
        origin.append(f"session {one_line(span.session, 60)}")
    if span.parent_id is not None and not view.late:
        origin.append(f"parent {span.parent_id} is not in this store")
    yield f"{paint('head', when)}  {paint('dim', ' · '.join(origin))}"
    head, *more = _span_lines(span, paint, ())
    rail = f"{paint('dim', '│')}  "
    yield from wrapped("", rail, head, view.width)
    for line in more:
        yield from wrapped(rail, rail, line, view.width)


def _span_lines(span: StoredSpan, paint: Painter, said: Sequence[str]) -> list[str]:
    """The span's own line, then those below it, without quotations that its root has ``said``."""
    mark, style = _mark(span)
    text = escape(label(span))
    facts, quotes = describe(span)
    head = [f"{paint(style, mark)} {paint('head', text) if span.name == names.TURN else text}"]
    if facts:
        head.append(paint(style, facts[0]) if style != "dim" else facts[0])
        if facts[1:]:
            head.append(" · ".join(facts[1:]))
    if span.failed and not _told(span, facts):
        head.append(paint("bad", escape(span.error_type or "failed")))
    if span.duration_ns is None or span.duration_ns >= _WORTH_TELLING:
        head.append(paint("dim", duration(span.duration_ns)))
    lines = ["  ".join(head), *(paint("dim", quote) for quote in quotes if quote not in said)]
    message = one_line(span.status_message or "", 200)
    if message and message not in (quote.strip("“”") for quote in quotes):
        lines.append(paint("bad", message))
    for event in span.events:
        if event.name != "exception" or not span.failed:
            details = " ".join(f"{key}={_plain(value)}" for key, value in event.attributes.items())
            lines.append(paint("dim", one_line(f"{event.name} {details}", 200)))
    lines.extend(
        paint("dim", f"linked to span {link.span_id} of trace {link.trace_id[:8]}")
        for link in span.links
    )
    return lines


def _mark(span: StoredSpan) -> tuple[str, str]:
    if span.failed:
        return "!", "bad"
    if span.decision == "skip":
        return "✗", "skip"
    if span.decision == "allow":
        return "✓", "good"
    if span.end_ns is None:
        return "…", "skip"
    return "•", "dim"


def _told(span: StoredSpan, facts: Sequence[str]) -> bool:
    return any(span.error_type in (fact, None) for fact in facts)


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def duration(nanoseconds: int | None) -> str:
    """``0.4 ms``, ``37 ms``, ``1.2 s``, ``3 min``; ``open`` for None."""
    if nanoseconds is None:
        return "open"
    milliseconds = nanoseconds / 1e6
    if milliseconds < 10:
        return f"{milliseconds:.1f} ms"
    if milliseconds < 1_000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1_000
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
