"""The bridge's block in ``.env``: marked lines at its end, so that they win and can go again."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path

START = "# >>> bdh-hermes-bridge (by bdh-bridge install; bdh-bridge uninstall removes it)"
STOP = "# <<< bdh-hermes-bridge"
_BLOCK = re.compile(
    rf"(?P<gap>(?:\r?\n)?){re.escape(START)}\r?\n(?P<body>.*?){re.escape(STOP)}(?:\r?\n|\Z)",
    re.DOTALL,
)
_PLAIN = re.compile(r"[A-Za-z0-9_./:@,+\-\[\]]*")


def values(text: str) -> dict[str, str]:
    """Every variable of the file, as Hermes reads it."""
    from dotenv import dotenv_values

    found = dotenv_values(stream=io.StringIO(text), interpolate=True)
    return {name: value for name, value in found.items() if value is not None}


def block(text: str) -> dict[str, str]:
    """The variables of the block; empty where there is none."""
    match = _BLOCK.search(text)
    return values(match.group("body")) if match else {}


def unreadable_lines(path: Path) -> list[int]:
    """Numbers of the lines that Hermes can't make out, and leaves out; none if there is no text."""
    from dotenv.parser import parse_stream

    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError):
        return []
    return [one.original.line for one in parse_stream(io.StringIO(text)) if one.error]


def with_block(text: str, variables: Mapping[str, str]) -> str:
    """``text`` with a block of ``variables`` at its end, in the place of an earlier one."""
    rest = without_block(text)
    if not variables:
        return rest
    end = "\r\n" if "\r\n" in rest else "\n"
    if rest and not rest.endswith("\n"):
        rest += end
    gap = end if rest else ""
    lines = [START, *(f"{name}={_quoted(value)}" for name, value in variables.items()), STOP]
    return rest + gap + "".join(f"{line}{end}" for line in lines)


def without_block(text: str) -> str:
    return _BLOCK.sub("", text)


def _quoted(value: str) -> str:
    """As a line of ``.env``. Raises: ValueError for a line break."""
    if "\n" in value or "\r" in value:
        raise ValueError("a value is one line")
    if _PLAIN.fullmatch(value):
        return value
    # Within single quotes nothing is expanded.
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
