"""One change each. ``what`` is a sentence that shows no secret; ``apply`` notes, then does it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bdh_bridge.operator.install.record import (
    Record,
    private_directory,
    read_file,
    write_file,
)


class Step(Protocol):
    @property
    def what(self) -> str: ...

    def apply(self, record: Record) -> None: ...


@dataclass(frozen=True, slots=True)
class FileStep:
    """Give ``path`` other content. ``before`` is what the plan was made from, None if missing."""

    path: Path
    before: bytes | None
    after: bytes
    mode: int
    what: str

    def apply(self, record: Record) -> None:
        """Raises: OSError, also when the file changed since the plan was made."""
        if read_file(self.path) != self.before:
            raise OSError(f"{self.path} was changed meanwhile; run it again")
        record.note_file(self.path, self.before, self.after)
        if self.path.parent == record.directory.parent:
            private_directory(self.path.parent)
        write_file(self.path, self.after, self.mode)


@dataclass(frozen=True, slots=True)
class MoveStep:
    """Move a file, a folder, or a link itself."""

    source: Path
    target: Path
    what: str

    def apply(self, record: Record) -> None:
        """Raises: OSError."""
        record.note_move(self.source, self.target)
        private_directory(self.target.parent)
        self.source.rename(self.target)
