"""The blacklist's language: text to rules and back. Nothing here touches a file.

One rule a line. ``#`` starts a comment, ``#off:`` a rule that is switched off, ``re:`` a
regular expression (case ignored, dot matches newline); any other line is a piece of text that
is looked for, ignoring case. A text that begins like one of these is written with a backslash
before it (``\\#``, ``\\re:``, ``\\\\``).
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from bdh_bridge.gates.pattern_bounds import check_pattern

OFF = "#off:"
REGEX = "re:"
MAX_LITERAL_CHARACTERS = 2_000
#: Rules in use; each one costs time in every turn.
MAX_RULES = {"literal": 2_000, "regex": 300}
#: Rules of any kind that are looked at, so that a senseless file costs no seconds.
MAX_LINES = 5_000

#: What a useful pattern can't match all of: unrelated letters, digits and scripts.
_PROBES = tuple(char * 64 for char in ("a", "7", "é", "漢"))
_LINE_END = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule and where it stands. ``line`` counts from 1; ``source`` is the line as written.

    ``pattern`` is the literal without its escape, or the expression without ``re:``.
    ``comment`` is the block of comments directly above. ``error`` says why the rule is not
    used; ``compiled`` is set on usable expressions.
    """

    line: int
    source: str
    kind: Literal["literal", "regex"]
    pattern: str
    enabled: bool = True
    comment: str = ""
    error: str = ""
    compiled: Any = None

    @property
    def usable(self) -> bool:
        return self.enabled and not self.error


def parse(text: str) -> list[Rule]:
    """Every rule of a blacklist in order, the unusable and the switched off ones too."""
    rules: list[Rule] = []
    comments: list[str] = []
    used = {"literal": 0, "regex": 0}
    for number, line in enumerate(_LINE_END.split(text.removeprefix("\ufeff")), start=1):
        source = line.strip()
        if not source:
            comments.clear()
        elif source.startswith("#") and not source.startswith(OFF):
            comments.append(source.lstrip("#").strip())
        else:
            rule = parse_rule(source, number, "\n".join(comments))
            comments.clear()
            if rule.usable:
                used[rule.kind] += 1
                if used[rule.kind] > MAX_RULES[rule.kind]:
                    error = f"this and all later rules: over {MAX_RULES[rule.kind]} of this kind"
                    return [*rules, replace(rule, error=error, compiled=None)]
            rules.append(rule)
            if len(rules) == MAX_LINES:
                return [*rules, replace(rule, enabled=True, error="all after it: too many lines")]
    return rules


def parse_rule(source: str, line: int = 1, comment: str = "") -> Rule:
    """One line that is neither blank nor a comment; ``error`` is set where it can't be used."""
    enabled = not source.startswith(OFF)
    body = source if enabled else source.removeprefix(OFF).strip()
    is_regex = body.startswith(REGEX)
    kind: Literal["literal", "regex"] = "regex" if is_regex else "literal"
    pattern = body.removeprefix(REGEX).strip() if is_regex else _unescape(body)
    compiled, error = None, _unusable(body, pattern)
    if is_regex and not error:
        # Switched off ones too: an editor shows what is wrong before they are switched on.
        compiled, error = compile_pattern(pattern)
    return Rule(line, source, kind, pattern, enabled, comment, error, compiled)


@lru_cache(maxsize=512)  # after an edit the other rules need no compiling again
def compile_pattern(pattern: str) -> tuple[Any, str]:
    """A compiled expression and ``""``, or None and why it is refused. Bounded in time."""
    import regex

    error = check_pattern(pattern)
    if error:
        return None, error
    try:
        compiled = regex.compile(pattern, regex.IGNORECASE | regex.DOTALL)
    except (regex.error, RecursionError, OverflowError, MemoryError, ValueError) as problem:
        return None, f"invalid expression: {problem}"
    if matches_everything(compiled):
        return None, "it matches everything, which would silence the bridge"
    return compiled, ""


def search(compiled: Any, text: str, seconds: float) -> Any:
    """Search for so long at most. Raises: TimeoutError.

    The interpreter's lock is kept: let go, busy threads take it for tens of milliseconds, and
    the limit then strikes expressions that needed microseconds.
    """
    return compiled.search(text, timeout=seconds, concurrent=False)


def matches_everything(compiled: Any) -> bool:
    """Does it match nothing at all, or each of several texts that have nothing in common?"""
    try:
        return bool(search(compiled, "", 0.002)) or all(
            search(compiled, probe, 0.002) for probe in _PROBES
        )
    except TimeoutError:
        return False  # what it takes in a turn is bounded there


def is_slow(compiled: Any) -> bool:
    """May it run out of time on a message? For editors, which can wait a moment for the answer."""
    try:
        for probe in _PROBES:
            search(compiled, f"{probe * 50}!", 0.1)
    except TimeoutError:
        return True
    return False


def fold(text: str) -> str:
    """The form in which literals and messages are compared."""
    return unicodedata.normalize("NFC", text).casefold()


def literal_line(text: str) -> str:
    """The line that blocks prompts holding ``text``: its first line that is not blank, escaped.

    Raises: ValueError if there is no such line.
    """
    for line in _LINE_END.split(text):
        literal = line.replace("\0", "").strip()[:MAX_LITERAL_CHARACTERS].strip()
        if literal:
            escape = literal.startswith(("#", REGEX, "\\"))
            return f"\\{literal}" if escape else literal
    raise ValueError("a blank text can't be blacklisted")


def _unescape(body: str) -> str:
    return body[1:] if body.startswith(("\\#", f"\\{REGEX}", "\\\\")) else body


def _unusable(body: str, pattern: str) -> str:
    if "\0" in body or "\ufffd" in body:
        return "the line is not text"
    if not pattern:
        return "it matches everything, which would silence the bridge"
    if len(pattern) > MAX_LITERAL_CHARACTERS:
        return f"it is longer than {MAX_LITERAL_CHARACTERS} characters"
    return ""
