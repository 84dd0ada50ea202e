"""The filter's language: ``gate:blacklist decision:skip platform:cron provider:nous text:…``.

Words are joined by *and*; ``-`` before one turns it round; quotes hold blanks together; a word
without a field looks into message, titles and session. ``gate``, ``decision``, ``reason`` and
``path`` are said of one and the same gate. ``write:waiting`` is what is on its way to the graph,
``write:trouble`` what needs somebody's look. ``hybrid``, ``vector`` and ``took`` (seconds) take
``>`` and ``<``. Letters' case never matters.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bdh_bridge.operator.wording import short
from bdh_tui.turns import TROUBLE, WAITING, GateMark, TurnSummary

Test = Callable[[TurnSummary], bool]

_GATE_FIELDS: dict[str, Callable[[GateMark], str]] = {
    "gate": lambda mark: mark.gate,
    "decision": lambda mark: mark.mark,
    "reason": lambda mark: f"{mark.reason} {short(mark.reason)}",
    "path": lambda mark: mark.path,
}
_TEXT_FIELDS: dict[str, Callable[[TurnSummary], Iterable[str]]] = {
    "text": lambda turn: (turn.message,),
    "platform": lambda turn: (turn.platform,),
    "session": lambda turn: (turn.session,),
    "model": lambda turn: (turn.model,),
    "trace": lambda turn: (turn.trace_id,),
    "route": lambda turn: (turn.route,),
    "read": lambda turn: (turn.read, short(turn.read)),
    "write": lambda turn: (turn.write, short(turn.write), _write_class(turn.write)),
    "closed": lambda turn: (turn.close_reason,),
    "title": lambda turn: turn.titles,
    "error": lambda turn: turn.failures,
    "provider": lambda turn: (provider for provider, _ in turn.providers),
    "hop": lambda turn: (outcome for _, outcome in turn.providers),
}
_NUMBERS: dict[str, Callable[[TurnSummary], float | None]] = {
    "hybrid": lambda turn: turn.hybrid,
    "vector": lambda turn: turn.vector,
    "terms": lambda turn: turn.terms,
    "notes": lambda turn: turn.notes,
    "took": lambda turn: None if turn.duration_ns is None else turn.duration_ns / 1e9,
}
FIELDS = (*_GATE_FIELDS, *_TEXT_FIELDS, *_NUMBERS)
_NUMBER = re.compile(r"([a-z]+)(<=|>=|<|>|:)(\d+(?:\.\d+)?)(ms|s)?")


class FilterError(ValueError):
    """The filter can't be understood; ``str()`` says why."""


@dataclass(frozen=True, slots=True)
class Filter:
    """``Filter.parse("")`` lets everything pass."""

    source: str
    tests: tuple[Test, ...]

    @classmethod
    def parse(cls, source: str) -> Filter:
        """Raises: FilterError."""
        try:
            words = shlex.split(source, posix=True)
        except ValueError as error:
            raise FilterError("a quote is not closed") from error
        gate_words: list[tuple[str, str]] = []
        tests: list[Test] = []
        for word in words:
            negated = word.startswith("-") and len(word) > 1
            bare = word[1:] if negated else word
            field, colon, value = bare.partition(":")
            if colon and field.lower() in _GATE_FIELDS and not negated:
                gate_words.append((field.lower(), value.casefold()))
                continue
            test = _test(bare)
            tests.append(_not(test) if negated else test)
        if gate_words:
            tests.append(_gate_test(gate_words))
        return cls(source.strip(), tuple(tests))

    def __call__(self, turn: TurnSummary) -> bool:
        return all(test(turn) for test in self.tests)

    def __bool__(self) -> bool:
        return bool(self.tests)


def _test(word: str) -> Test:
    match = _NUMBER.fullmatch(word.lower())
    if match and match[1] in _NUMBERS:
        return _number_test(match[1], match[2], float(match[3]), match[4])
    field, colon, value = word.partition(":")
    name = field.lower()
    if not colon:
        wanted = word.casefold()
        return lambda turn: _holds((turn.message, turn.session, *turn.titles), wanted)
    if name in _GATE_FIELDS:
        return _gate_test([(name, value.casefold())])
    if name in _NUMBERS:
        raise FilterError(f"{name} takes a number, such as {name}>0.5")
    if name not in _TEXT_FIELDS:
        raise FilterError(f"there is no field {field!r}; there are: {', '.join(FIELDS)}")
    read, wanted_value = _TEXT_FIELDS[name], value.casefold()
    return lambda turn: _holds(read(turn), wanted_value)


def _gate_test(words: list[tuple[str, str]]) -> Test:
    def test(turn: TurnSummary) -> bool:
        return any(
            all(value in _GATE_FIELDS[field](mark).casefold() for field, value in words)
            for mark in turn.gates
        )

    return test


def _number_test(field: str, relation: str, bound: float, unit: str | None) -> Test:
    read = _NUMBERS[field]
    if unit == "ms":
        bound /= 1_000
    compare: dict[str, Callable[[float], bool]] = {
        "<": lambda value: value < bound,
        ">": lambda value: value > bound,
        "<=": lambda value: value <= bound,
        ">=": lambda value: value >= bound,
        ":": lambda value: value == bound,
    }

    def test(turn: TurnSummary) -> bool:
        value = read(turn)
        return value is not None and compare[relation](value)

    return test


def _not(test: Test) -> Test:
    return lambda turn: not test(turn)


def _write_class(code: str) -> str:
    return "waiting" if code in WAITING else "trouble" if code in TROUBLE else ""


def _holds(texts: Iterable[str], wanted: str) -> bool:
    return any(wanted in text.casefold() for text in texts)
