"""Taking back what the record says, file by file: byte for byte where nobody changed it since."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bdh_bridge.operator.install import config_file, env_file
from bdh_bridge.operator.install.plan import NAME
from bdh_bridge.operator.install.record import (
    ChangedFile,
    Record,
    digest,
    mode_of,
    read_file,
    write_file,
)


def undo(record: Record, *, dry_run: bool = False) -> Iterator[str]:
    """Undo everything; a sentence for each thing done or left. Raises: OSError."""
    for name, changed in reversed(list(record.files.items())):
        yield from _undo_file(record, record.home / name, changed, dry_run)
    for source, target in reversed(record.moves):
        yield from _undo_move(record.home / source, record.home / target, dry_run)
    if not dry_run:
        record.remove()


def _undo_file(record: Record, path: Path, changed: ChangedFile, dry_run: bool) -> Iterator[str]:
    current = read_file(path)
    if digest(current) == changed.before:
        return
    if digest(current) == changed.after and not changed.edited:
        before = record.backup_of(changed)
        if before is None:
            yield f"{path}: removed, as it was not there before"
        else:
            yield f"{path}: as it was before"
        if not dry_run:
            _put(path, before, changed.before_mode)
        return
    if current is None:
        yield f"{path}: is gone, nothing to undo"
        return
    after = _without_ours(record, path, changed, current)
    if after is None:
        yield f"{path}: kept, since it was changed after the installation"
    elif after == current:
        yield f"{path}: nothing of the installation is left in it"
    else:
        yield f"{path}: what the installation added is taken out, later changes stay"
        if not dry_run:
            empty = changed.before is None and not after.strip()
            _put(path, None if empty else after, changed.before_mode or mode_of(path))


def _without_ours(record: Record, path: Path, changed: ChangedFile, current: bytes) -> bytes | None:
    """The file without what was added to it; None where that can't be told from the rest."""
    try:
        text = current.decode("utf-8")
        if path.name == ".env":
            return env_file.without_block(text).encode()
        if path.name == "config.yaml":
            before = (record.backup_of(changed) or b"").decode("utf-8")
            if config_file.is_enabled(before, NAME):
                return current
            return config_file.withdraw(text, NAME).encode()
    except (UnicodeDecodeError, config_file.ConfigEditError):
        return None
    return None


def _undo_move(source: Path, target: Path, dry_run: bool) -> Iterator[str]:
    if not target.exists() and not target.is_symlink():
        return
    if source.exists() or source.is_symlink():
        yield f"{target}: kept there, since {source} is taken by something else"
        return
    yield f"{source}: moved back"
    if not dry_run:
        target.rename(source)
        if not any(target.parent.iterdir()):
            target.parent.rmdir()


def _put(path: Path, content: bytes | None, mode: int | None) -> None:
    if content is None:
        path.unlink(missing_ok=True)
    else:
        write_file(path, content, 0o600 if mode is None else mode)
