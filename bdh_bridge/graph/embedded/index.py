"""Notes in memory: text, vector, postings and links of each, kept in step."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bdh_bridge.graph.embedded import encoder
from bdh_bridge.graph.embedded.excerpts import plain
from bdh_bridge.graph.embedded.lexical import LexicalIndex
from bdh_bridge.graph.embedded.vault import NoteFile, NoteText, link_key

#: Most characters of a note that are searched by word.
MAX_INDEXED_CHARS = 100_000
#: Most pieces of evidence that are searched; the state file keeps all.
MAX_EVIDENCE = 50
#: Of a note's text before markup is taken out; the encoder has its own bound.
_EMBEDDED_CHARS = 2 * encoder.MAX_CHARS
_BODY_CHARS_WITH_EVIDENCE = 1_200

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Note:
    """A note as it is searched. ``evidence`` is what later writes added, oldest first."""

    file: NoteFile
    title: str
    body: str
    links: tuple[str, ...]
    evidence: tuple[str, ...] = ()
    link_keys: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, file: NoteFile, text: NoteText, evidence: tuple[str, ...] = ()) -> Note:
        return cls(
            file,
            text.title,
            text.body[:MAX_INDEXED_CHARS],
            text.links,
            evidence,
            tuple(dict.fromkeys(link_key(target) for target in text.links)),
        )

    @property
    def id(self) -> str:
        return self.file.id

    @property
    def text(self) -> str:
        """Body and evidence: what excerpts are taken from."""
        return "\n\n".join((self.body, *self.evidence)) if self.evidence else self.body

    @property
    def searched(self) -> str:
        """What BM25 sees."""
        return f"{self.title}\n{self.text}"

    @property
    def embedded(self) -> tuple[str, str]:
        """Title and text that the vector stands for: newest evidence gets its share."""
        if not self.evidence:
            return self.title, plain(self.body[:_EMBEDDED_CHARS])
        newest_first = "\n\n".join(reversed(self.evidence))
        text = f"{self.body[:_BODY_CHARS_WITH_EVIDENCE]}\n\n{newest_first}"
        return self.title, plain(text[:_EMBEDDED_CHARS])

    @property
    def digest(self) -> bytes:
        """Key of the stored vector: equal digests mean equal vectors."""
        body = self.body[:_EMBEDDED_CHARS]
        parts = "\0".join((encoder.NAME, self.title, body, *self.evidence))
        return hashlib.sha256(parts.encode()).digest()


def recent(evidence: Sequence[str]) -> tuple[str, ...]:
    """The newest of it, oldest first, so that a note that is written to for ever stays bounded."""
    kept: list[str] = []
    left = MAX_INDEXED_CHARS
    for text in reversed(evidence[-MAX_EVIDENCE:]):
        left -= len(text)
        if left < 0 and kept:
            break
        kept.append(text)
    return tuple(reversed(kept))


class NoteIndex:
    """All notes of a vault. Not thread-safe: one thread owns it."""

    def __init__(self) -> None:
        self.notes: dict[str, Note] = {}
        self.lexical = LexicalIndex()
        self._slots: dict[str, int] = {}
        self._ids: list[str | None] = []
        self._free: list[int] = []
        self._vectors = np.zeros((256, encoder.DIMENSIONS), dtype=np.float32)
        self._by_id: dict[str, str] = {}
        self._by_name: dict[str, list[str]] = {}
        self._by_title: dict[str, list[str]] = {}
        self._linking: dict[str, set[str]] = {}  # ids of notes that link to a file name
        self._degrees: dict[str, int] = {}
        self._stale_degrees: set[str] = set()
        self._edge_count = 0

    def put(self, note: Note, vector: Vector) -> None:
        """Add a note, or replace the one with its id."""
        self.remove(note.id)
        if self._free:
            slot = self._free.pop()
            self._ids[slot] = note.id
        else:
            slot = len(self._ids)
            self._ids.append(note.id)
            if slot >= len(self._vectors):
                grown = np.zeros((slot * 2, encoder.DIMENSIONS), dtype=np.float32)
                grown[:slot] = self._vectors
                self._vectors = grown
        self._vectors[slot] = vector
        self._slots[note.id] = slot
        self.notes[note.id] = note
        self.lexical.add(slot, note.searched)
        key = link_key(note.id)
        self._by_id.setdefault(key, note.id)
        self._by_name.setdefault(_name(key), []).append(note.id)
        self._by_title.setdefault(link_key(note.title), []).append(note.id)
        for target in note.link_keys:
            self._linking.setdefault(_name(target), set()).add(note.id)
        self._stale_degrees |= self._linking.get(_name(key), set()) | {note.id}

    def remove(self, note_id: str) -> None:
        note = self.notes.pop(note_id, None)
        if note is None:
            return
        slot = self._slots.pop(note_id)
        self._ids[slot] = None
        self._vectors[slot] = 0
        self._free.append(slot)
        self.lexical.remove(slot, note.searched)
        key = link_key(note_id)
        if self._by_id.get(key) == note_id:
            del self._by_id[key]
        _drop(self._by_name, _name(key), note_id)
        _drop(self._by_title, link_key(note.title), note_id)
        for target in note.link_keys:
            self._linking[_name(target)].discard(note_id)
        self._stale_degrees |= self._linking.get(_name(key), set()) | {note_id}

    def __len__(self) -> int:
        return len(self.notes)

    @property
    def size(self) -> int:
        """Number of slots; those without a note score 0."""
        return len(self._ids)

    def id_at(self, slot: int) -> str | None:
        return self._ids[slot]

    def slot_of(self, note_id: str) -> int:
        return self._slots[note_id]

    def vector_of(self, note_id: str) -> Vector:
        """A copy of the note's vector."""
        vector: Vector = self._vectors[self._slots[note_id]].copy()
        return vector

    def cosines(self, vector: Vector) -> Vector:
        """Cosine of ``vector`` (unit length, shape (512,)) with every slot, negatives as 0."""
        cosines: Vector = self._vectors[: self.size] @ vector
        return np.maximum(cosines, 0.0, out=cosines)

    def titled(self, title: str) -> str | None:
        """The id of the note with that title, whatever its case."""
        return min(self._by_title.get(link_key(title), ()), default=None)

    def is_known(self, note_id: str) -> bool:
        """Whether a note has that id, on a file system that ignores case as well."""
        return link_key(note_id) in self._by_id

    def resolve(self, key: str) -> str | None:
        """The note that a link means (``key`` from :func:`link_key`).

        The exact id wins, then the file name; of several with that name the one nearest to the
        vault's root.
        """
        exact = self._by_id.get(key)
        if exact is not None:
            return exact
        named = self._by_name.get(_name(key))
        return min(named, key=lambda note_id: (note_id.count("/"), note_id)) if named else None

    def neighbours(self, note_id: str) -> list[str]:
        """Where the note's links lead, each once, itself left out."""
        note = self.notes.get(note_id)
        targets = (self.resolve(key) for key in note.link_keys) if note else ()
        return list(dict.fromkeys(t for t in targets if t is not None and t != note_id))

    def edges(self) -> Iterator[tuple[str, str]]:
        for note_id in self.notes:
            for target in self.neighbours(note_id):
                yield note_id, target

    def unresolved(self) -> Iterator[tuple[str, str]]:
        """(note id, link target as written) of links that lead nowhere."""
        for note in self.notes.values():
            for target in note.links:
                if self.resolve(link_key(target)) is None:
                    yield note.id, target

    @property
    def edge_count(self) -> int:
        """Number of :meth:`edges`; only what changed is counted again."""
        for note_id in self._stale_degrees:
            degree = len(self.neighbours(note_id))
            self._edge_count += degree - self._degrees.pop(note_id, 0)
            if degree:
                self._degrees[note_id] = degree
        self._stale_degrees.clear()
        return self._edge_count


def _name(key: str) -> str:
    """The file name in an id's or link's key."""
    return key.rpartition("/")[2]


def _drop(table: dict[str, list[str]], key: str, note_id: str) -> None:
    table[key].remove(note_id)
    if not table[key]:
        del table[key]
