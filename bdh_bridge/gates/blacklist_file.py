"""The blacklist on disk: reading it whatever it is, and saving it without ever losing it."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bdh_otel.files import replacing

#: Bytes of the file that are used; what is behind them is named in a warning.
MAX_BYTES = 1_048_576
BACKUP_SUFFIX = ".bak"


class Fingerprint(NamedTuple):
    """Changes whenever the file does."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int


@dataclass(frozen=True, slots=True)
class Content:
    """What was read. ``fingerprint`` is None and ``text`` empty for a file that isn't there."""

    text: str
    fingerprint: Fingerprint | None
    warning: str = ""

    def is_fresh(self) -> bool:
        """Was it changed so lately that another change could have the same time stamps?"""
        return (
            self.fingerprint is not None
            and abs(time.time_ns() - self.fingerprint.changed_ns) < 50_000_000
        )


class ChangedOnDisk(Exception):
    """The file is not the one that was opened for editing any more; nothing was written."""


class NotEditable(Exception):
    """The file can't be edited without losing part of it; ``str()`` says why."""


def fingerprint(path: Path) -> Fingerprint | None:
    """None for a missing file. Raises: OSError."""
    try:
        return _fingerprint(path.stat())
    except FileNotFoundError:
        return None


def read(path: Path) -> Content:
    """Read for matching: at most :data:`MAX_BYTES`, what is no UTF-8 replaced by U+FFFD.

    Raises: OSError, also for what is no regular file (a pipe never blocks this).
    """
    data, found = _read_bytes(path)
    warning = ""
    if len(data) > MAX_BYTES:
        # Cut at a line's end: half a rule would block more than the whole one.
        data = data[: data.rfind(b"\n", 0, MAX_BYTES) + 1]
        warning = f"only its first {MAX_BYTES} bytes are used"
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return Content(data.decode("utf-16", errors="replace"), found, warning)
    return Content(data.decode("utf-8", errors="replace"), found, warning)


def open_for_editing(path: Path) -> Content:
    """Read the exact text, for an editor. A missing file is an empty one.

    Raises: OSError; NotEditable for what is too big or no UTF-8.
    """
    data, found = _read_bytes(path)
    if len(data) > MAX_BYTES:
        raise NotEditable(f"{path} is larger than {MAX_BYTES} bytes")
    try:
        return Content(data.decode("utf-8"), found)
    except UnicodeDecodeError as error:
        raise NotEditable(f"{path} is not UTF-8 text (byte {error.start})") from error


def save(path: Path, text: str, expected: Fingerprint | None) -> Fingerprint:
    """Replace the file in one step, owner-only; the old one stays beside it as ``….bak``.

    ``expected`` is the fingerprint of what was opened, None if it was missing. A symbolic link
    is followed, not replaced. Returns the new fingerprint.
    Raises: ChangedOnDisk; OSError; UnicodeEncodeError. The old file is whole after each.
    """
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    data = text.encode("utf-8")
    with _locked(target.parent):
        if fingerprint(target) != expected:
            raise ChangedOnDisk(f"{path} was changed by another program")
        if expected is not None:
            _replace(target.with_name(target.name + BACKUP_SUFFIX), target.read_bytes())
        return _replace(target, data)


def edit(path: Path, change: Callable[[str], str]) -> None:
    """Apply ``change`` (text to text) to the file as it is, also while others save it.

    Raises: NotEditable; OSError; ChangedOnDisk if others don't stop saving; what ``change`` does.
    """
    for attempts_left in (4, 3, 2, 1, 0):
        content = open_for_editing(path)
        try:
            save(path, change(content.text), content.fingerprint)
            return
        except ChangedOnDisk:
            if not attempts_left:
                raise


def _read_bytes(path: Path) -> tuple[bytes, Fingerprint | None]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return b"", None
    try:
        # Taken before reading: a file that is being written to in place differs from it at the
        # next look, and is read again.
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError("it is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_BYTES + 1), _fingerprint(found)
    finally:
        os.close(descriptor)


def _fingerprint(status: os.stat_result) -> Fingerprint:
    return Fingerprint(
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep other savers out between the look and the replacement."""
    import fcntl

    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(target: Path, data: bytes) -> Fingerprint:
    with replacing(target) as file:
        file.write(data)
    return _fingerprint(target.stat())
