"""Reading a Markdown vault: which files are notes, and what a note says.

A vault is somebody's own folder, so anything can lie in it. Hidden folders and linked folders
are not entered, what can't be read is reported and left out, and nothing is ever written here.
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Most bytes read of one file; the rest of a longer one is not searched.
MAX_FILE_BYTES = 1_048_576
_MAX_FRONTMATTER_CHARS = 16_384

_FRONTMATTER = re.compile(
    r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE
)
_TITLE_LINE = re.compile(r"^title:[ \t]*(.+)$", re.MULTILINE)
_PLAIN_TITLE = re.compile(r"[^\W\d_][\w ,.()-]*")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_BACKTICKS = re.compile(r"`+")
_WIKILINK = re.compile(r"(!?)\[\[([^\[\]\n]{1,300})\]\]")
_ALIAS = re.compile(r"\\?\|")  # in a table the bar is escaped
_ATTACHMENT = re.compile(r"\.(?!md$)[a-z0-9]{2,5}$", re.IGNORECASE)
_UNPRINTABLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]+"
)


class UnreadableNote(Exception):
    """A file can't be a note; ``str()`` says why."""


@dataclass(frozen=True, slots=True)
class NoteFile:
    """A Markdown file as the directory shows it. Equal values mean: no need to read it again."""

    id: str
    """Path below the vault with ``/`` and without ``.md``."""
    path: Path
    size: int
    mtime_ns: int
    ctime_ns: int
    """Also changes with the permissions, and when a sync tool sets an old ``mtime``."""


@dataclass(frozen=True, slots=True)
class NoteText:
    """What a note's file says: ``body`` is what follows the frontmatter, with ``\\n`` line ends."""

    title: str
    body: str
    links: tuple[str, ...]
    """Targets of the wikilinks outside code, as written, without alias and heading."""


def scan(root: Path, problems: list[str]) -> Iterator[NoteFile]:
    """The vault's Markdown files, in no order.

    Sentences about what was left out are appended to ``problems``. Raises OSError if ``root``
    itself can't be listed: an unmounted vault must not look like an empty one.
    """
    with os.scandir(root):
        pass
    for folder, folders, names in os.walk(
        root, onerror=lambda error: problems.append(f"{error.filename}: {error.strerror}")
    ):
        folders[:] = [name for name in folders if not name.startswith(".")]
        prefix = "" if folder == str(root) else f"{os.path.relpath(folder, root)}/"
        for name in names:
            if not name.lower().endswith(".md") or name.startswith("."):
                continue
            path = os.path.join(folder, name)  # noqa: PTH118 (ten thousand of them, every scan)
            note_id = prefix + name[:-3]
            try:
                note_id.encode("utf-8")
                status = os.stat(path)  # noqa: PTH116
            except UnicodeEncodeError:
                problems.append(f"{path!a}: its name is not valid UTF-8")
                continue
            except OSError as error:
                problems.append(f"{path}: {error.strerror}")
                continue
            if stat.S_ISREG(status.st_mode):
                yield _note_file(note_id, Path(path), status)


def file_of(root: Path, note_id: str) -> NoteFile:
    """The file of a note as it is now. Raises: OSError."""
    path = root / f"{note_id}.md"
    return _note_file(note_id, path, path.stat())


def _note_file(note_id: str, path: Path, status: os.stat_result) -> NoteFile:
    return NoteFile(note_id, path, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def read(file: NoteFile) -> NoteText:
    """Read one note. Raises: UnreadableNote."""
    try:
        with file.path.open("rb") as stream:
            raw = stream.read(MAX_FILE_BYTES)
    except OSError as error:
        raise UnreadableNote(f"{file.path}: {error.strerror}") from error
    if b"\0" in raw[:8192]:
        raise UnreadableNote(f"{file.path}: it holds binary data")
    text = raw.decode("utf-8-sig", errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    return parse(text, stem=file.id.rpartition("/")[2])


def parse(text: str, stem: str) -> NoteText:
    """Split a note into title, body and links; ``stem`` is the title where none is given."""
    title = ""
    # Only the beginning is searched for the closing fence: a rule at the top of a long file
    # is not the start of frontmatter.
    match = _FRONTMATTER.match(text[:_MAX_FRONTMATTER_CHARS])
    if match:
        title = _frontmatter_title(match[1])
        text = text[match.end() :]
    return NoteText(clean_line(title) or clean_line(stem), text.strip("\n"), tuple(links(text)))


def links(text: str) -> list[str]:
    """Wikilink targets outside code blocks and code spans, each once, in order."""
    found: dict[str, None] = {}
    if "[[" not in text:
        return []
    for embed, inner in _WIKILINK.findall(without_code(text)):
        target = _ALIAS.split(inner, maxsplit=1)[0]
        target = target.partition("#")[0].strip().removesuffix(".md").strip("/")
        if target and not (embed and _ATTACHMENT.search(target)):
            found[target] = None
    return list(found)


def without_code(text: str) -> str:
    """``text`` without fenced blocks and code spans. Linear in its length."""
    kept: list[str] = []
    fence = ""
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if fence:
            if match and match[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            continue
        if match and "`" not in line[match.end() :]:
            fence = match[1]
            continue
        kept.append(_without_spans(line) if "`" in line else line)
    return "\n".join(kept)


def _without_spans(line: str) -> str:
    """Drop code spans: a run of backticks closes at the next run of the same length."""
    runs = [match.span() for match in _BACKTICKS.finditer(line)]
    following: dict[int, int] = {}
    closing = [-1] * len(runs)
    for index in range(len(runs) - 1, -1, -1):
        length = runs[index][1] - runs[index][0]
        closing[index] = following.get(length, -1)
        following[length] = index
    kept: list[str] = []
    position = index = 0
    while index < len(runs):
        if closing[index] < 0:
            index += 1
            continue
        kept.append(line[position : runs[index][0]])
        position = runs[closing[index]][1]
        index = closing[index] + 1
    kept.append(line[position:])
    return " ".join(kept)


def link_key(target: str) -> str:
    """What two spellings of a note's name have in common (case, composed or not)."""
    return unicodedata.normalize("NFC", target).casefold()


def clean_line(text: str) -> str:
    """One printable line: control and bidi characters become blanks, blanks collapse."""
    return " ".join(_UNPRINTABLE.sub(" ", text).split())


def _frontmatter_title(frontmatter: str) -> str:
    line = _TITLE_LINE.search(frontmatter)
    if line is None:
        return ""
    if _PLAIN_TITLE.fullmatch(line[1].strip()):
        return line[1]  # most titles: words alone mean themselves, and YAML is slow
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        fields = yaml.load(frontmatter, Loader=loader)  # noqa: S506 (a safe loader in either case)
        title = fields.get("title") if isinstance(fields, dict) else None
    except (yaml.YAMLError, ValueError, RecursionError, TypeError):
        # Templates and hand-written properties are often no YAML; the line still says it.
        return line[1].strip().strip("\"'")
    return str(title) if isinstance(title, (str, int, float)) else line[1].strip()
