"""Long lines, broken where a terminal ends instead of in the middle of a word."""

from __future__ import annotations

import re
import shutil
import sys
import unicodedata
from collections.abc import Iterator
from typing import TextIO

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
#: A duration stays with its unit.
_PIECE = re.compile(r"\x1b\[[0-9;]*m| +|[\d.]+ (?:ms|s|min)\b|[^ \x1b]+")
_RESET = "\x1b[0m"


def width_of(stream: TextIO = sys.stdout) -> int:
    """Columns of the terminal behind ``stream``; 0, as wide as may be, for anything else."""
    return shutil.get_terminal_size((0, 0)).columns if stream.isatty() else 0


def columns(text: str) -> int:
    """Columns that ``text`` takes on a terminal: wide characters two, colours and accents none."""
    plain = _COLOUR.sub("", text)
    if plain.isascii():
        return len(plain)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in plain)
    marks = sum(unicodedata.category(character) in ("Mn", "Me") for character in plain)
    return len(plain) + wide - marks


def wrapped(first: str, rest: str, text: str, width: int) -> Iterator[str]:
    """``first`` and ``text``; what is beyond ``width`` columns on further lines after ``rest``.

    A line is broken at blanks alone, so one of a single long word may be longer. A colour goes on
    in the next line, but doesn't touch ``rest``.
    """
    fits = columns(first) + columns(text) <= width
    if not width or fits or columns(rest) * 2 > width:  # or so deep that there is no room to go on
        yield first + text
        return
    line, used, begun = first, columns(first), False
    colour = blank = ""
    for piece in _PIECE.findall(text):
        if piece.startswith("\x1b"):
            line += blank + piece
            used += len(blank)
            blank, colour = "", "" if piece == _RESET else piece
        elif piece.startswith(" "):
            blank += piece
        else:
            size = columns(piece)
            if begun and used + len(blank) + size > width:
                yield line.rstrip(" ") + (_RESET if colour else "")
                line, used, blank = rest + colour, columns(rest), ""
            line += blank + piece
            used += len(blank) + size
            blank, begun = "", True
    yield line
