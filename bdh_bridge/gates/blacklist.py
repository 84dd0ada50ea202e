"""Gate ``blacklist``: prompts that the operator keeps out of the graph.

The file is looked at in every turn (a ``stat``) and parsed when it changed, so an edit holds
from the next message on. Only the first :data:`MAX_MESSAGE_CHARACTERS` of a message are looked
at. Literals are all tried; expressions have a time limit each and one for all of them together.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bdh_bridge.gates.blacklist_file import Fingerprint, fingerprint, read
from bdh_bridge.gates.blacklist_rules import Rule, fold, parse, search
from bdh_bridge.gates.decision import Decision, GatePath, allow, skip
from bdh_bridge.gates.reasons import Reason
from bdh_bridge.gates.trie import trie_pattern
from bdh_otel import attributes as attr

if TYPE_CHECKING:
    from bdh_bridge.paths import BridgePaths
    from bdh_bridge.settings import Settings

log = logging.getLogger(__name__)

NAME = "blacklist"
FILE_NAME = "prompt_blacklist.txt"
PLUGIN_FOLDER = "bdh-hermes-bridge"
MAX_MESSAGE_CHARACTERS = 20_000
#: Seconds of work for one expression, and for all of them in one turn.
RULE_TIMEOUT, LIST_TIMEOUT = 0.02, 0.05
#: Lines named in the log after one change of the file, and warnings in a process's life.
MAX_NAMED, MAX_WARNINGS = 10, 200
#: Characters of each literal that are looked for in one pass, before whole ones are.
PREFILTER = 12


@dataclass(frozen=True, slots=True)
class Match:
    rule: Rule

    @property
    def line(self) -> int:
        return self.rule.line


@dataclass(frozen=True, slots=True)
class Checked:
    """What a look through the list gave.

    ``rules``: how many are in use; ``errors``: how many can't be; ``unfinished``: those that ran
    out of time on this text and so count as no match.
    """

    match: Match | None
    rules: int
    errors: int = 0
    unfinished: tuple[Rule, ...] = ()


def resolve_blacklist(settings: Settings, paths: BridgePaths) -> Path:
    """The file that plugin, command line and TUI all mean; it need not exist.

    ``BDH_PROMPT_BLACKLIST_FILE`` (relative to the Hermes home), else the one beside a cloned
    plugin where there is one, else the home's own.
    """
    configured = settings.prompt_blacklist_file.strip()
    if configured:
        return paths.hermes_home / Path(configured).expanduser()
    beside = paths.hermes_home / "plugins" / PLUGIN_FOLDER / FILE_NAME
    return beside if beside.exists() else paths.blacklist


def blacklisted(path: GatePath, text: str, blacklist: Blacklist) -> Decision:
    checked = blacklist.check(text)
    details: dict[str, Any] = {attr.GATE_RULES: checked.rules}
    unusable = checked.errors + len(checked.unfinished)
    if unusable:
        details[attr.GATE_RULE_ERRORS] = unusable
    if checked.match:
        rule = checked.match.rule
        details[attr.GATE_RULE_LINE] = rule.line
        return skip(NAME, path, Reason.BLACKLISTED, rule.source, **details)
    if checked.unfinished:
        rule = checked.unfinished[0]
        details[attr.GATE_RULE_LINE] = rule.line
        return allow(NAME, path, Reason.RULE_TIMED_OUT, rule.source, **details)
    reason = Reason.NO_RULE_MATCHED if checked.rules else Reason.NO_RULES
    return allow(NAME, path, reason, **details)


class Blacklist:
    """A live blacklist. ``path`` may be a function where the place itself can change.

    Never raises: a file that can't be read is a warning, and the rules read before still hold.
    """

    def __init__(self, path: Path | Callable[[], Path]) -> None:
        self._find: Callable[[], Path] = (lambda: path) if isinstance(path, Path) else path
        self._lock = threading.Lock()
        self._seen: tuple[Path, Fingerprint | None] | None = None
        self._rules = RuleSet(())
        self._warned: set[str] = set()

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Every rule of the file as it is now, the unusable and the switched off ones too."""
        return self._current().rules

    @property
    def errors(self) -> tuple[Rule, ...]:
        """The enabled rules that can't be used, each with its ``error``."""
        return self._current().errors

    def match(self, text: str) -> Match | None:
        """The first rule that matches, literals before expressions."""
        return self.check(text).match

    def check(self, text: str) -> Checked:
        checked = self._current().check(text[:MAX_MESSAGE_CHARACTERS])
        for rule in checked.unfinished:
            self._warn(
                f"line {rule.line} ran out of time and counts as no match; simplify it",
                f"{rule.line} {rule.source}",
            )
        return checked

    def _current(self) -> RuleSet:
        with self._lock:
            try:
                self._refresh()
            except Exception as error:  # whatever is wrong with the file, the turn goes on
                self._warn(f"it can't be read ({error}); the rules read before still hold")
            return self._rules

    def _refresh(self) -> None:
        path = self._find()
        now = fingerprint(path)
        if self._seen == (path, now):
            return
        content = read(path)
        self._rules = RuleSet(tuple(parse(content.text)))
        # A change within one tick of the file system's clock would not show: look again.
        self._seen = None if content.is_fresh() else (path, content.fingerprint)
        if content.warning:
            self._warn(content.warning)
        for rule in self._rules.errors[:MAX_NAMED]:
            self._warn(f"line {rule.line} is not used: {rule.error}", f"{rule.line} {rule.source}")
        if len(self._rules.errors) > MAX_NAMED:
            self._warn(f"{len(self._rules.errors)} lines are not used, only the first are named")

    def _warn(self, sentence: str, once_for: str = "") -> None:
        """Log a sentence once. Rules are private text, so it names lines and never quotes."""
        key = f"{sentence}\0{once_for}"
        if key in self._warned or len(self._warned) >= MAX_WARNINGS:
            return
        self._warned.add(key)
        log.warning("[bdh-bridge] %s: %s", FILE_NAME, sentence)


class RuleSet:
    """Rules of one moment, sorted for looking through."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.rules = rules
        self.errors = tuple(rule for rule in rules if rule.enabled and rule.error)
        usable = [rule for rule in rules if rule.usable]
        self._literals = [(fold(rule.pattern), rule) for rule in usable if rule.kind == "literal"]
        # Nearly every message holds no literal's beginning, and one pass shows that.
        self._beginnings = re.compile(trie_pattern(lit[:PREFILTER] for lit, _ in self._literals))
        self._regexes = [rule for rule in usable if rule.kind == "regex"]

    def check(self, text: str) -> Checked:
        unfinished: list[Rule] = []
        matched = self._literal(text) or self._regex(text, unfinished)
        return Checked(
            Match(matched) if matched else None,
            len(self._literals) + len(self._regexes),
            len(self.errors),
            tuple(unfinished),
        )

    def _literal(self, text: str) -> Rule | None:
        if not self._literals:
            return None
        folded = fold(text)
        if not self._beginnings.search(folded):
            return None
        return next((rule for literal, rule in self._literals if literal in folded), None)

    def _regex(self, text: str, unfinished: list[Rule]) -> Rule | None:
        # Of this thread's own work: a busy machine must not make rules fail to apply.
        deadline = time.thread_time() + LIST_TIMEOUT
        for rule in self._regexes:
            left = deadline - time.thread_time()
            try:
                if left <= 0:
                    raise TimeoutError
                if search(rule.compiled, text, min(RULE_TIMEOUT, left)):
                    return rule
            except (TimeoutError, MemoryError):
                unfinished.append(rule)
        return None
