"""Numbers as bars of block characters."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from bdh_tui.text import MUTED, Line, number

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def spark(values: Sequence[float | None], width: int, *, low: float | None = None) -> str:
    """``values``, the last ones of them, as one line of ``width`` cells; None leaves a gap."""
    shown = list(values)[-width:]
    known = [value for value in shown if value is not None]
    if not known:
        return " " * width
    bottom = min(known) if low is None else min(low, *known)
    span = max(known) - bottom
    text = "".join(
        " "
        if value is None or (value == bottom == low)
        else _EIGHTHS[1 + round((value - bottom) / span * 7) if span else 4]
        for value in shown
    )
    return text.rjust(width)


def columns(
    values: Sequence[float | None], width: int, height: int, *, low: float | None = None
) -> list[str]:
    """The same over ``height`` lines, top line first."""
    shown = list(values)[-width:]
    known = [value for value in shown if value is not None]
    if not known or height < 1:
        return [" " * width] * max(height, 0)
    bottom = min(known) if low is None else min(low, *known)
    span = max(known) - bottom
    steps = height * 8
    filled = [
        0 if value is None else max(1, round((value - bottom) / span * steps) if span else 1)
        for value in shown
    ]
    lines = []
    for row in range(height - 1, -1, -1):
        cells = (_EIGHTHS[min(8, max(0, level - 8 * row))] for level in filled)
        lines.append("".join(cells).rjust(width))
    return lines


def chart(
    title: str, values: Sequence[float | None], width: int, height: int, *, low: float | None = None
) -> Content:
    """A titled chart: name, latest value, range, and ``height`` lines of columns."""
    known = [value for value in values if value is not None]
    head = Line().add(f"{title} ", "bold")
    if known:
        head.add(number(known[-1]))
        if min(known) != max(known):
            head.add(f"  {number(min(known))} to {number(max(known))}", MUTED)
    drawn = columns(stretch(values, width), width, height, low=low)
    lines = [Content.styled(line, "$bar") for line in drawn]
    return Content("\n").join([head.content(), *lines])


def beside(parts: Sequence[Content], width: int) -> list[Content]:
    """Blocks of lines next to each other, each ``width`` cells wide."""
    split = [part.split("\n") for part in parts]
    return [
        Content.assemble(" ", Content("   ").join([line.truncate(width, pad=True) for line in row]))
        for row in zip(*split, strict=True)
    ]


def bar(share: float, width: int) -> str:
    """``share`` (0 to 1) of ``width`` cells, to half a cell; what isn't nothing is seen."""
    halves = max(round(max(0.0, min(1.0, share)) * width * 2), 1 if share > 0 else 0)
    full, rest = divmod(halves, 2)
    return ("━" * full + "╸" * rest).ljust(width)


def stretch(values: Sequence[float | None], width: int) -> list[float | None]:
    """``width`` values that tell what ``values`` do, each repeated or the nearest taken."""
    if not values:
        return []
    return [values[place * len(values) // width] for place in range(width)]
