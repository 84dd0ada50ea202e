"""Hybrid retrieval: vectors and BM25 choose seeds, links spread from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bdh_bridge.graph.embedded.index import NoteIndex, Vector

SEEDS = 5
CANDIDATES = 5 * SEEDS
VECTOR_SHARE = 0.7
BM25_SHARE = 0.3
#: Hybrid scores below this are noise with this encoder.
SEED_FLOOR = 0.10
SPREAD = 0.5
SPREAD_FLOOR = 0.25
MAX_HOPS = 2
#: Most notes that one query activates: learning is quadratic in it.
MAX_ACTIVATED = 30


@dataclass(slots=True)
class Activation:
    """One activated note. Scores are 0 to 1, except that a boost may lift ``score`` above."""

    id: str
    vector: float
    bm25: float
    hybrid: float
    score: float
    """What counts: the note's own boosted score, or what a link brought, whichever is more."""
    boost: float = 0.0
    own: float = 0.0
    """Final score without what links brought to a seed."""
    hop: int = 0
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Retrieval:
    activations: list[Activation]
    """Best first."""
    terms: list[str]
    """Distinct query terms that some note holds."""
    routing: dict[str, Any]
    """Evidence before links were followed, in the API's own names."""


def retrieve(
    index: NoteIndex, vector: Vector, terms: list[str], boost: Callable[[str], float]
) -> Retrieval:
    """Search ``index`` by a query's unit vector and BM25 terms.

    ``boost`` gives the share by which learning raises a seed (see :mod:`.hebbian`).
    """
    vectors = index.cosines(vector)
    raw = index.lexical.scores(terms, index.size)
    best = float(raw.max(initial=0.0))
    bm25 = raw / best if best > 0 else raw
    hybrid = VECTOR_SHARE * vectors + BM25_SHARE * bm25

    candidates = np.union1d(_top(vectors), _top(bm25))
    ranked = candidates[np.argsort(-hybrid[candidates], kind="stable")]
    scores = hybrid[ranked]
    threshold = SEED_FLOOR
    if len(scores) >= 5:
        threshold = max(float(np.median(scores) + 0.3 * np.std(scores)), SEED_FLOOR)

    def activation(slot: int, note_id: str, **more: Any) -> Activation:
        own = float(hybrid[slot])
        return Activation(note_id, float(vectors[slot]), float(bm25[slot]), own, own, **more)

    seeds: list[Activation] = []
    for slot in (int(slot) for slot in ranked[scores >= threshold][:SEEDS]):
        note_id = index.id_at(slot)
        if note_id is not None:
            seed = activation(slot, note_id)
            seed.boost = boost(note_id)
            seed.score = seed.own = seed.hybrid * (1 + seed.boost)
            seeds.append(seed)
    activated = {seed.id: seed for seed in seeds}
    frontier = seeds
    for hop in range(1, MAX_HOPS + 1):
        reached: dict[str, Activation] = {}
        for parent in frontier:
            brought = parent.score * SPREAD
            if brought <= SPREAD_FLOOR:
                continue
            for neighbour in index.neighbours(parent.id):
                known = activated.get(neighbour) or reached.get(neighbour)
                if known is None:
                    slot = index.slot_of(neighbour)
                    known = reached[neighbour] = activation(
                        slot, neighbour, hop=hop, parent=parent.id
                    )
                    known.score = known.own = brought
                elif brought > known.score:
                    known.score = brought
                    if known.hop:
                        known.own, known.parent = brought, parent.id
        activated |= reached
        frontier = list(reached.values())

    best_first = sorted(activated.values(), key=lambda a: (-a.score, -a.hybrid, a.id))
    best_first = best_first[:MAX_ACTIVATED]
    matched = index.lexical.known(terms)
    top = float(scores[0]) if len(scores) else 0.0
    second = float(scores[1]) if len(scores) > 1 else 0.0
    routing = {
        "vector_top_score": float(vectors.max(initial=0.0)),
        "bm25_top_score": 1.0 if best > 0 else 0.0,
        "bm25_query_term_count": len(set(terms)),
        "bm25_matched_term_count": len(matched),
        "bm25_matched_terms": matched,
        "hybrid_top_score": top,
        "hybrid_second_score": second,
        "hybrid_margin": top - second,
        "hybrid_enabled": True,
        "activation_details": [details(a) for a in best_first],
    }
    return Retrieval(best_first, matched, routing)


def details(activation: Activation) -> dict[str, Any]:
    """The activation's fields as the API names them; scores with four decimals."""
    return {
        "id": activation.id,
        "role": "graph_neighbor" if activation.hop else "seed",
        "hop": activation.hop,
        "parent_id": activation.parent,
        "vector_score": round(activation.vector, 4),
        "bm25_score": round(activation.bm25, 4),
        "hybrid_score": round(activation.hybrid, 4),
        "hebbian_boost": round(activation.boost, 4),
        "final_score": round(activation.own, 4),
    }


def _top(scores: Vector) -> np.ndarray[Any, np.dtype[np.intp]]:
    """The slots of the :data:`CANDIDATES` highest scores above 0."""
    if len(scores) > CANDIDATES:
        best = np.argpartition(-scores, CANDIDATES)[:CANDIDATES]
    else:
        best = np.arange(len(scores))
    return best[scores[best] > 0]
