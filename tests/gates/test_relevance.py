"""When the graph's answer is evidence enough."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bdh_bridge.gates.reasons import Reason
from bdh_bridge.gates.relevance import relevance

NOTES = [{"title": "Water levels", "score": 0.41}]


def routing(hybrid: Any, terms: Any, vector: Any) -> dict[str, Any]:
    return {
        "hybrid_top_score": hybrid,
        "bm25_matched_term_count": terms,
        "vector_top_score": vector,
        "bm25_top_score": 1.0,
    }


@pytest.mark.parametrize(
    ("scores", "reason", "allowed"),
    [
        (routing(0.30, 2, 0.0), Reason.TERMS_MATCHED, True),
        (routing(0.30, 1, 0.50), Reason.VECTOR_MATCHED, True),
        (routing(0.30, 0, 0.50), Reason.VECTOR_MATCHED, True),
        (routing(0.2999, 9, 0.99), Reason.LOW_SCORE, False),
        (routing(0.90, 1, 0.4999), Reason.WEAK_MATCH, False),
        (routing(float("nan"), 9, 0.9), Reason.LOW_SCORE, False),
        (routing(float("inf"), 9, 0.9), Reason.LOW_SCORE, False),
        (routing("0.9", 9, 0.9), Reason.LOW_SCORE, False),
        (routing(True, 9, 0.9), Reason.LOW_SCORE, False),
        (routing(0.9, None, [1]), Reason.WEAK_MATCH, False),
        ({"something_new": 1}, Reason.LOW_SCORE, False),
    ],
)
def test_hybrid_score_and_a_second_witness(
    scores: dict[str, Any], reason: Reason, allowed: bool
) -> None:
    decision = relevance(scores, NOTES)
    assert (decision.reason, decision.allowed) == (reason, allowed)
    # What was held against what is there for whoever asks why.
    assert {"bdh.gate.value", "bdh.gate.threshold", "bdh.gate.unit"} <= decision.details.keys()


def test_empty_routing_is_no_evidence_and_no_error() -> None:
    assert relevance({}, NOTES).reason == Reason.NO_EVIDENCE
    assert not relevance({}, NOTES).allowed


def test_scores_without_a_note_have_nothing_to_show() -> None:
    assert relevance(routing(0.9, 5, 0.9), []).reason == Reason.NO_NOTES


@pytest.mark.parametrize(("best", "allowed"), [(0.30, True), (0.2999, False)])
def test_an_older_server_is_judged_by_its_best_note(best: float, allowed: bool) -> None:
    notes = [{"score": 0.1}, SimpleNamespace(score=best), {"score": None}, {}]
    assert relevance(None, notes).allowed is allowed


def test_an_older_server_without_notes() -> None:
    assert relevance(None, []).reason == Reason.NO_NOTES
