"""The graph of one vault: what the routes call. One thread at a time owns it."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bdh_bridge.graph.embedded import consolidation, hebbian, neurogenesis, retrieval, vault
from bdh_bridge.graph.embedded.encoder import Encoder
from bdh_bridge.graph.embedded.excerpts import excerpt, shorten
from bdh_bridge.graph.embedded.hebbian import Synapse
from bdh_bridge.graph.embedded.index import Note, NoteIndex, Vector, recent
from bdh_bridge.graph.embedded.lexical import terms_of
from bdh_bridge.graph.embedded.requests import BadRequest, QueryRequest
from bdh_bridge.graph.embedded.retrieval import Activation, Retrieval
from bdh_bridge.graph.embedded.state import GraphState, StoredAnswer
from bdh_bridge.graph.embedded.sync import Batch, Progress, Snapshot, VaultSync
from bdh_bridge.graph.embedded.vault import NoteFile

log = logging.getLogger(__name__)

_QUERY_CHARS = 4_000  # of a longer query only the beginning is searched for
_ANSWER_NOTES = 3
_ANSWER_CHARS = 1_200


@dataclass(frozen=True, slots=True)
class Concept:
    """A note that a write created, or merged into. ``note`` is as it is afterwards."""

    note: Note
    vector: Vector
    source_titles: list[str]
    content: str | None
    """The new note's file; None when merged."""
    similarity: float = 0.0

    def to_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "id": self.note.id,
            "title": self.note.title,
            "source_notes": self.source_titles,
        }
        if self.content is None:
            shown |= {"merged": True, "similarity": self.similarity}
        return shown


class GraphService:
    """Notes in memory, learning in SQLite. All methods but :attr:`sync`'s need the one thread."""

    def __init__(
        self,
        root: Path,
        state: GraphState,
        encoder: Encoder,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.root = root
        self.state = state
        self.index = NoteIndex()
        self.sync = VaultSync(root, self.index, state, encoder)
        self._encoder = encoder
        self.clock = clock
        self._file_trouble: int | None = None
        self._evidence = {note: recent(texts) for note, texts in state.evidence().items()}

    def load(self, progress: Progress) -> None:
        """Write what a crash left unwritten, then read the vault. Raises: OSError."""
        self.write_pending_files()
        self.sync.load(self._evidence, progress)
        _ = self.index.edge_count  # counted now, not in the first query

    # Queries

    def query(self, request: QueryRequest, key: str | None) -> str:
        """Answer ``/api/query`` with a JSON text.

        With ``key`` a learning request is answered once: its answer is replayed afterwards.
        Raises: BadRequest when the key came with another request before.
        """
        now = self.clock()
        if not request.learn:
            return json.dumps(self._body(request, self._retrieve(request)), ensure_ascii=False)
        if key is not None:
            known = self.state.answer(key, now)
            if known is not None:
                if known.request != request.digest:
                    raise BadRequest("Idempotency-Key was used for another request", status=422)
                return known.response
        found = self._retrieve(request)
        concept = self._concept(request, found.activations, now)
        return self._learn(request, found, concept, key, now)

    def _retrieve(self, request: QueryRequest) -> Retrieval:
        query = request.query[:_QUERY_CHARS]
        return retrieval.retrieve(
            self.index,
            self._encoder.encode([query])[0],
            terms_of(query),
            lambda note_id: hebbian.boost(self.state, note_id),
        )

    def _learn(
        self,
        request: QueryRequest,
        found: Retrieval,
        concept: Concept | None,
        key: str | None,
        now: float,
    ) -> str:
        active = [a.id for a in found.activations if a.score >= hebbian.ACTIVE_SCORE]
        awake = [a.id for a in found.activations if a.score >= consolidation.AWAKE_SCORE]
        assistant = request.source == "assistant_response"
        increment = hebbian.ASSISTANT_INCREMENT if assistant else hebbian.INCREMENT
        replaced = self.index.notes.get(concept.note.id) if concept else None
        old_vector = self.index.vector_of(replaced.id) if replaced else None
        try:
            with self.state.transaction():
                updates = hebbian.learn(self.state, active, increment, now)
                self.state.wake(awake)
                self.state.count_query()
                body = self._body(request, found)  # excerpts as they were when it was found
                if concept is not None:
                    self._register(request, concept, now)
                body |= self._counts()
                body["hebbian_updates"] = [update_of(synapse) for synapse in updates]
                body["new_concepts"] = [concept.to_json()] if concept else []
                response = json.dumps(body, ensure_ascii=False)
                if key is not None:
                    self.state.keep_answer(key, StoredAnswer(request.digest, response), now)
        except BaseException:
            if concept is not None:  # memory must not know more than the file
                self.index.remove(concept.note.id)
                if replaced is not None and old_vector is not None:
                    self.index.put(replaced, old_vector)
            raise
        if concept is not None:
            self._evidence[concept.note.id] = concept.note.evidence
            if concept.content is not None:
                self.write_pending_files()
        return response

    def _register(self, request: QueryRequest, concept: Concept, now: float) -> None:
        note = concept.note
        if concept.content is not None:
            self.state.add_pending_file(note.id, concept.content)
        elif note.evidence:
            self.state.add_evidence(note.id, note.evidence[-1], request.query, request.source, now)
        self.state.save_vectors([(note.digest, concept.vector.tobytes())])
        self.index.put(note, concept.vector)

    # Neurogenesis

    def _concept(
        self, request: QueryRequest, activations: list[Activation], now: float
    ) -> Concept | None:
        text = "\n".join(request.user_prompt[: neurogenesis.MAX_TEXT_CHARS].splitlines()).strip()
        if not text or not request.respond or request.source == "cron":
            return None
        title = neurogenesis.title_from(request.query, text)
        sources = [
            (a.id, self.index.notes[a.id].title)
            for a in activations
            if not a.hop and a.hybrid >= neurogenesis.SOURCE_HYBRID
        ]
        note_id = neurogenesis.free_id(title, self._is_taken)
        content = neurogenesis.render(title, text, sources, now)
        file = NoteFile(note_id, self.root / f"{note_id}.md", 0, 0, 0)
        note = Note.of(file, vault.parse(content, title))
        vector = self._encoder.encode_notes([note.embedded])[0]
        titles = [name for _, name in sources]
        equal = self.index.titled(title)
        cosines = self.index.cosines(vector)
        if equal is not None:
            similarity = float(cosines[self.index.slot_of(equal)])
            return self._merge(equal, text, titles, similarity)
        nearest = int(np.argmax(cosines)) if len(cosines) else -1
        if nearest >= 0 and cosines[nearest] >= neurogenesis.MERGE_COSINE:
            near = self.index.id_at(nearest)
            if near is not None:
                return self._merge(near, text, titles, float(cosines[nearest]))
        return Concept(note, vector, titles, content)

    def _merge(self, note_id: str, text: str, titles: list[str], similarity: float) -> Concept:
        note = self.index.notes[note_id]
        if text not in note.evidence and text not in note.body:
            note = replace(note, evidence=recent((*note.evidence, text)))
            vector = self._encoder.encode_notes([note.embedded])[0]
        else:
            vector = self.index.vector_of(note_id)
        return Concept(note, vector, titles, None, similarity)

    def _is_taken(self, note_id: str) -> bool:
        return self.index.is_known(note_id) or os.path.lexists(self.root / f"{note_id}.md")

    def write_pending_files(self) -> None:
        """Give every committed new note its file; what fails is tried again later."""
        for note_id, content in self.state.pending_files():
            try:
                written = self._write_file(note_id, content)
            except OSError as error:
                # Tried at every look at the vault: said once.
                if error.errno != self._file_trouble:
                    self._file_trouble = error.errno
                    log.warning(
                        "[bdh-bridge] new notes have no files yet (%s, first %s); "
                        "they are kept in %s and tried again",
                        error.strerror,
                        note_id,
                        self.state.path,
                    )
                return
            self._file_trouble = None
            self.state.file_written(note_id)
            known = self.index.notes.get(note_id)
            if known is not None:
                vector = self.index.vector_of(note_id)
                self.index.remove(note_id)
                self.index.put(replace(known, file=written), vector)

    def _write_file(self, note_id: str, content: str) -> NoteFile:
        """The file holding ``content``, under another name if somebody took this one."""
        if not neurogenesis.write_file(self.root, note_id, content):
            path = self.root / f"{note_id}.md"
            if path.read_bytes() != content.encode():  # not what we wrote before a crash
                stem = note_id.rpartition("/")[2]
                note_id = neurogenesis.free_id(f"{stem} note", self._is_taken)
                return self._write_file(note_id, content)
        return vault.file_of(self.root, note_id)

    # Keeping up with the vault

    def snapshot(self) -> Snapshot:
        return Snapshot(
            {note.id: note.file for note in self.index.notes.values()},
            dict(self._evidence),
            frozenset(note_id for note_id, _ in self.state.pending_files()),
        )

    def apply(self, batch: Batch) -> None:
        self.sync.apply(batch, self._evidence)

    # Answers

    def _body(self, request: QueryRequest, found: Retrieval) -> dict[str, Any]:
        notes = [self._activated(a, found.terms) for a in found.activations]
        return {
            "response": self._extract(found) if request.respond else "",
            "activated_notes": notes,
            "new_concepts": [],
            "hebbian_updates": [],
            "routing": found.routing,
            **self._counts(),
        }

    def _counts(self) -> dict[str, int]:
        return {
            "hebbian_synapses": hebbian.count(self.state),
            "queries_processed": self.state.queries,
            "neuron_count": len(self.index),
            "synapse_count": self.index.edge_count,
        }

    def _activated(self, activation: Activation, terms: list[str]) -> dict[str, Any]:
        note = self.index.notes[activation.id]
        return {
            **retrieval.details(activation),
            "title": note.title,
            "score": round(activation.score, 4),
            "display_label": note.title,
            "path": str(note.file.path),
            "relative_path": f"{note.id}.md",
            "excerpt": excerpt(note.text, terms),
        }

    def _extract(self, found: Retrieval) -> str:
        """Passages of the best notes, each with its source: no model wrote this."""
        best = [a for a in found.activations if a.hybrid >= neurogenesis.SOURCE_HYBRID]
        passages: list[str] = []
        for activation in best[:_ANSWER_NOTES]:
            note = self.index.notes[activation.id]
            passage = excerpt(note.text, found.terms)
            if passage:
                passages.append(f"{passage} [from: {note.title}]")
        return shorten("\n".join(passages), _ANSWER_CHARS)


def update_of(synapse: Synapse) -> dict[str, Any]:
    """A synapse as the API names it in updates."""
    return {"pair": synapse.pair, "weight": synapse.weight, "frequency": synapse.frequency}
