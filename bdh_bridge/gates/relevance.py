"""Gate ``relevance``: whether what the graph found is evidence enough to be shown.

A nonsense query still activates notes, so the scores decide. A graph's lexical score is
normalised by its own best candidate and always looks perfect; the number of matched terms is
the lexical signal that means something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bdh_bridge.gates.decision import Decision, GatePath, allow, skip
from bdh_bridge.gates.reasons import Reason
from bdh_bridge.graph.models import number
from bdh_otel import attributes as attr

NAME = "relevance"
MINIMUM_HYBRID = 0.30
MINIMUM_TERMS = 2
MINIMUM_VECTOR = 0.50
MINIMUM_NOTE_SCORE = 0.30


def relevance(routing: Mapping[str, Any] | None, notes: Iterable[Any]) -> Decision:
    """Judge one answer of the graph.

    ``routing`` is the server's object of scores: None when the server is too old to send one,
    ``{}`` when it had no evidence. ``notes`` are mappings or objects with ``score``. Numbers
    that are missing, not finite or no numbers count as 0.
    """
    scores = [number(_score_of(note)) for note in notes]
    if routing is None:
        return _by_best_note(scores)
    if not routing:
        return skip(NAME, GatePath.READ, Reason.NO_EVIDENCE)
    if not scores:
        return skip(NAME, GatePath.READ, Reason.NO_NOTES)
    hybrid = number(routing.get("hybrid_top_score"))
    terms = number(routing.get("bm25_matched_term_count"))
    vector = number(routing.get("vector_top_score"))
    if hybrid < MINIMUM_HYBRID:
        return skip(
            NAME, GatePath.READ, Reason.LOW_SCORE, **_measured(hybrid, MINIMUM_HYBRID, "hybrid")
        )
    if terms >= MINIMUM_TERMS:
        return allow(
            NAME, GatePath.READ, Reason.TERMS_MATCHED, **_measured(terms, MINIMUM_TERMS, "terms")
        )
    measured = _measured(vector, MINIMUM_VECTOR, "vector")
    if vector >= MINIMUM_VECTOR:
        return allow(NAME, GatePath.READ, Reason.VECTOR_MATCHED, **measured)
    return skip(NAME, GatePath.READ, Reason.WEAK_MATCH, **measured)


def _by_best_note(scores: list[float]) -> Decision:
    if not scores:
        return skip(NAME, GatePath.READ, Reason.NO_NOTES)
    best = max(scores)
    measured = _measured(best, MINIMUM_NOTE_SCORE, "note_score")
    if best >= MINIMUM_NOTE_SCORE:
        return allow(NAME, GatePath.READ, Reason.BEST_NOTE, **measured)
    return skip(NAME, GatePath.READ, Reason.LOW_SCORE, **measured)


def _measured(value: float, threshold: float, unit: str) -> dict[str, Any]:
    return {
        attr.GATE_VALUE: float(value),
        attr.GATE_THRESHOLD: float(threshold),
        attr.GATE_UNIT: unit,
    }


def _score_of(note: Any) -> Any:
    return note.get("score") if isinstance(note, Mapping) else getattr(note, "score", None)
