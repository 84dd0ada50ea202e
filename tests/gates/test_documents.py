"""What the gates' documents promise."""

from __future__ import annotations

import re
from pathlib import Path

from bdh_bridge.gates.blacklist_edit import set_enabled
from bdh_bridge.gates.blacklist_rules import parse
from bdh_bridge.gates.reasons import Reason

ROOT = Path(__file__).resolve().parents[2]


def test_every_reason_is_explained() -> None:
    explained = set(re.findall(r"`(\w+)`", (ROOT / "docs/gates.md").read_text(encoding="utf-8")))
    assert {reason.value for reason in Reason} <= explained


def test_the_example_blocks_nothing_until_rules_are_switched_on() -> None:
    text = (ROOT / "prompt_blacklist.example.txt").read_text(encoding="utf-8")
    rules = parse(text)
    assert len(rules) >= 5
    assert not any(rule.enabled or rule.error for rule in rules)
    for rule in rules:
        text = set_enabled(text, rule.line, True)
    assert all(rule.usable for rule in parse(text))


def test_the_operators_own_list_is_never_committed() -> None:
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {"/prompt_blacklist.txt", "/prompt_blacklist.txt.bak"} <= set(ignored)
