"""What the graph server answers, read leniently.

Unknown keys are ignored and missing or odd ones take a neutral value: the server moves on, and
one strange note must not cost a turn its other notes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Items of one list that are looked at; a graph gives some dozens.
MAX_ITEMS = 1_000
MAX_COUNT = 2**53


@dataclass(frozen=True, slots=True)
class Note:
    """An activated note. ``score`` is the server's final relevance, mostly 0 to 1."""

    id: str
    title: str
    score: float
    role: str = ""
    hop: int = 0
    vector_score: float = 0.0
    hybrid_score: float = 0.0
    excerpt: str = ""


@dataclass(frozen=True, slots=True)
class Routing:
    """The evidence on which a retrieval is judged, before the graph's own expansion."""

    vector_top: float = 0.0
    bm25_top: float = 0.0
    hybrid_top: float = 0.0
    hybrid_second: float = 0.0
    hybrid_margin: float = 0.0
    query_terms: int = 0
    matched_terms: int = 0
    matched: tuple[str, ...] = ()
    hybrid_enabled: bool = False


@dataclass(frozen=True, slots=True)
class QueryResult:
    """An answer of ``POST /api/query``.

    ``routing`` is None where an older server sends none, and ``has_evidence`` is False where a
    newer one sends ``{}`` (its embedder failed).
    """

    response: str
    notes: tuple[Note, ...]
    routing: Routing | None
    has_evidence: bool
    new_concepts: tuple[str, ...]
    hebbian_updates: int
    queries_processed: int
    neurons: int
    synapses: int

    @property
    def degraded(self) -> str:
        """Why the answer is only half an answer: ``llm_error``, ``no_routing``, or empty."""
        if self.response.startswith("[LLM error"):
            return "llm_error"
        return "" if self.has_evidence else "no_routing"


def parse_query(body: Mapping[str, Any]) -> QueryResult:
    """Read the body of ``POST /api/query``."""
    raw_routing = body.get("routing")
    routing = _routing(raw_routing) if isinstance(raw_routing, Mapping) else None
    notes = [note for raw in _items(body.get("activated_notes")) if (note := _note(raw))]
    notes.sort(key=lambda note: note.score, reverse=True)
    return QueryResult(
        response=_text(body.get("response")),
        notes=tuple(notes),
        routing=routing,
        has_evidence=routing is None or bool(raw_routing),
        new_concepts=tuple(
            _text(concept.get("title"))
            for concept in _items(body.get("new_concepts"))
            if isinstance(concept, Mapping)
        ),
        hebbian_updates=_count(body.get("hebbian_updates")),
        queries_processed=_count(body.get("queries_processed")),
        neurons=_count(body.get("neuron_count")),
        synapses=_count(body.get("synapse_count")),
    )


def merge(results: list[QueryResult]) -> QueryResult:
    """Several variants of one question as one answer: each note's best score, and the routing
    of the variant with the best hybrid score."""
    if len(results) == 1:
        return results[0]
    best: dict[str, Note] = {}
    for result in results:
        for note in result.notes:
            if note.id not in best or note.score > best[note.id].score:
                best[note.id] = note
    with_routing = [result for result in results if result.routing and result.has_evidence]
    lead = max(
        with_routing, key=lambda result: result.routing.hybrid_top if result.routing else 0.0,
        default=results[0],
    )  # fmt: skip
    notes = tuple(sorted(best.values(), key=lambda note: note.score, reverse=True))
    return QueryResult(
        lead.response, notes, lead.routing, lead.has_evidence, lead.new_concepts,
        lead.hebbian_updates, lead.queries_processed, lead.neurons, lead.synapses,
    )  # fmt: skip


def _note(raw: Any) -> Note | None:
    if not isinstance(raw, Mapping):
        return None
    # Titles of generated notes can carry the quotes of their front matter.
    title = _text(raw.get("title") or raw.get("display_label")).strip().strip('"').strip()
    identifier = _text(raw.get("id")) or title
    if not identifier:
        return None
    return Note(
        id=identifier,
        title=title or identifier,
        score=number(raw.get("score", raw.get("final_score"))),
        role=_text(raw.get("role")),
        hop=_count(raw.get("hop")),
        vector_score=number(raw.get("vector_score")),
        hybrid_score=number(raw.get("hybrid_score")),
        excerpt=_text(raw.get("excerpt")),
    )


def _routing(raw: Mapping[str, Any]) -> Routing:
    matched = tuple(_text(term) for term in _items(raw.get("bm25_matched_terms")))
    count = raw.get("bm25_matched_term_count")
    return Routing(
        vector_top=number(raw.get("vector_top_score")),
        bm25_top=number(raw.get("bm25_top_score")),
        hybrid_top=number(raw.get("hybrid_top_score")),
        hybrid_second=number(raw.get("hybrid_second_score")),
        hybrid_margin=number(raw.get("hybrid_margin")),
        query_terms=_count(raw.get("bm25_query_term_count")),
        matched_terms=len(matched) if count is None else _count(count),
        matched=matched,
        hybrid_enabled=raw.get("hybrid_enabled") is True,
    )


def number(value: Any) -> float:
    """A finite float, or 0.0 for anything else (a bool is not a number here)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    try:
        return float(value) if math.isfinite(value) else 0.0
    except OverflowError:  # JSON's integers have no end
        return 0.0


def _count(value: Any) -> int:
    """A count that arrives as a number or, in this API, sometimes as the counted list."""
    if isinstance(value, list):
        return len(value)
    return int(max(0.0, min(number(value), MAX_COUNT)))


def _items(value: Any) -> list[Any]:
    return value[:MAX_ITEMS] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
