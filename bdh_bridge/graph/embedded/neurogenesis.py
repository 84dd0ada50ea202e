"""Neurogenesis without a model: a write becomes one note, or evidence in one that exists."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import unicodedata
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bdh_bridge.graph.embedded.excerpts import shorten
from bdh_bridge.graph.embedded.vault import clean_line

FOLDER = "concepts"
#: A new text this close to a note belongs to it.
MERGE_COSINE = 0.82
#: Seeds with at least this hybrid score are named as sources.
SOURCE_HYBRID = 0.30
MAX_TITLE_CHARS = 80
MAX_TEXT_CHARS = 100_000
_MAX_SLUG_BYTES = 120

_MARKUP = re.compile(r"[`*_#>\[\]{}|<\\]+")
_NOT_IN_SLUG = re.compile(r"[^\w]+|_+")
_NOT_IN_LINK = re.compile(r"[\[\]|#^\n]")
_RESERVED = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}
)


def title_from(*texts: str) -> str:
    """One line: the first sentence, without markup, of the first text that has one."""
    for text in texts:
        line = clean_line(_MARKUP.sub(" ", text[:2_000]))
        first = re.split(r"(?<=[.!?。!?])\s", line, maxsplit=1)[0]
        title = shorten(first.rstrip(" .:;,-"), MAX_TITLE_CHARS)
        if title:
            return title
    return "Untitled note"


def slug(title: str) -> str:
    """A file name's stem in any language: lower-case letters and digits joined by hyphens."""
    name = unicodedata.normalize("NFC", unicodedata.normalize("NFKC", title).casefold())
    name = _NOT_IN_SLUG.sub("-", name).strip("-")
    # File systems bound a name in bytes, and a cut must not split a character.
    name = name.encode()[:_MAX_SLUG_BYTES].decode(errors="ignore").strip("-")
    return f"{name}-note" if name in _RESERVED else name or "note"


def free_id(title: str, taken: Callable[[str], bool]) -> str:
    """An id below :data:`FOLDER` that ``taken`` denies."""
    stem = f"{FOLDER}/{slug(title)}"
    candidate, number = stem, 1
    while taken(candidate):
        number += 1
        candidate = f"{stem}-{number}"
    return candidate


def render(title: str, text: str, sources: Sequence[tuple[str, str]], now: float) -> str:
    """The note's file. ``sources`` are (id, title); they become links, so the note has edges."""
    created = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
    lines = ["---", f"title: {_quoted(title)}", f"created: {created}", "sources:"]
    lines += [f"  - {_quoted(note_id)}" for note_id, _ in sources]
    if not sources:
        lines[-1] += " []"
    lines += ["---", "", text.strip(), ""]
    related = [
        f"[[{note_id}|{_NOT_IN_LINK.sub(' ', name).strip() or note_id}]]"
        for note_id, name in sources
        if not _NOT_IN_LINK.search(note_id)
    ]
    if related:
        lines += [f"Related: {', '.join(related)}", ""]
    return "\n".join(lines)


def write_file(root: Path, note_id: str, content: str) -> bool:
    """Write a new note's file, whole or not at all. False if something is there already.

    Raises: OSError.
    """
    path = root / f"{note_id}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    # A hidden name: neither a scan here nor an editor that watches the vault takes it up.
    descriptor, temporary = tempfile.mkstemp(prefix=".bdh-", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        return _move_without_overwriting(Path(temporary), path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()


def _move_without_overwriting(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
        return True
    except FileExistsError:
        return False
    except OSError:
        pass  # no hard links here (exFAT, some network and FUSE mounts)
    try:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    source.replace(target)  # over our own empty file
    return True


def _quoted(text: str) -> str:
    """A JSON string is a YAML string too, whatever it holds."""
    return json.dumps(text, ensure_ascii=False)
