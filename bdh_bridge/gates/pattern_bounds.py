"""A bound on regular expressions before they are compiled, which itself has no time limit.

Compiling expands counted repetitions, so ``(a{1000}){1000}`` costs as much as a million
characters. The size measured here is that expansion: every item counts once for each
repetition around it.
"""

from __future__ import annotations

import re

MAX_CHARACTERS = 1_000
MAX_SIZE = 20_000
MAX_DEPTH = 25

_COMMENT = re.compile(r"\(\?#[^)]*\)")
_VERBOSE = re.compile(r"\(\?[a-zA-Z0-9]*x")
_COUNT = re.compile(r"\{(\d*)(?:(,)(\d*))?\}")


def check_pattern(pattern: str) -> str:
    """Why ``pattern`` must not be compiled, or ``""``."""
    if len(pattern) > MAX_CHARACTERS:
        return f"it is longer than {MAX_CHARACTERS} characters"
    if _VERBOSE.search(pattern):
        return "the verbose flag is not for rules of one line"
    # Comments and, under the verbose flag, blanks may stand between an item and its count.
    pattern = _COMMENT.sub("", pattern)
    sizes = [0]  # of the open groups, outermost first
    last = 0  # size of the item that a following count repeats
    position = 0
    while position < len(pattern):
        char = pattern[position]
        count = _COUNT.match(pattern, position) if char == "{" else None
        if count and last:
            repeated = last * (_most(count) - 1)
            sizes[-1] += repeated
            last += repeated
            position = count.end()
        elif char == "(":
            sizes.append(1)
            if len(sizes) > MAX_DEPTH:
                return f"it is nested deeper than {MAX_DEPTH} groups"
            last, position = 0, position + 1
        elif char == ")":
            last = sizes.pop() if len(sizes) > 1 else 1
            sizes[-1] += last
            position += 1
        elif char in "?*+|":
            position += 1
        else:
            position = _class_end(pattern, position) if char == "[" else position + 1
            position += char == "\\"
            last = 1
            sizes[-1] += 1
        if sum(sizes) > MAX_SIZE:
            return f"its repetitions amount to more than {MAX_SIZE} items"
    return ""


def _most(count: re.Match[str]) -> int:
    """The repetitions that cost: the upper bound, or the lower one where there is none."""
    digits = count[3] or count[1] or "1"
    return max(min(int(digits[:9]), MAX_SIZE * 10), 1)


def _class_end(pattern: str, start: int) -> int:
    """Behind the ``]`` of the class that begins at ``start``, or the pattern's end."""
    position = start + 1
    if pattern[position : position + 1] == "^":
        position += 1
    if pattern[position : position + 1] == "]":
        position += 1
    while position < len(pattern) and pattern[position] != "]":
        position += 2 if pattern[position] == "\\" else 1
    return position + 1
