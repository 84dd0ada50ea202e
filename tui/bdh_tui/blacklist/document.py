"""The blacklist as an editor holds it: what was read, and how it is saved."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bdh_bridge.gates.blacklist_file import (
    ChangedOnDisk,
    Fingerprint,
    edit,
    fingerprint,
    open_for_editing,
    save,
)
from bdh_bridge.gates.blacklist_rules import Rule, parse


@dataclass
class Document:
    """Methods raise OSError and :class:`bdh_bridge.gates.blacklist_file.NotEditable`."""

    path: Path
    text: str = ""
    rules: list[Rule] = field(default_factory=list)
    _read: Fingerprint | None = None

    def load(self) -> None:
        """Read the file as it is now; a missing one is an empty one."""
        content = open_for_editing(self.path)
        self.text, self._read = content.text, content.fingerprint
        self.rules = parse(self.text)

    def changed_on_disk(self) -> bool:
        return fingerprint(self.path.resolve()) != self._read

    def edit(self, change: Callable[[str], str]) -> None:
        """Apply ``change`` to the file as it is now: what others saved meanwhile stays.

        Raises: ChangedOnDisk if others don't stop saving; what ``change`` does.
        """
        edit(self.path, change)
        self.load()

    def save(self, text: str) -> None:
        """Raises: ChangedOnDisk, and nothing is changed."""
        self._read = save(self.path, text, self._read)
        self.text, self.rules = text, parse(text)

    def overwrite(self, text: str) -> None:
        """Save over what others wrote; theirs becomes the backup."""
        for _ in range(3):
            self._read = open_for_editing(self.path).fingerprint
            try:
                self.save(text)
                return
            except ChangedOnDisk:
                continue
        raise OSError(f"{self.path} is being changed all the time")

    def difference(self, text: str) -> str:
        """From the file on disk to ``text``, as a unified diff."""
        theirs = open_for_editing(self.path).text
        lines = difflib.unified_diff(
            theirs.splitlines(), text.splitlines(), "on disk", "yours", lineterm=""
        )
        return "\n".join(lines)


def line_of(rule: Rule, text: str) -> int:
    """Where ``rule`` stands in ``text``, into which others may have put lines since it was read.

    Raises: ValueError if it is not there any more.
    """
    places = [one.line for one in parse(text) if one.source == rule.source]
    if not places:
        raise ValueError("another program took this rule out of the file meanwhile")
    return min(places, key=lambda line: abs(line - rule.line))
