"""Changes to a blacklist's text that leave every other line, its end and its place alone.

Lines count from 1, as in :class:`~bdh_bridge.gates.blacklist_rules.Rule`.
All raise IndexError for a line that isn't there, ValueError for a rule that holds a line break.
"""

from __future__ import annotations

import re

from bdh_bridge.gates.blacklist_rules import OFF

_LINE_END = re.compile(r"(\r\n|\n|\r)")
_BYTE_ORDER_MARK = "\ufeff"


def append_rule(text: str, source: str, comment: str = "") -> str:
    """Add a rule at the end, below its comment where there is one."""
    ends = _LINE_END.findall(text)
    end = ends[-1] if ends else "\n"
    comments = [f"# {line.strip()}" for line in comment.splitlines() if line.strip()]
    if text and not text.endswith(("\n", "\r", _BYTE_ORDER_MARK)):
        text += end
    return text + "".join(line + end for line in [*comments, _one_line(source)])


def replace_rule(text: str, line: int, source: str) -> str:
    parts = _parts(text, line)
    parts[2 * line - 2] = _one_line(source)
    return _joined(text, parts)


def remove_rule(text: str, line: int) -> str:
    parts = _parts(text, line)
    del parts[2 * line - 2 : 2 * line]
    return _joined(text, parts)


def set_enabled(text: str, line: int, enabled: bool) -> str:
    """Switch a rule on or off; its text stays in the file."""
    source = _parts(text, line)[2 * line - 2].strip()
    bare = source.removeprefix(OFF).strip()
    return replace_rule(text, line, bare if enabled else f"{OFF} {bare}")


def _parts(text: str, line: int) -> list[str]:
    """Lines and line ends by turns."""
    parts = _LINE_END.split(text.removeprefix(_BYTE_ORDER_MARK))
    if not 1 <= line <= (len(parts) + 1) // 2:
        raise IndexError(f"there is no line {line}")
    return parts


def _joined(text: str, parts: list[str]) -> str:
    mark = _BYTE_ORDER_MARK if text.startswith(_BYTE_ORDER_MARK) else ""
    return mark + "".join(parts)


def _one_line(source: str) -> str:
    if _LINE_END.search(source):
        raise ValueError("a rule is one line")
    return source
