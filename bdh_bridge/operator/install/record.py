"""What an installation changed, written down before it is changed, so that it can be undone.

In ``$HERMES_HOME/bdh-bridge/install/``: ``record.json`` and the files as they were.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bdh_otel.database import make_private_directory
from bdh_otel.files import replacing

#: Seconds to wait for another installation into the same home.
PATIENCE = 30.0


class RecordError(Exception):
    """The record can't be read or is in use. ``str()`` is a sentence."""


@contextlib.contextmanager
def alone(home: Path) -> Iterator[None]:
    """Keep other installations out of ``home`` from the plan to the last change.

    Raises: RecordError after ``PATIENCE`` seconds, OSError for a home that can't be opened.
    """
    handle = os.open(home, os.O_RDONLY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RecordError(
                        f"another installation works on {home}; try again when it has ended"
                    ) from None
                time.sleep(0.05)
            except OSError:
                break  # no locks on this file system
        yield
    finally:
        os.close(handle)


@dataclass
class ChangedFile:
    """``before`` and ``after`` are digests, None for a file that isn't there. ``edited``: somebody
    else changed it between two installations, so the way back is not simply the backup."""

    before: str | None
    before_mode: int | None
    after: str | None
    backup: str | None
    edited: bool = False


@dataclass
class Record:
    """Keys of ``files`` are paths as :meth:`name_of` gives them; ``moves`` are pairs of such, from
    and to."""

    directory: Path
    files: dict[str, ChangedFile] = field(default_factory=dict)
    moves: list[tuple[str, str]] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    """Folders that did not exist before."""

    @classmethod
    def read(cls, directory: Path) -> Record:
        """An empty one where nothing was installed. Raises: RecordError."""
        path = directory / "record.json"
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                directory,
                {name: ChangedFile(**one) for name, one in values["files"].items()},
                [(str(one[0]), str(one[1])) for one in values["moves"]],
                [str(one) for one in values["made"]],
            )
        except FileNotFoundError:
            return cls(directory)
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise RecordError(
                f"{path} can't be read ({reason}); mend that, or move {directory} away"
            ) from error

    @property
    def empty(self) -> bool:
        return not (self.files or self.moves or self.made)

    def save(self) -> None:
        self._prepare()
        values = {
            "files": {name: asdict(one) for name, one in self.files.items()},
            "moves": self.moves,
            "made": self.made,
        }
        write_file(self.directory / "record.json", json.dumps(values, indent=2).encode(), 0o600)

    @property
    def home(self) -> Path:
        return self.directory.parents[1]

    def name_of(self, path: Path) -> str:
        """Relative to the home, so that a home that was moved or copied undoes its own files and
        never those at the old place."""
        return str(path.relative_to(self.home) if path.is_relative_to(self.home) else path)

    def note_file(self, path: Path, before: bytes | None, after: bytes | None) -> None:
        """Keep the file as it was before the first change; to be called before the change."""
        known = self.files.get(self.name_of(path))
        if known is not None:
            if digest(before) != known.after:
                known.edited = True
            known.after = digest(after)
            self.save()
            return
        backup = None
        if before is not None:
            self._prepare()
            backup = f"{len(self.files)}-{path.name.lstrip('.')}"
            write_file(self.directory / backup, before, 0o600)
        self.files[self.name_of(path)] = ChangedFile(
            digest(before), mode_of(path), digest(after), backup
        )
        self.save()

    def note_move(self, source: Path, target: Path) -> None:
        self.moves.append((self.name_of(source), self.name_of(target)))
        self.save()

    def backup_of(self, changed: ChangedFile) -> bytes | None:
        return (self.directory / changed.backup).read_bytes() if changed.backup else None

    def remove(self) -> None:
        """Forget everything, backups included."""
        shutil.rmtree(self.directory, ignore_errors=True)
        for folder in reversed(self.made):
            place = self.home / folder
            if place.is_dir() and not any(place.iterdir()):
                place.rmdir()

    def _prepare(self) -> None:
        parent = self.directory.parent
        if not parent.is_dir():
            self.made.append(self.name_of(parent))
        private_directory(parent)
        private_directory(self.directory)


def digest(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha256(content).hexdigest()


def read_file(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def mode_of(path: Path) -> int | None:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return None


def private_directory(directory: Path) -> None:
    """Owner-only, where it is missing; what root makes in somebody's home is theirs."""
    if not directory.is_dir():
        make_private_directory(directory)
        _give(directory, directory.parent)


def _give(made: int | Path, like: Path) -> None:
    """``sudo bdh-bridge install`` must not take the files from the one who runs Hermes."""
    if os.geteuid() != 0:
        return
    owner = (like if like.exists() else like.parent).stat()
    with contextlib.suppress(OSError):  # a file system that knows no owners
        os.chown(made, owner.st_uid, owner.st_gid)


def write_file(path: Path, content: bytes, mode: int) -> None:
    """Replace the file in one step; a symbolic link is followed, not replaced."""
    target = path.resolve()
    with replacing(target, mode) as file:
        _give(file.fileno(), target)
        file.write(content)
