"""The lock that makes a worker the only one of its home. The kernel releases it at any death."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bdh_bridge.worker.owner import owner_lives, owner_name, parse_owner


@dataclass(frozen=True, slots=True)
class Holder:
    """What a worker writes into the lock file. ``owner`` names its process, ``since`` is in Unix
    seconds, ``mode`` is ``process``, ``thread`` or ``command``."""

    owner: str
    since: float
    version: str
    mode: str

    @property
    def pid(self) -> int | None:
        process = parse_owner(self.owner)
        return process.pid if process and owner_lives(self.owner) else None


class WorkerLock:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self, *, wait: float, version: str, mode: str) -> bool:
        """Take the lock. ``wait`` in seconds also covers a probe by :func:`is_held`, which holds
        it for some microseconds. Raises: OSError if the file can't be made."""
        descriptor = _open(self._path, os.O_CREAT | os.O_RDWR)
        deadline = time.monotonic() + wait
        try:
            while not _try(descriptor, fcntl.LOCK_EX):
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    return False
                time.sleep(0.01)
            holder = Holder(owner_name(), time.time(), version, mode)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(asdict(holder)).encode(), 0)
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def still_ours(self) -> bool:
        """False once the file was removed or replaced: another worker may have locked a new one."""
        if self._descriptor is None:
            return False
        mine = os.fstat(self._descriptor)
        with contextlib.suppress(OSError):
            there = self._path.stat()
            return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)
        return False

    def release(self) -> None:
        if self._descriptor is not None:
            # Explicitly: a forked child of a host (thread mode) may hold a copy of the descriptor.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None


def is_held(path: Path) -> bool:
    """Whether a live worker holds the lock. A shared probe, so that two of them don't meet.

    Raises: OSError.
    """
    try:
        descriptor = _open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _try(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def read_holder(path: Path) -> Holder | None:
    """What the lock file says about its holder, or about its last one."""
    try:
        values = json.loads(path.read_bytes())
        return Holder(
            str(values["owner"]),
            float(values["since"]),
            str(values["version"]),
            str(values["mode"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _open(path: Path, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
