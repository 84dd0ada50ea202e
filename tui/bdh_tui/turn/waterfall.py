"""A trace as lines: its tree, and when each span ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content

from bdh_otel import names
from bdh_otel.describe import describe, label
from bdh_otel.reader import StoredSpan
from bdh_otel.tree import duration
from bdh_tui.text import BAD, GOOD, HEAD, MUTED, SKIP, Line, plain

#: Nanoseconds from which a duration is shown: what decisions take by computing alone is noise.
_WORTH_TELLING = 100_000


@dataclass(frozen=True, slots=True)
class Branch:
    """A span and the rails before it."""

    span: StoredSpan
    rails: str


def branches(spans: Sequence[StoredSpan]) -> list[Branch]:
    """The spans as a tree, top to bottom; one whose parent is missing counts as a root, and
    parents that form a ring hide nothing."""
    known = {span.span_id for span in spans}
    children: dict[str, list[StoredSpan]] = {}
    roots: list[StoredSpan] = []
    for span in sorted(spans, key=lambda one: (one.start_ns, one.seq)):
        if span.parent_id in known and span.parent_id != span.span_id:
            children.setdefault(str(span.parent_id), []).append(span)
        else:
            roots.append(span)
    found: list[Branch] = []
    shown: set[str] = set()
    for root in [*roots, *spans]:
        if root.span_id in shown:
            continue
        # An explicit stack: a trace may be deeper than Python's.
        stack = [(root, "", "")]
        while stack:
            span, rails, below = stack.pop()
            if span.span_id in shown:
                continue
            shown.add(span.span_id)
            found.append(Branch(span, rails))
            under = [one for one in children.get(span.span_id, ()) if one.span_id not in shown]
            for place, child in reversed(list(enumerate(under))):
                last = place == len(under) - 1
                stack.append(
                    (child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "))
                )
    return found


@dataclass(frozen=True, slots=True)
class Scale:
    """The time that the bars share, in Unix nanoseconds."""

    start_ns: int
    end_ns: int

    @classmethod
    def of(cls, spans: Sequence[StoredSpan], now_ns: int) -> Scale:
        start = min((span.start_ns for span in spans), default=now_ns)
        ends = [span.end_ns if span.end_ns is not None else now_ns for span in spans]
        return cls(start, max(*ends, start + 1) if ends else start + 1)

    def bar(self, span: StoredSpan, width: int) -> tuple[int, int]:
        """First cell and number of cells, at least one."""
        whole = self.end_ns - self.start_ns
        end_ns = self.end_ns if span.end_ns is None else span.end_ns
        first = int((span.start_ns - self.start_ns) / whole * width)
        after = round((end_ns - self.start_ns) / whole * width)
        first = max(0, min(first, width - 1))
        return first, max(1, min(after, width) - first)


def draw(branch: Branch, scale: Scale, width: int) -> Content:
    span = branch.span
    bars = max(12, width // 5)
    tree = max(24, min(38, width // 3))
    mark, style = mark_of(span)
    line = Line().add(" ").add(branch.rails, MUTED).add(f"{mark} ", style)
    name = "turn" if span.name == names.TURN else " ".join(label(span).split())
    line.add(plain(name, 60), HEAD if span.name == names.TURN else "")
    line.add(" " * max(1, tree - line.width))
    facts, _ = describe(span)
    left = width - line.width - bars - 10
    if left > 4:
        first = facts[0] if facts else ""
        rest = " · ".join(facts[1:])
        shown = Line().add(first, style if style != MUTED else "")
        if rest:
            shown.add("  ").add(rest, MUTED)
        content = shown.content().truncate(left, ellipsis=True)
        pad = " " * max(0, left - content.cell_length)
        head = Content.assemble(line.content(), content, pad)
    else:
        head = line.content().truncate(width - bars - 10, ellipsis=True)
    first_cell, cells = scale.bar(span, bars)
    tail = Line().add(" " + " " * first_cell)
    took = span.duration_ns
    instant = took is not None and took < _WORTH_TELLING
    tail.add("·" if instant else "━" * cells, BAD if span.failed else "$bar")
    tail.add(" " * (bars - first_cell - (1 if instant else cells)))
    tail.cell("" if instant else duration(took), 8, MUTED, "right")
    return Content.assemble(head, tail.content())


def mark_of(span: StoredSpan) -> tuple[str, str]:
    if span.failed:
        return "!", BAD
    if span.decision == "skip":
        return "✗", SKIP
    if span.decision == "allow":
        return "✓", GOOD
    if span.end_ns is None:
        return "…", SKIP
    return "•", MUTED
