"""Keeps the index in step with the vault's files: once at the start, then every few seconds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bdh_bridge.graph.embedded import vault
from bdh_bridge.graph.embedded.encoder import Encoder
from bdh_bridge.graph.embedded.index import Note, NoteIndex, Vector
from bdh_bridge.graph.embedded.state import GraphState
from bdh_bridge.graph.embedded.vault import NoteFile, UnreadableNote

log = logging.getLogger(__name__)

#: Notes embedded between two commits at the start: a killed cold start loses that many.
_COMMIT_EVERY = 64
#: Notes embedded between two turns of the queries while running.
_APPLY_EVERY = 16

#: Called with (notes embedded, notes to embed).
Progress = Callable[[int, int], None]
Evidence = dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the index held when a scan began."""

    files: dict[str, NoteFile]
    evidence: Evidence
    pending: frozenset[str]


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes to apply: notes with their vectors, and ids whose files are gone."""

    notes: list[tuple[Note, Vector]]
    removed: list[str]


class VaultSync:
    """Reads the vault's changes. Only :meth:`load` and :meth:`apply` touch index and state."""

    def __init__(self, root: Path, index: NoteIndex, state: GraphState, encoder: Encoder) -> None:
        self.root = root
        self._index = index
        self._state = state
        self._encoder = encoder
        self._reported: set[str] = set()
        self._unreadable: dict[str, NoteFile] = {}

    def load(self, evidence: Evidence, progress: Progress) -> None:
        """Fill the empty index; only texts never seen before are embedded. Raises: OSError."""
        stored = dict(self._state.vectors())
        missing: list[Note] = []
        used: set[bytes] = set()
        for file in self._scan():
            note = self._read(file, evidence)
            if note is None:
                continue
            vector = stored.get(note.digest)
            if vector is None:
                missing.append(note)
            else:
                used.add(note.digest)
                self._index.put(note, np.frombuffer(vector, dtype=np.float32))
        unused = stored.keys() - used
        del stored
        for start in range(0, len(missing), _COMMIT_EVERY):
            progress(start, len(missing))
            self.apply(Batch(self._embed(missing[start : start + _COMMIT_EVERY]), []), evidence)
        if missing:
            progress(len(missing), len(missing))
        # Texts come back (branches, undo), so old vectors are kept until they are the most part.
        if len(unused) > max(1_000, len(self._index)):
            with self._state.transaction():
                self._state.forget_vectors(unused)

    def changes(self, before: Snapshot) -> Iterator[Batch]:
        """What changed since ``before``; reads and embeds in the caller's thread.

        Raises: OSError if the vault can't be listed.
        """
        seen: set[str] = set()
        changed: list[NoteFile] = []
        for file in self._scan():
            if before.files.get(file.id) == file:
                seen.add(file.id)
            elif self._unreadable.get(file.id) != file:
                seen.add(file.id)
                changed.append(file)
        for start in range(0, len(changed), _APPLY_EVERY):
            notes: list[Note] = []
            for file in changed[start : start + _APPLY_EVERY]:
                note = self._read(file, before.evidence)
                if note is None:
                    seen.discard(file.id)
                else:
                    notes.append(note)
            yield Batch(self._embed(notes), [])
        removed = before.files.keys() - seen - before.pending
        if removed:
            yield Batch([], sorted(removed))

    def apply(self, batch: Batch, evidence: Evidence) -> None:
        """Put a batch into index and state; ``evidence`` is what holds now."""
        # A write may have merged something into a note since it was read: its next turn will come.
        notes = [
            (note, vector)
            for note, vector in batch.notes
            if evidence.get(note.id, ()) == note.evidence
        ]
        if notes:
            with self._state.transaction():
                self._state.save_vectors((note.digest, vector.tobytes()) for note, vector in notes)
        for note, vector in notes:
            self._index.put(note, vector)
        for note_id in batch.removed:
            self._index.remove(note_id)

    def _scan(self) -> Iterator[NoteFile]:
        problems: list[str] = []
        yield from vault.scan(self.root, problems)
        for problem in problems:
            self._report(problem)

    def _read(self, file: NoteFile, evidence: Evidence) -> Note | None:
        try:
            text = vault.read(file)
        except UnreadableNote as error:
            self._unreadable[file.id] = file
            self._report(str(error))
            return None
        self._unreadable.pop(file.id, None)
        return Note.of(file, text, evidence.get(file.id, ()))

    def _embed(self, notes: Sequence[Note]) -> list[tuple[Note, Vector]]:
        vectors = self._encoder.encode_notes([note.embedded for note in notes])
        return list(zip(notes, vectors, strict=True))

    def _report(self, problem: str) -> None:
        if problem not in self._reported:
            self._reported.add(problem)
            log.warning("[bdh-bridge] note left out: %s", vault.clean_line(problem))
