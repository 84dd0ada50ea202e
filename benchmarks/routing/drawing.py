"""The report's picture: learning curve and calibration, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP = 340, 240, 60, 50
BLUE, ORANGE, GREY = "#1f6feb", "#d1701a", "#8b949e"


def draw(found: dict[str, Any]) -> str:
    """Both charts side by side; readable on light and dark grounds."""
    curve = found["learning_curve"]
    sizes = [math.log2(point["messages"]) for point in curve]
    low, high = sizes[0], sizes[-1] if sizes[-1] > sizes[0] else sizes[0] + 1

    def x(size: float) -> float:
        return (math.log2(size) - low) / (high - low)

    def y(share: float) -> float:
        return (share - 0.5) / 0.5

    left = [
        _axes(
            "Right on writers not seen",
            [(x(p["messages"]), str(p["messages"])) for p in curve],
            [(y(v), f"{v:.0%}") for v in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)],
            "training messages",
        ),
        *(
            _line([(x(p["messages"]), y(p[key])) for p in curve], colour, name)
            for key, colour, name in (
                ("joint", GREY, "both"),
                ("read", BLUE, "read"),
                ("store", ORANGE, "store"),
            )
        ),
    ]
    ticks = [(v / 4, f"{v / 4:.0%}") for v in range(5)]
    right = [
        _axes("Calibration on writers not seen", ticks, ticks, "predicted probability"),
        _line([(0, 0), (1, 1)], GREY, "", dashed=True),
        *(
            _line(
                [(b["predicted"], b["observed"]) for b in found["calibration"][flag]["bins"]],
                colour,
                flag,
                lower=lower,
            )
            # Both end in the same corner.
            for flag, colour, lower in (("read", BLUE, -4), ("store", ORANGE, 10))
        ),
    ]
    whole = WIDTH + LEFT + 60
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * whole} {HEIGHT + TOP + 50}" '
        f'font-family="sans-serif" font-size="12" fill="{GREY}">\n'
        f'<g transform="translate({LEFT},{TOP})">{"".join(left)}</g>\n'
        f'<g transform="translate({whole + LEFT},{TOP})">{"".join(right)}</g>\n</svg>\n'
    )


def _axes(
    title: str,
    across: Sequence[tuple[float, str]],
    up: Sequence[tuple[float, str]],
    name: str,
) -> str:
    parts = [f'<text x="0" y="-20" font-size="14" font-weight="bold">{escape(title)}</text>']
    for at, text in up:
        h = HEIGHT * (1 - at)
        parts.append(
            f'<line x1="0" x2="{WIDTH}" y1="{h:.1f}" y2="{h:.1f}" stroke="{GREY}" '
            f'stroke-opacity="0.25"/><text x="-8" y="{h + 4:.1f}" text-anchor="end">{text}</text>'
        )
    for at, text in across:
        parts.append(
            f'<text x="{at * WIDTH:.1f}" y="{HEIGHT + 18}" text-anchor="middle">{text}</text>'
        )
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT + 38}" text-anchor="middle">{name}</text>')
    return "".join(parts)


def _line(
    points: Sequence[tuple[float, float]],
    colour: str,
    name: str,
    *,
    dashed: bool = False,
    lower: float = 0,
) -> str:
    def place(point: tuple[float, float]) -> str:
        return f"{point[0] * WIDTH:.1f},{HEIGHT * (1 - point[1]):.1f}"

    style = ' stroke-dasharray="4 4"' if dashed else ""
    path = " ".join(map(place, points))
    line = f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{style}/>'
    dots = (
        ""
        if dashed
        else "".join(
            '<circle cx="{}" cy="{}" r="3" fill="{}"/>'.format(*place(point).split(","), colour)
            for point in points
        )
    )
    at_x, at_y = place(points[-1]).split(",")
    at = f'x="{float(at_x) + 8:.1f}" y="{float(at_y) + 4 + lower:.1f}"'
    label = f'<text {at} fill="{colour}">{name}</text>'
    return line + dots + label
