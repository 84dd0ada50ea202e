"""What a rule would have done: tried on the messages that the store keeps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from bdh_bridge.gates.blacklist import MAX_MESSAGE_CHARACTERS, RuleSet
from bdh_bridge.gates.blacklist_rules import Rule, parse_rule
from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.reader import SpanReader

#: Turns that a preview looks at, and seconds that it may take.
TURNS, SECONDS = 1_000, 1.5
#: Messages on which a rule may run out of time before the preview is ended.
TIMEOUTS = 5


@dataclass(frozen=True, slots=True)
class Message:
    """``text`` is as much as the store keeps; ``whole`` if that is all of it."""

    trace_id: str
    start_ns: int
    text: str
    whole: bool


@dataclass(frozen=True, slots=True)
class Preview:
    """``matches`` newest first. ``tried`` messages of ``turns``; ``cut`` of them only in part,
    ``absent`` not kept at all. ``slow``: the rule runs out of time."""

    matches: tuple[Message, ...]
    turns: int
    tried: int
    cut: int
    absent: int
    slow: bool = False

    @property
    def summary(self) -> str:
        """What was looked at, said exactly."""
        if not self.turns:
            return "No turns on record to try it on."
        if self.tried == 1:
            text = f"The last message {'matches' if self.matches else 'does not match'}"
        else:
            verb = "matches" if len(self.matches) == 1 else "match"
            text = f"{len(self.matches)} of the last {self.tried:,} messages {verb}"
        if self.cut:
            text += f"; {self.cut} {'is' if self.cut == 1 else 'are'} kept only in part"
        if self.absent:
            text += f"; of {self.absent} more the text is not kept"
        return f"{text}."


def messages(reader: SpanReader, limit: int = TURNS) -> list[Message]:
    """The users' messages of the latest turns, newest first; empty text where none is kept."""
    rows = reader.rows(
        "SELECT trace_id, start_ns, json_extract(attributes, ?) AS text,"
        " json_extract(attributes, ?) AS size FROM spans WHERE name = ?"
        " ORDER BY start_ns DESC LIMIT ?",
        (f'$."{attr.TURN_MESSAGE}"', f'$."{attr.TURN_MESSAGE_CHARACTERS}"', names.TURN, limit),
    )
    found = []
    for row in rows:
        text = str(row["text"] or "")
        size = row["size"] if isinstance(row["size"], int) else len(text)
        found.append(Message(row["trace_id"], row["start_ns"], text, size <= len(text)))
    return found


def preview(source: str, kept: Sequence[Message]) -> Preview:
    """Try one line of the blacklist, with the plugin's own matcher; bounded in time."""
    rules = RuleSet((parse_rule(source),))
    matches: list[Message] = []
    tried = cut = absent = timeouts = 0
    deadline = time.monotonic() + SECONDS
    for message in kept:
        if not message.text:
            absent += 1
            continue
        if time.monotonic() > deadline or timeouts >= TIMEOUTS:
            break
        checked = rules.check(message.text)
        tried += 1
        cut += not message.whole
        timeouts += bool(checked.unfinished)
        if checked.match:
            matches.append(message)
    return Preview(tuple(matches), len(kept), tried, cut, absent, timeouts > 0 or slow(source))


#: Texts on which patterns that backtrack without bound show it.
_HARD = ("a" * 5_000 + "!", "a " * 2_500 + "!", "1" * 5_000 + "x", "x" * MAX_MESSAGE_CHARACTERS)


def slow(source: str) -> bool:
    """Whether a rule can run out of its time; it then counts as no match."""
    rule = parse_rule(source)
    if rule.kind != "regex" or not rule.usable:
        return False
    rules = RuleSet((rule,))
    return any(rules.check(text).unfinished for text in _HARD)


def problem(rule: Rule) -> str:
    """Why a rule can't be used, or empty."""
    return rule.error[:1].upper() + rule.error[1:] if rule.error else ""


def hits(reader: SpanReader, since_ns: int) -> dict[str, tuple[int, int]]:
    """Rule text → how many turns it stopped since then, and when last (Unix nanoseconds)."""
    rows = reader.rows(
        "SELECT json_extract(attributes, ?) AS rule, count(DISTINCT trace_id) AS turns,"
        " max(start_ns) AS last FROM spans"
        " WHERE gate = 'blacklist' AND decision = 'skip' AND start_ns >= ? GROUP BY 1",
        (f'$."{attr.GATE_RULE}"', since_ns),
    )
    return {str(row["rule"]): (row["turns"], row["last"]) for row in rows if row["rule"]}
