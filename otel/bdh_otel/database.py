"""Owner-only SQLite files that several processes share.

Every durable file of the project (spans, outbox, shared state, inbox) is opened here, so that
they all get the same treatment: directory 0700 and file 0600, WAL with a fallback where the
file system can't do it, numbered migrations (``user_version``), and a refusal with a clear
sentence for a file that is not ours, that others may read, or that a newer version wrote.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import stat
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

log = logging.getLogger(__name__)

#: File systems on which WAL's shared memory is missing or not coherent between machines.
_NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "drvfs", "afpfs"}
)


class StoreError(Exception):
    """A store can't be used. ``str()`` names the file, the reason and the mend."""

    def __init__(self, path: Path, reason: str, mend: str) -> None:
        super().__init__(f"{path}: {reason}; {mend}")
        self.path = path
        self.reason = reason
        self.mend = mend


class ForeignFile(StoreError):
    """The file exists and was not made by this store."""


class EmptyFile(ForeignFile):
    """The file was created a moment ago, or long ago in vain, and has no content yet."""


class LooseMode(StoreError):
    """Others than the owner may read or write the file, or it belongs to somebody else."""


class NewerSchema(StoreError):
    """A newer version of the project has migrated the file."""


class CorruptFile(StoreError):
    """SQLite says that the file is no database or is damaged."""


class StoreUnavailable(StoreError):
    """Read-only directory, full disk, or a lock held for longer than the wait."""


@dataclass(frozen=True, slots=True)
class Schema:
    """What a store's file is.

    ``application_id`` marks the file as ours. ``migrations[i]`` brings ``user_version`` from
    ``i`` to ``i + 1`` and runs inside the migration's transaction.
    """

    name: str
    application_id: int
    migrations: tuple[Callable[[sqlite3.Connection], None], ...]
    synchronous: Literal["FULL", "NORMAL"] = "NORMAL"


def make_private_directory(directory: Path) -> None:
    """Create ``directory`` (0700) where missing; an existing one is left as it is."""
    if not directory.is_dir():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)


def shut_to_others(directory: Path) -> None:
    """Take away what group and others may write in our own folder: who may replace a file there
    need not be able to read it. Logs what it did or could not do; never raises."""
    try:
        status = directory.stat()
        if not status.st_mode & 0o022:
            return
        directory.chmod(stat.S_IMODE(status.st_mode) & ~0o022)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning(
            "[bdh-bridge] others may write to %s (%s); run: chmod 700 %s",
            directory,
            error.strerror,
            directory,
        )
        return
    log.warning("[bdh-bridge] %s was open for others to write; it is shut now", directory)


def connect(
    path: Path, schema: Schema, *, busy_timeout: float = 5.0, read_only: bool = False
) -> sqlite3.Connection:
    """Open ``path``, creating and migrating it as needed.

    The connection is in autocommit mode (use :func:`transaction`) and may be used from any
    thread, one at a time. ``busy_timeout`` is in seconds.

    Raises: a :class:`StoreError`; :class:`FileNotFoundError` if ``read_only`` and missing.
    """
    try:
        if not read_only:
            _create_private_file(path)
        _check_private(path)
        connection = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode={'ro' if read_only else 'rw'}",
            uri=True,
            timeout=busy_timeout,
            isolation_level=None,
            check_same_thread=False,
        )
    except (OSError, sqlite3.OperationalError) as error:
        if read_only and isinstance(error, FileNotFoundError):
            raise FileNotFoundError(path) from error
        raise unavailable(path, error) from error
    try:
        connection.row_factory = sqlite3.Row
        _prepare(connection, path, schema, read_only)
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error):
            raise classify(path, error) from error
        raise
    return connection


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """A write transaction that takes its lock at the start, so that it can't deadlock later."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        # A failed COMMIT (disk full) may already have rolled back by itself.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def classify(path: Path, error: sqlite3.Error) -> StoreError:
    """The :class:`StoreError` that an operator should read for a SQLite error."""
    text = str(error)
    if isinstance(error, sqlite3.DatabaseError) and any(
        sign in text for sign in ("malformed", "not a database", "file is encrypted")
    ):
        return CorruptFile(
            path,
            f"the file is damaged ({text})",
            "it was left untouched: move it away or restore it",
        )
    return unavailable(path, error)


def set_aside(path: Path) -> Path:
    """Rename a damaged file and its WAL companions so that a new one can start; nothing is deleted.

    Returns the new path.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    target = path.with_name(f"{path.name}.corrupt-{stamp}-{os.getpid()}")
    path.rename(target)
    for suffix in ("-wal", "-shm", "-journal"):
        companion = path.with_name(path.name + suffix)
        if companion.exists():
            companion.rename(target.with_name(target.name + suffix))
    return target


def network_filesystem(path: Path) -> str | None:
    """The type of the network file system that holds ``path``, or None (Linux only)."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    resolved = path.resolve()
    best_length, best_type = -1, ""
    for line in lines:
        left, _, right = line.partition(" - ")
        mount = left.split(" ")[4].replace("\\040", " ")
        if resolved.is_relative_to(mount) and len(mount) >= best_length:
            best_length, best_type = len(mount), right.split(" ")[0]
    network = best_type in _NETWORK_FILESYSTEMS or best_type.startswith("fuse.sshfs")
    return best_type if network else None


def _create_private_file(path: Path) -> None:
    make_private_directory(path.parent)
    # O_EXCL and the mode together: nobody can read the file even for a moment.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))


def _check_private(path: Path) -> None:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ForeignFile(path, "it is not a regular file", "move it away")
    if status.st_mode & 0o077:
        raise LooseMode(
            path,
            f"its mode is {stat.S_IMODE(status.st_mode):04o}, others may read it",
            f"run: chmod 600 {path}",
        )
    if status.st_uid != os.geteuid() and os.geteuid() != 0:
        raise LooseMode(path, f"it belongs to user {status.st_uid}", "run as that user or move it")


def _prepare(connection: sqlite3.Connection, path: Path, schema: Schema, read_only: bool) -> None:
    version = _identify(connection, path, schema)
    connection.execute(f"PRAGMA synchronous={schema.synchronous}")
    if read_only:
        if version == 0:
            raise EmptyFile(path, "it is empty", "it is filled when the bridge next runs")
        return
    if version == 0:
        # Both have to be set before the first table, auto_vacuum before WAL.
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    _set_journal_mode(connection, path)
    if version < len(schema.migrations):
        _migrate(connection, path, schema)


def _identify(connection: sqlite3.Connection, path: Path, schema: Schema) -> int:
    """The file's ``user_version``; refuses what is not ours or too new."""
    owner, version, tables = _marks(connection)
    if owner != schema.application_id and (owner or version or tables):
        raise ForeignFile(path, f"it is not a {schema.name} file of the bridge", "move it away")
    if version > len(schema.migrations):
        raise NewerSchema(
            path,
            f"schema {version} is newer than this version's {len(schema.migrations)}",
            "upgrade bdh-hermes-bridge",
        )
    return version


def _marks(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """``application_id``, ``user_version`` and how many tables there are, all of one moment:
    another process may be making the file just now."""
    outside = not connection.in_transaction
    if outside:
        connection.execute("BEGIN")
    try:
        owner, version, tables = (
            int(connection.execute(question).fetchone()[0])
            for question in (
                "PRAGMA application_id",
                "PRAGMA user_version",
                "SELECT count(*) FROM sqlite_master",
            )
        )
    finally:
        if outside and connection.in_transaction:
            connection.execute("ROLLBACK")
    return owner, version, tables


def _set_journal_mode(connection: sqlite3.Connection, path: Path) -> None:
    current = str(connection.execute("PRAGMA journal_mode").fetchone()[0])
    network = network_filesystem(path)
    wanted = "delete" if network else "wal"
    if current == wanted:
        return
    try:
        got = str(connection.execute(f"PRAGMA journal_mode={wanted}").fetchone()[0])
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            # Another process opens the new file at the same moment and sets the same mode.
            return
        got = str(connection.execute("PRAGMA journal_mode=delete").fetchone()[0])
    if got != "wal":
        log.warning(
            "[bdh-bridge] %s: no WAL mode on this file system (%s); using journal mode %s, "
            "slower when several processes write. A local disk is better.",
            path,
            network or "unknown type",
            got,
        )


def _migrate(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    with transaction(connection):
        # Read again under the lock: another process may have migrated meanwhile.
        version = _identify(connection, path, schema)
        for number, migration in enumerate(schema.migrations[version:], start=version + 1):
            migration(connection)
            connection.execute(f"PRAGMA user_version={number}")
        connection.execute(f"PRAGMA application_id={schema.application_id}")


def unavailable(path: Path, error: BaseException) -> StoreUnavailable:
    """The :class:`StoreError` that an operator should read where the system says no."""
    text = (error.strerror if isinstance(error, OSError) else "") or str(error)
    text = text or type(error).__name__
    if "full" in text or "No space" in text:
        mend = "free some disk space"
    elif "locked" in text or "busy" in text:
        mend = "another process holds its lock; it will be tried again"
    else:
        mend = f"check that {path.parent} exists and that its owner may write to it"
    return StoreUnavailable(path, text, mend)
