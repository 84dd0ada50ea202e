"""The funnel, the histograms and the trend as lines."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from bdh_bridge.operator.wording import short
from bdh_tui.charts import bar, columns, spark
from bdh_tui.decisions.figures import Figures, Histogram, ReasonCount, Step
from bdh_tui.text import GOOD, HEAD, MUTED, SKIP, Line, clock, number, plain
from bdh_tui.text import count as counted


def head(line: Line, figures: Figures | None, width: int, instead: str = "") -> Content:
    """``line`` tells the windows already; ``instead`` is said where there are no figures."""
    if figures is None:
        return line.add(f"   {instead or 'reading…'}", MUTED).content()
    turns, read, written = (sum(part) for part in (figures.turns, figures.read, figures.written))
    line.add(f"   {number(turns)}", HEAD).add(" turn  " if turns == 1 else " turns  ", MUTED)
    line.add(f"{number(read)}", GOOD if read else "").add(" read  ", MUTED)
    line.add(f"{number(written)}", GOOD if written else "").add(" written  ", MUTED)
    if figures.share < 1:
        line.add(f"counting, {figures.share:.0%} ", SKIP)
    room = width - line.width - 2
    return line.add(
        spark(figures.turns, min(room, 60), low=0) if room > 8 else "", "$bar"
    ).content()


def funnel(
    title: str, steps: Sequence[Step], reasons: Sequence[ReasonCount], width: int
) -> Content:
    """One line a gate: how many went through, and how many were stopped."""
    entered = max((step.allowed + step.skipped for step in steps), default=0)
    rows = [Line().add(f" {title}", HEAD).add(f"  {number(entered)} asked", MUTED).content()]
    bars = max(6, min(24, width - 40))
    for step in steps:
        line = Line().cell(f"  {plain(step.gate, 12)}", 14)
        line.add(bar(step.allowed / entered if entered else 0, bars), "$bar")
        line.cell(number(step.allowed), 8, "", "right")
        if step.skipped:
            line.add("  ✗ ", SKIP).add(number(step.skipped), SKIP)
            mine = [one for one in reasons if one.gate == step.gate]
            if mine and width - line.width > 8:
                line.add(f" {short(mine[0].reason)}", MUTED)
        rows.append(line.content().truncate(width, ellipsis=True))
    return Content("\n").join(rows)


def histogram(data: Histogram, width: int, height: int) -> Content:
    """Columns with the threshold drawn as a line between what passes and what doesn't."""
    total = sum(data.counts)
    title = Line().add(f" {data.title}", HEAD).add(f"  {counted(total, 'retrieval')}", MUTED)
    if data.threshold is not None:
        title.add(f"  threshold {data.threshold:g}", SKIP)
    each = max(1, min(3, (width - 4) // len(data.counts)))
    spread = [count for count in data.counts for _ in range(each)]
    at = None if data.threshold is None else round(data.threshold / data.size) * each
    rows = [title.content()]
    for text in columns([value or None for value in spread], len(spread), height, low=0):
        line = Line().add("  ")
        if at is None or not 0 <= at <= len(spread):
            line.add(text, "$bar")
        else:
            line.add(text[:at], MUTED).add("│", SKIP).add(text[at:], "$bar")
        rows.append(line.content())
    last = (len(data.counts) - 1) * data.size if data.size >= 1 else 1
    scale = f"0{f'{last:g}'.rjust(len(spread) - 1 + (at is not None))}"
    rows.append(Content.styled(f"  {scale}", MUTED))
    return Content("\n").join(rows)


def reason_line(reason: ReasonCount, most: int, total: int, width: int) -> Content:
    line = Line().add(f" {bar(reason.count / most if most else 0, 10)} ", "$bar")
    line.cell(number(reason.count), 7, HEAD, "right")
    line.cell(f"{reason.count / total:.0%}" if total else "", 5, MUTED, "right").add("  ")
    line.cell(reason.path, 6, MUTED).cell(plain(reason.gate, 12), 12)
    line.cell(short(reason.reason), max(10, width - line.width - 16))
    return line.add(f"last {clock(reason.last_ns)}", MUTED).content()
