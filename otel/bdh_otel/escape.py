"""Text of others, made fit for a terminal.

What people write, and what files and peers contain, may hold escape sequences that recolour,
retitle or overwrite the operator's screen, and invisible characters that make a line read as
something else. Here they become visible.
"""

from __future__ import annotations

import unicodedata

#: Unicode categories that become visible: controls, format characters (bidi overrides and
#: zero-width ones among them), half surrogates, line and paragraph separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


class _Visible(dict[int, str]):
    """Code point → what is shown for it; filled as characters come along."""

    def __missing__(self, point: int) -> str:
        shown = chr(point)
        if point < 0x20:
            shown = chr(0x2400 + point)  # ␀ … ␟
        elif point == 0x7F:
            shown = "␡"
        elif unicodedata.category(shown) in _HIDDEN:
            width = 2 if point < 0x100 else 4 if point < 0x10000 else 8
            shown = f"\\{ {2: 'x', 4: 'u', 8: 'U'}[width] }{point:0{width}x}"
        self[point] = shown
        return shown


_visible = _Visible()
_visible_lines = _Visible({0x0A: "\n"})


def escape(text: str) -> str:
    """``text`` on one line: line breaks and tabs are made visible as well."""
    return text if text.isprintable() else text.translate(_visible)


def escape_lines(text: str) -> str:
    """``text`` with its line breaks kept."""
    return text if text.isprintable() else text.translate(_visible_lines)


def one_line(text: str, limit: int) -> str:
    """``text`` for a place of ``limit`` characters: blanks run together, then escaped."""
    squeezed = " ".join(text[: 4 * limit].split())
    cut = squeezed if len(squeezed) <= limit else squeezed[: limit - 1] + "…"
    return escape(cut)
