"""The bridge's own files: who may read them, whether they are whole, whether there is room."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

from bdh_bridge.operator.doctor.checks import Check, Subject, failed, ok, warning
from bdh_bridge.paths import BridgePaths
from bdh_otel import database
from bdh_otel.database import NewerSchema, Schema, StoreError

#: Bytes free below which a write may fail soon, and below which room gets scarce.
DISK_FULL, DISK_SCARCE = 100 * 1024**2, 1024**3
#: Bytes up to which a file is read through; above it only its header and schema are.
WHOLE_CHECK = 512 * 1024**2


def stores(subject: Subject) -> Iterator[Check]:
    paths = subject.loaded.paths
    if not paths.directory.is_dir():
        yield ok("stores", f"none yet: {paths.directory} appears with the first turn")
        return
    yield from _directory(paths.directory)
    known = _schemas(paths)
    others = set(paths.directory.glob("*.sqlite3")) - set(known)
    found = [_store(path, known.get(path)) for path in [*known, *sorted(others)] if path.exists()]
    yield from found
    if not found:
        yield ok("stores", "none yet: they appear with the first turn")
    for path in sorted(paths.directory.glob("*.corrupt-*")):
        if path.suffix not in ("-wal", "-shm"):
            yield warning(
                "stores",
                f"{path} was damaged and set aside",
                f"what it holds: sqlite3 '{path}' .recover; then remove it",
            )


def _schemas(paths: BridgePaths) -> dict[Path, Schema]:
    from bdh_bridge.graph.embedded import state as embedded
    from bdh_bridge.outbox import schema as outbox
    from bdh_bridge.routing.local.feedback import SCHEMA as FEEDBACK
    from bdh_bridge.state import SCHEMA as STATE
    from bdh_bridge.transcripts import SCHEMA as TRANSCRIPTS
    from bdh_otel.metrics import SCHEMA as METRICS
    from bdh_otel.store import SCHEMA as SPANS
    from hermes_borgee import inbox
    from hermes_borgee.config import inbox_path

    return {
        paths.spans: SPANS,
        paths.outbox: outbox.SCHEMA,
        paths.state: STATE,
        paths.sessions: TRANSCRIPTS,
        paths.metrics: METRICS,
        paths.feedback: FEEDBACK,
        paths.graph_state: embedded.SCHEMA,
        inbox_path(paths.hermes_home): inbox.SCHEMA,
    }


def _directory(directory: Path) -> Iterator[Check]:
    status = directory.stat()
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        yield failed(
            "stores",
            f"{directory} has mode {mode:04o}: others on this machine may look into it",
            f"run: chmod 700 {directory}",
        )
    if not os.access(directory, os.W_OK | os.X_OK):
        yield failed(
            "stores",
            f"{directory} can't be written to by this user",
            "run as its owner, or give it back: chown",
        )
    network = database.network_filesystem(directory)
    if network:
        yield warning(
            "mount",
            f"{directory} is on a network file system ({network}): slower, and locks may fail",
            "move the Hermes home to a local disk",
        )


def _store(path: Path, schema: Schema | None) -> Check:
    """``schema`` is None for a file of another part, which knows its content itself."""
    try:
        connection = _open(path, schema)
    except database.EmptyFile:
        return ok("stores", f"{path.name}: empty")
    except NewerSchema as error:
        return failed("stores", f"{path}: {error.reason}", error.mend)
    except (StoreError, FileNotFoundError) as error:
        mend = error.mend if isinstance(error, StoreError) else "look again"
        reason = error.reason if isinstance(error, StoreError) else "it is gone"
        return failed("stores", f"{path}: {reason}", mend)
    with contextlib.closing(connection):
        try:
            size = path.stat().st_size
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
            found = "ok"
            if size <= WHOLE_CHECK:
                found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
        except sqlite3.Error as error:
            found, size, version = str(error), 0, 0
    if found != "ok":
        return failed(
            "stores",
            f"{path} is damaged ({found.splitlines()[0][:120]})",
            f"stop Hermes, move it away; what it holds: sqlite3 '{path}' .recover",
        )
    older = schema is not None and version < len(schema.migrations)
    upgrade = ", brought up to date at next use" if older else ""
    return ok("stores", f"{path.name}: {_bytes(size)}, schema {version}{upgrade}")


def _open(path: Path, schema: Schema | None) -> sqlite3.Connection:
    """Raises: StoreError, FileNotFoundError."""
    if schema is not None:
        return database.connect(path, schema, read_only=True)
    if path.stat().st_mode & 0o077:
        raise database.LooseMode(path, "others may read it", f"run: chmod 600 {path}")
    try:
        return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5)
    except sqlite3.Error as error:
        raise database.classify(path, error) from error


def disk(subject: Subject) -> Iterator[Check]:
    paths = subject.loaded.paths
    place = paths.directory if paths.directory.is_dir() else paths.hermes_home
    if not place.is_dir():
        return
    free = shutil.disk_usage(place).free
    text = f"{_bytes(free)} free below {place}"
    if free < DISK_FULL:
        yield failed("disk", text, "free some space: writes will fail soon")
    elif free < DISK_SCARCE:
        yield warning("disk", text, "free some space, or lower BDH_OTEL_STORE_MAX_BYTES")
    else:
        yield ok("disk", text)


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:,.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
