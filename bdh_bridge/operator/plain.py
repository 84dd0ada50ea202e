"""Text of others made fit for one line, and figures in words; without any terminal library.

What explains a turn is needed in chats, too, where no terminal library is loaded.
"""

from __future__ import annotations

import time

from bdh_otel.escape import escape, escape_lines

#: Style names that every theme of the application defines (:mod:`bdh_tui.themes`).
GOOD, SKIP, BAD = "$good", "$skip", "$bad"
HEAD, MUTED, ACCENT = "bold", "$muted", "$accent"


def plain(text: str, limit: int = 500) -> str:
    """``text`` on one line of at most ``limit`` characters, escaped."""
    squeezed = " ".join(text[: 4 * limit].split())
    return escape(squeezed if len(squeezed) <= limit else squeezed[: limit - 1] + "…")


def lines(text: str, limit: int = 100_000) -> str:
    """``text`` with its line breaks, escaped."""
    return escape_lines(text[:limit].replace("\r\n", "\n").replace("\t", "    "))


def clock(time_ns: int) -> str:
    """``14:03:27``; ``03Nov 14h`` where it isn't today's."""
    moment = time.localtime(time_ns / 1e9)
    today = time.localtime()
    same = (moment.tm_year, moment.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M:%S" if same else "%d%b %Hh", moment)


def age(seconds: float) -> str:
    """``12 s``, ``5 min``, ``3 h``, ``2 d``."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def count(amount: int, what: str) -> str:
    """``1 note``, ``1,234 notes``."""
    return f"{amount:,} {what}{'' if amount == 1 else 's'}"


def number(value: float) -> str:
    """``1,234``; one decimal for what is small and broken."""
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:,.1f}"
