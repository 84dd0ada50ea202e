"""Draw who imports whom, as the code has it: ``docs/images/architecture.svg``.

python scripts/architecture.py docs/images/architecture.svg

What is declared here is which modules make a part, which process it belongs to, and its column.
The arrows, the rows and the figures come from the modules, read with :mod:`ast`: imports inside
functions count, those for type checkers alone do not. Left out of the picture: arrows to another
process's part that follow from others. Those into the shared part are drawn once a process, those
to the foundations not at all: every part may use them.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "bdh_bridge": ROOT / "bdh_bridge",
    "bdh_otel": ROOT / "otel" / "bdh_otel",
    "bdh_tui": ROOT / "tui" / "bdh_tui",
    "hermes_borgee": ROOT / "borgee" / "hermes_borgee",
}
#: Hermes' door: ``register`` in the package hands over to the plugin. Who imports the package for
#: its version does not need the plugin.
DOOR = {("bdh_bridge", "bdh_bridge.plugin"), ("bdh_bridge", "bdh_bridge.bare")}


@dataclass(frozen=True, slots=True)
class Part:
    """One box. A module belongs to the part that names it, or the nearest package around it."""

    name: str
    meaning: str
    modules: tuple[str, ...]
    process: str
    column: float = 0


def _bridge(names: str) -> tuple[str, ...]:
    return tuple(f"bdh_bridge.{name}" for name in names.split())


AGENT, OPERATOR, SCREEN, WORKER = "agent process", "command line", "terminal UI", "worker process"
SHARED, BASE = "shared: decisions and stores, without Hermes", "foundations"

PARTS = (
    Part("hermes_borgee", "Borgee platform, inbox", ("hermes_borgee",), AGENT, 0),
    Part(
        "plugin",
        "registration, hooks, /bdh",
        _bridge("plugin bare homes hooks author slash"),
        AGENT,
        1,
    ),
    Part(
        "bridge",
        "the read and write path",
        _bridge("bridge turns read_path write_path retrieval tools"),
        AGENT,
        1,
    ),
    Part("cli", "bdh-bridge, hermes bdh", _bridge("cli dry_run worker.once docs"), OPERATOR, 2),
    Part("operator", "install, doctor, status", _bridge("operator"), OPERATOR, 2),
    Part("demo", "scripts/demo", _bridge("demo"), OPERATOR, 3),
    Part("bdh_tui", "bdh-bridge-tui", ("bdh_tui",), SCREEN, 4),
    Part("worker", "delivery, export, pruning", _bridge("worker metrics synthesis"), WORKER, 5),
    Part("outbox", "durable writes, transcripts", _bridge("outbox transcripts"), SHARED),
    Part("routing", "routers, provider chain", _bridge("routing"), SHARED),
    Part("gates", "one decision a file", _bridge("gates"), SHARED),
    Part("graph", "client, models, context", _bridge("graph"), SHARED),
    Part("embedded", "graph server, encoder", _bridge("graph.embedded"), SHARED),
    Part("host", "asks an installed Hermes", _bridge("host caller"), BASE),
    Part(
        "settings, state",
        "also paths, text, deadlines",
        ("bdh_bridge", *_bridge("settings state paths text deadline telemetry")),
        BASE,
    ),
    Part(
        "bdh_otel", "tracer, span store, export; knows nothing of the bridge", ("bdh_otel",), BASE
    ),
)


@dataclass(frozen=True, slots=True)
class Imports:
    """``edges`` counts imports by (module, module); ``foreign`` holds (module, top-level name)."""

    modules: dict[str, Path]
    edges: Counter[tuple[str, str]]
    foreign: set[tuple[str, str]]


def read() -> Imports:
    """Every import of the four packages."""
    modules = {
        ".".join((package, *path.relative_to(folder).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): path
        for package, folder in PACKAGES.items()
        for path in sorted(folder.rglob("*.py"))
    }
    edges: Counter[tuple[str, str]] = Counter()
    foreign: set[tuple[str, str]] = set()
    for module, path in modules.items():
        for name in _imported(ast.parse(path.read_text(encoding="utf-8"))):
            target = name
            while target and target not in modules:
                target = target.rpartition(".")[0]
            if target:
                edges[module, target] += 1
            else:
                foreign.add((module, name.partition(".")[0]))
    return Imports(modules, edges, foreign)


def _imported(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            if child.level or child.module is None:
                raise ValueError("relative imports are not used here")
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        else:
            yield from _imported(child)


def part_of(module: str) -> Part:
    """Raises: KeyError for a module of no part (a new one in ``bdh_bridge`` itself)."""
    around = module
    while around:
        for part in PARTS:
            if around in part.modules and (around != "bdh_bridge" or module == around):
                return part
        around = around.rpartition(".")[0]
    raise KeyError(f"{module} belongs to no part: name it in scripts/architecture.py")


def between_parts(imports: Imports) -> Counter[tuple[str, str]]:
    """How often one part imports another, by their names."""
    counted: Counter[tuple[str, str]] = Counter()
    for (importer, imported), times in imports.edges.items():
        pair = part_of(importer).name, part_of(imported).name
        if pair[0] != pair[1] and (importer, imported) not in DOOR:
            counted[pair] += times
    return counted


def depths(edges: Counter[tuple[str, str]]) -> dict[str, int]:
    """Each part below everything that imports it. Raises: ValueError where parts import in a
    circle."""
    found: dict[str, int] = {}

    def depth(name: str, below: tuple[str, ...]) -> int:
        if name in below:
            raise ValueError(f"parts import in a circle: {' ← '.join((*below, name))}")
        if name not in found:
            above = [depth(a, (*below, name)) for a, b in edges if b == name]
            found[name] = 1 + max(above, default=-1)
        return found[name]

    for part in PARTS:
        depth(part.name, ())
    return found


def follows(edges: Counter[tuple[str, str]], one: str, other: str) -> bool:
    """``one`` imports ``other`` by way of a third part, too."""
    seen: set[str] = set()
    left = [b for a, b in edges if a == one and b != other]
    while left:
        name = left.pop()
        if name == other:
            return True
        if name not in seen:
            seen.add(name)
            left += [b for a, b in edges if a == name]
    return False


def hermes_modules() -> set[str]:
    """Top-level names that the installed Hermes brings; none where it is not installed."""
    try:
        files = importlib.metadata.files("hermes-agent") or []
    except importlib.metadata.PackageNotFoundError:
        return set()
    tops = {file.parts[0].removesuffix(".py") for file in files if file.suffix == ".py"}
    return {top for top in tops if re.fullmatch(r"[A-Za-z_]\w*", top)}


# The picture. Units are pixels.

WIDTH, BOX, TALL, STEP, ROW = 1120, 158, 50, 176, 88
LEFT = 40
COLOURS = {
    AGENT: ("#eaf1fb", "#2f6db5"),
    OPERATOR: ("#fdf3e3", "#b3741a"),
    SCREEN: ("#f3ecfa", "#7a4bb0"),
    WORKER: ("#e8f6ec", "#2c8a4b"),
    SHARED: ("#f4f5f7", "#4a5563"),
    BASE: ("#f4f5f7", "#4a5563"),
}


@dataclass(frozen=True, slots=True)
class Box:
    part: Part
    x: float
    y: float
    width: float = BOX

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


def draw(imports: Imports) -> str:
    edges = between_parts(imports)
    boxes, frames, height = _layout(edges)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'width="{WIDTH}" height="{height:.0f}" font-family="Helvetica, Arial, sans-serif">',
        "<title>Who imports whom</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="#5d6875"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="#ffffff"/>',
    ]
    for process, (x, y, width, tall) in frames.items():
        fill, line = COLOURS[process]
        out.append(
            f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{tall:.0f}" rx="10" '
            f'fill="{fill}" stroke="{line}" stroke-opacity=".35"/>'
        )
        out.append(_text(x + 12, y + 20, process, 13, line, weight="bold"))
    out += _arrows(edges, boxes, frames)
    for box in boxes.values():
        out += _box(box, edges)
    legend = "arrow: imports (left out: to another process, where others imply it) · "
    legend += "(n): so many of the other parts import it"
    out.append(_text(LEFT - 16, height - 14, legend, 12, "#5d6875"))
    return "\n".join([*out, "</svg>", ""])


Frame = tuple[float, float, float, float]


def _rows(edges: Counter[tuple[str, str]], names: list[str]) -> dict[str, int]:
    """Rows from the top, each part right above the highest one that it imports."""
    found = depths(edges)
    order = sorted({found[name] for name in names})
    rows = {name: order.index(found[name]) for name in names}
    for name in sorted(names, key=lambda name: -rows[name]):
        if found[name] == 0:  # nobody's: it may stand lower
            rows[name] = min((rows[b] for a, b in edges if a == name and b in rows), default=1) - 1
    return rows


def _layout(edges: Counter[tuple[str, str]]) -> tuple[dict[str, Box], dict[str, Frame], float]:
    """Boxes by name, frames by process, and the height of it all."""
    running = [part for part in PARTS if part.process not in (SHARED, BASE)]
    rows = _rows(edges, [part.name for part in running])
    top = 52
    boxes = {
        part.name: Box(part, LEFT + part.column * STEP, top + rows[part.name] * ROW)
        for part in running
    }
    bottom = top + max(rows.values()) * ROW + TALL + 16
    frames: dict[str, Frame] = {}
    for process in (AGENT, OPERATOR, SCREEN, WORKER):
        own = [box for box in boxes.values() if box.part.process == process]
        left, right = min(box.x for box in own), max(box.x for box in own) + BOX
        frames[process] = (left - 8, 16, right - left + 16, bottom - 16)
    whole = (LEFT - 8, STEP * 5 + BOX + 16)
    y: float = bottom + 46
    shared = [part for part in PARTS if part.process == SHARED]
    gap = (whole[1] - 24 - BOX) / (len(shared) - 1)
    for index, part in enumerate(shared):
        boxes[part.name] = Box(part, whole[0] + 12 + index * gap, y + 50)
    frames[SHARED] = (whole[0], y, whole[1], TALL + 66)
    y += TALL + 66 + 30
    base = [part for part in PARTS if part.process == BASE]
    x: float = whole[0] + 12
    for part, share in zip(base, (0.2, 0.3, 0.5), strict=True):
        room = whole[1] - 24 - 2 * 18
        boxes[part.name] = Box(part, x, y + 30, room * share)
        x += room * share + 18
    frames[BASE] = (whole[0], y, whole[1], TALL + 46)
    return boxes, frames, y + TALL + 46 + 36


def _arrows(
    edges: Counter[tuple[str, str]], boxes: dict[str, Box], frames: dict[str, Frame]
) -> Iterator[str]:
    drawn = sorted(
        (a, b)
        for a, b in edges
        if boxes[b].part.process != BASE
        and (boxes[b].part.process != SHARED or boxes[a].part.process == SHARED)
        and (boxes[a].part.process == boxes[b].part.process or not follows(edges, a, b))
    )
    for a, b in drawn:
        one, other = boxes[a], boxes[b]
        if one.part.process == SHARED:
            yield _arch(one, other)
            continue
        # Arrows leave and arrive in the order of where they go, so that they do not cross there.
        leaving = sorted((boxes[y] for x, y in drawn if x == a), key=lambda box: box.middle)
        arriving = sorted((boxes[x] for x, y in drawn if y == b), key=lambda box: box.middle)
        x1 = one.x + BOX * (leaving.index(other) + 1) / (len(leaving) + 1)
        x2 = other.x + BOX * (arriving.index(one) + 1) / (len(arriving) + 1)
        y1, y2 = one.y + TALL, other.y
        bend = min(60, (y2 - y1) * 0.6)
        yield _path(
            f"M{x1:.0f} {y1:.0f} C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} "
            f"{x2:.0f} {y2:.0f}"
        )
    for process, (x, y, width, tall) in frames.items():
        users = {boxes[a].part.process for a, b in edges if boxes[b].part.process == SHARED}
        if process in users and process != SHARED:
            middle = x + width / 2
            yield _path(f"M{middle:.0f} {y + tall:.0f} V{frames[SHARED][1] - 1:.0f}", width=2.2)


def _arch(one: Box, other: Box) -> str:
    """Within the shared row, from left to right: straight to a neighbour, over the others."""
    y = one.y + TALL / 2
    if other.x - one.x - BOX < BOX:
        return _path(f"M{one.x + BOX:.0f} {y:.0f} H{other.x - 1:.0f}")
    return _path(
        f"M{one.middle:.0f} {one.y:.0f} C{one.middle + 30:.0f} {one.y - 30:.0f} "
        f"{other.middle - 30:.0f} {one.y - 30:.0f} {other.middle:.0f} {one.y - 1:.0f}"
    )


def _box(box: Box, edges: Counter[tuple[str, str]]) -> Iterator[str]:
    fill, line = "#ffffff", COLOURS[box.part.process][1]
    yield (
        f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{TALL}" rx="6" '
        f'fill="{fill}" stroke="{line}" stroke-width="1.4"/>'
    )
    name = box.part.name
    if box.part.process in (SHARED, BASE):
        name += f"  ({len({a for a, b in edges if b == box.part.name})})"
    yield _text(box.middle, box.y + 21, name, 14, "#1b232c", anchor="middle", weight="bold")
    yield _text(box.middle, box.y + 38, box.part.meaning, 11.5, "#4a5563", anchor="middle")


def _path(d: str, width: float = 1.3) -> str:
    return (
        f'<path d="{d}" fill="none" stroke="#5d6875" stroke-width="{width}" '
        'marker-end="url(#tip)"/>'
    )


def _text(
    x: float,
    y: float,
    text: str,
    size: float,
    fill: str,
    *,
    anchor: str = "start",
    weight: str = "normal",
) -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{fill}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )


def main() -> None:
    Path(sys.argv[1]).write_text(draw(read()), encoding="utf-8")


if __name__ == "__main__":
    main()
