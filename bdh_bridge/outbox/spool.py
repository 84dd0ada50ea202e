"""Writes that could not be inserted in time: one owner-only file each, until the worker takes
them in. The file holds the row's id, so that taking it in twice inserts it once."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bdh_otel.database import make_private_directory

log = logging.getLogger(__name__)

#: Seconds after which nobody writes at an unfinished file any more.
_PARTIAL_AGE = 3_600.0


@dataclass(frozen=True, slots=True)
class NewWrite:
    """What a turn wants the graph to learn. ``destination`` is the graph's base URL; an empty
    ``vault_id`` is the server's default; ``created_ns`` is the time of the turn."""

    query: str
    user_prompt: str
    source: str
    destination: str
    vault_id: str = ""
    traceparent: str = ""
    session_id: str = ""
    turn_id: str = ""
    platform: str = ""
    model: str = ""
    created_ns: int = 0


@dataclass(frozen=True, slots=True)
class SpooledWrite:
    id: str
    accepted_at: float
    write: NewWrite


class Spool:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def put(self, spooled: SpooledWrite) -> None:
        """Write one file durably. Raises: OSError."""
        make_private_directory(self.directory)
        name = f"{spooled.write.created_ns:020d}-{spooled.id}"
        partial, final = self.directory / f"{name}.part", self.directory / f"{name}.json"
        content = json.dumps(asdict(spooled)).encode()
        descriptor = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(final)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
        self._sync_directory()

    def usage(self) -> tuple[int, int]:
        """How many files wait, and their bytes."""
        files = total = 0
        with contextlib.suppress(OSError), os.scandir(self.directory) as entries:
            for entry in entries:
                if entry.name.endswith(".json"):
                    with contextlib.suppress(OSError):
                        total += entry.stat(follow_symlinks=False).st_size
                        files += 1
        return files, total

    def remove_partial(self) -> None:
        """Remove what processes that died while writing left behind: it was never accepted."""
        with contextlib.suppress(OSError):
            for path in self.directory.glob("*.part"):
                if time.time() - path.stat().st_mtime > _PARTIAL_AGE:
                    path.unlink()

    def waiting(self) -> Iterator[tuple[Path, SpooledWrite]]:
        """The files, oldest first. One that can't be understood is renamed, never deleted."""
        for path in sorted(self.directory.glob("*.json")):
            try:
                spooled = _read(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                log.warning("[bdh-bridge] %s can't be read: %s", path, error)
                continue
            except (ValueError, TypeError, KeyError) as error:
                aside = path.with_suffix(".unreadable")
                with contextlib.suppress(OSError):
                    path.rename(aside)
                log.warning(
                    "[bdh-bridge] %s is no spooled write (%s); kept as %s", path, error, aside.name
                )
                continue
            yield path, spooled

    def _sync_directory(self) -> None:
        # Without this a power cut may forget the name of a file whose content is safe.
        with contextlib.suppress(OSError):
            descriptor = os.open(self.directory, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _read(path: Path) -> SpooledWrite:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a file of this user")
        values = json.loads(file.read())
    write = NewWrite(**values["write"])
    for name, value in asdict(write).items():
        if not isinstance(value, int if name == "created_ns" else str):
            raise ValueError(f"{name} has the wrong type")
    return SpooledWrite(str(values["id"]), float(values["accepted_at"]), write)
