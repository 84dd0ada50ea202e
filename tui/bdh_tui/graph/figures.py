"""What the graph says about itself, made fit to be shown. Answers are read leniently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from textual.content import Content

from bdh_bridge.graph.models import number as figure
from bdh_tui.charts import bar, beside, chart
from bdh_tui.health import Health
from bdh_tui.text import BAD, GOOD, HEAD, MUTED, SKIP, Line, age, clock, number, plain

#: Key of the answer → its name on the screen.
TILES = (
    ("neurons", "neurons"),
    ("active_neurons", "active"),
    ("dormant_neurons", "dormant"),
    ("synapses", "synapses"),
    ("hebbian_synapses", "Hebbian"),
    ("avg_degree", "average degree"),
    ("queries_processed", "queries"),
)
CHARTS = (
    ("neurons", "Neurons"),
    ("hebbian_synapses", "Hebbian synapses"),
    ("queries_processed", "Queries"),
    ("hebbian_strong_synapses", "Strong Hebbian"),
)


def state_line(health: Health, url: str, now: float) -> Content:
    """Up, slow, or away: since when, why, and when it is tried again."""
    where = plain(url, 80) + (f" · vault {plain(health.vault, 40)}" if health.vault else "")
    if health.graph_error:
        line = Line().add(" ! The graph does not answer  ", BAD).add(where, MUTED)
        line.add(f"\n   {plain(health.graph_error, 200)}", BAD)
        wait = health.graph_retry_at - now
        line.add(f"\n   tried again in {age(max(0, wait))} (r: now)", MUTED)
        if health.graph_seen:
            line.add(f"; what follows is {age(now - health.graph_seen)} old", SKIP)
        return line.content()
    if health.graph is None:
        return Line().add(" … asking  ", MUTED).add(where, MUTED).content()
    line = Line().add(" ✓ up  ", GOOD).add(where, MUTED)
    line.add(f"  answered in {health.graph_took * 1000:.0f} ms", MUTED)
    return line.add(f" at {clock(int(health.graph_seen * 1e9))}", MUTED).content()


def tiles(stats: Mapping[str, Any], width: int) -> Content:
    """The figures side by side, as many as fit on a line."""
    line, used = Line(), 0
    for key, title in TILES:
        text = number(round(figure(stats.get(key)), 2)) if key in stats else "–"
        if text == "1" and title in ("neurons", "synapses", "queries"):
            title = {"queries": "query"}.get(title, title[:-1])
        cell = len(text) + len(title) + 4
        if used + cell > width:
            line.add("\n")
            used = 0
        line.add(" ").add(text, HEAD).add(f" {title}  ", MUTED)
        used += cell
    return line.content()


def links(stats: Mapping[str, Any], width: int) -> Content:
    """How strong the Hebbian synapses are, as a share of all."""
    strong = figure(stats.get("hebbian_strong_synapses"))
    weak = figure(stats.get("hebbian_weak_synapses"))
    stale = figure(stats.get("hebbian_stale_weak_synapses"))
    line = Line().add(" Hebbian synapses  ", MUTED)
    line.add(f"{number(strong)} strong", GOOD if strong else "").add("  ")
    line.add(f"{number(weak)} weak").add("  ").add(f"{number(stale)} weak and stale", MUTED)
    return line.content().truncate(width)


def charts(health: Health, width: int, height: int) -> Content:
    """The history since this screen's process began, two charts side by side where they fit."""
    keys = [key for key, _ in CHARTS]
    series: dict[str, list[float | None]] = {key: [] for key in keys}
    for _, stats in list(health.stats):
        for key in keys:
            series[key].append(figure(stats[key]) if key in stats else None)
    across = 2 if width >= 90 else 1
    each = (width - 3 * across) // across
    rows = []
    shown = CHARTS if height >= 12 or across == 2 else CHARTS[:2]
    lines_each = max(1, min(6, (height - 2) * across // len(shown) - 2))
    for start in range(0, len(shown), across):
        group = shown[start : start + across]
        made = [chart(title, series[key], each, lines_each) for key, title in group]
        rows += beside(made, each)
        rows.append(Content(""))
    return Content("\n").join(rows)


def pairs(stats: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    listed = stats.get("top_hebbian")
    found = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    return sorted(found, key=lambda one: figure(one.get("weight")), reverse=True)


def pair_line(pair: Mapping[str, Any], width: int) -> Content:
    one, _, other = str(pair.get("pair", "")).partition("|")
    weight = figure(pair.get("weight"))
    line = Line().add(f" {bar(weight, 10)} ", "$bar").cell(f"{weight:.2f}", 5, HEAD)
    line.cell(f"×{figure(pair.get('frequency')):.1f}", 7, MUTED)
    room = max(10, (width - line.width - 4) // 2)
    return line.add(plain(one, room)).add(" ↔ ", MUTED).add(plain(other, room)).content()
