"""One turn on one line, in the columns that the width allows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from textual.content import Content

from bdh_bridge.operator.wording import short
from bdh_otel.tree import duration
from bdh_tui.text import BAD, GOOD, MUTED, SKIP, Align, Line, clock, plain
from bdh_tui.turns import TROUBLE, WAITING, GateMark, TurnSummary

MARKS = {"allow": ("✓", GOOD), "skip": ("✗", SKIP), "failed": ("!", BAD), "open": ("…", SKIP)}


@dataclass(frozen=True, slots=True)
class Column:
    """``width`` 0 takes what is left; shown from ``wide`` cells of the whole line on."""

    title: str
    width: int
    wide: int = 0
    align: Align = "left"


COLUMNS = (
    Column("time", 8),
    Column("platform", 10, 90),
    Column("session", 14, 150),
    Column("message", 0),
    Column("read gates", 10, 112),
    Column("read", 17),
    Column("hybrid", 6, 126, "right"),
    Column("vector", 6, 145, "right"),
    Column("terms", 5, 145, "right"),
    Column("write gates", 11, 112),
    Column("write", 17),
    Column("took", 7, 0, "right"),
)


def layout(width: int) -> list[tuple[Column, int]]:
    """The columns for a line of ``width`` cells, each with its own width."""
    shown = [column for column in COLUMNS if width >= column.wide]
    widths = [column.width for column in shown]
    left = width - sum(widths) - len(shown) - 1
    return [
        (column, max(left, 8) if not column.width else own)
        for column, own in zip(shown, widths, strict=True)
    ]


def header(width: int) -> Content:
    line = Line().add(" ")
    for column, own in layout(width):
        line.cell(column.title, own, MUTED, column.align).add(" ")
    return line.content()


def draw(turn: TurnSummary, width: int) -> Content:
    line = Line().add(" ")
    for column, own in layout(width):
        if column.title.endswith("gates"):
            _strip(line, turn.gates_of(column.title.partition(" ")[0]), own)
        elif column.title == "read":
            _outcome(line, *_read(turn), own)
        elif column.title == "write":
            _outcome(line, *_write(turn), own)
        else:
            text, style = _plain_cell(turn, column.title, own)
            line.cell(text, own, style, column.align)
        line.add(" ")
    return line.content()


def spoken(turn: TurnSummary) -> str:
    """The same as a sentence, for a reader of screens."""
    read_mark, read = _read(turn)[1:]
    write_mark, write = _write(turn)[1:]
    return (
        f"{clock(turn.start_ns)} {plain(turn.platform, 20) or 'unknown platform'}: "
        f"{plain(turn.message, 120) or 'message not kept'}; "
        f"read: {read or read_mark}; write: {write or write_mark}; "
        f"{duration(turn.duration_ns)}"
    )


def _plain_cell(turn: TurnSummary, title: str, width: int) -> tuple[str, str]:
    if title == "time":
        return clock(turn.start_ns), MUTED
    if title == "platform":
        return plain(turn.platform, 20), ""
    if title == "session":
        return plain(turn.session, 40), MUTED
    if title == "message":
        kept = plain(turn.message, 2 * width)
        return (kept, "") if kept else ("(message not kept)", MUTED)
    if title in ("hybrid", "vector"):
        score = turn.hybrid if title == "hybrid" else turn.vector
        return ("" if score is None else f"{score:.2f}"), ""
    if title == "terms":
        return ("" if turn.terms is None else str(turn.terms)), ""
    return duration(turn.duration_ns), MUTED if turn.end_ns is not None else SKIP


def _strip(line: Line, gates: tuple[GateMark, ...], width: int) -> None:
    for kind, group in groupby(gates[:width], lambda gate: gate.mark):
        mark, style = MARKS[kind]
        line.add(mark * len(list(group)), style)
    line.add(" " * (width - len(gates[:width])))


def _outcome(line: Line, style: str, mark: str, words: str, width: int) -> None:
    line.add(f"{mark} ", style).cell(words, width - 2, BAD if style == BAD else "")


def _read(turn: TurnSummary) -> tuple[str, str, str]:
    """Style, mark and words of how the read path ended."""
    code = turn.read
    if code == "context":
        return GOOD, "✓", f"{turn.notes} note{'' if turn.notes == 1 else 's'}"
    if code == "failed" or any(gate.mark == "failed" for gate in turn.gates_of("read")):
        failed = next((g.reason for g in turn.gates_of("read") if g.mark == "failed"), "")
        return BAD, "!", short(failed or "failed")
    if not code and turn.end_ns is None:
        return SKIP, "…", ""
    if code in ("", "no_context", "already_present"):
        return MUTED, "·", short(code)
    return SKIP, "✗", short(code)


def _write(turn: TurnSummary) -> tuple[str, str, str]:
    code = turn.write
    if code == "delivered":
        return GOOD, "✓", short(code)
    if code in TROUBLE:
        return BAD, "!", short(code)
    if code in WAITING or (not code and turn.end_ns is None):
        return SKIP, "…", short(code)
    return (SKIP, "✗", short(code)) if code else (MUTED, "·", "")
