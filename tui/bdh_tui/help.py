"""What the marks mean, and every key of the screen that is shown."""

from __future__ import annotations

from collections.abc import Iterable

from textual.binding import Binding, BindingType
from textual.content import Content

from bdh_tui.filters import FIELDS
from bdh_tui.lines import LineList
from bdh_tui.text import BAD, GOOD, HEAD, MUTED, SKIP, Line

_MARKS = (
    ("✓", GOOD, "a gate allowed, or it is done: notes were given, the graph learned"),
    ("✗", SKIP, "a gate stopped this path; the word beside it says why"),
    ("…", SKIP, "not decided or not delivered yet; nothing is lost"),
    ("!", BAD, "something failed, or needs your decision"),
    ("·", MUTED, "nothing to do"),
)
_FILTERS = (
    "gate:blacklist decision:skip   one and the same gate has both",
    "read:unreachable write:trouble how the two paths ended (write:waiting, write:trouble)",
    "platform:cron session:abc      where it came from",
    "provider:nous hop:timeout      who was asked on the way, and what came of it",
    "hybrid<0.4 took>2s             numbers: hybrid, vector, terms, notes, took",
    "text:siren -platform:cron      words in the message; a minus turns one round",
)
_KEYS = {
    "slash": "/",
    "question_mark": "?",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "enter": "Enter",
    "space": "Space",
    "escape": "Esc",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "delete": "Del",
    "ctrl+s": "Ctrl+S",
    "ctrl+p": "Ctrl+P",
}


def text(title: str, pane: Iterable[BindingType], app: Iterable[BindingType]) -> Content:
    """``pane`` and ``app``: the bindings of the screen that is shown, and those of all."""
    parts = [Content.styled("Marks", HEAD)]
    parts += [
        Line().add("  ").add(mark, style).add(f"  {meaning}").content()
        for mark, style, meaning in _MARKS
    ]
    for name, bindings in (
        (f"Keys of {title}", pane),
        ("Keys in lists", LineList.BINDINGS),
        ("Keys everywhere", [*app, Binding("ctrl+p", "command_palette", "Command palette")]),
    ):
        parts += [Content(""), Content.styled(name, HEAD), *_keys(bindings)]
    parts += [Content(""), Content.styled("Filter of Live", HEAD)]
    parts += [Content(f"  {line}") for line in _FILTERS]
    parts.append(Content.styled(f"  fields: {', '.join(FIELDS)}", MUTED))
    return Content("\n").join(parts)


def _keys(bindings: Iterable[BindingType]) -> list[Content]:
    told = []
    for binding in bindings:
        if isinstance(binding, Binding) and binding.description:
            keys = "  ".join(_KEYS.get(key.strip(), key.strip()) for key in binding.key.split(","))
            told.append(
                Line().add("  ").cell(keys, 14, "$accent").add(binding.description).content()
            )
    return told
