"""Reading answers leniently."""

from __future__ import annotations

from typing import Any

import pytest

from bdh_bridge.graph.models import MAX_COUNT, MAX_ITEMS, merge, parse_query


def note(identifier: str, score: Any, **more: Any) -> dict[str, Any]:
    return {"id": identifier, "title": identifier.title(), "score": score, **more}


def test_notes_are_sorted_by_score_and_quotes_leave_their_titles() -> None:
    result = parse_query(
        {"activated_notes": [note("a", 0.2), note("b", 0.9, title='"Group Commit"', new_key=1)]}
    )
    assert [n.title for n in result.notes] == ["Group Commit", "A"]


@pytest.mark.parametrize(
    "odd", [None, "text", 5, [], {}, {"id": None, "title": ""}, {"score": float("nan")}]
)
def test_one_strange_note_costs_no_other(odd: Any) -> None:
    result = parse_query({"activated_notes": [odd, note("a", 0.5)]})
    assert [n.id for n in result.notes] == ["a"]


@pytest.mark.parametrize(
    "body",
    [{}, {"activated_notes": None, "routing": None}, {"response": 5, "hebbian_updates": "x"}],
)
def test_missing_and_odd_fields_take_neutral_values(body: dict[str, Any]) -> None:
    result = parse_query(body)
    assert result.notes == ()
    assert result.response == ""
    assert result.routing is None
    assert result.has_evidence


def test_an_empty_routing_is_no_evidence_and_none_is_an_older_server() -> None:
    assert not parse_query({"routing": {}}).has_evidence
    assert parse_query({"routing": {}}).degraded == "no_routing"
    assert parse_query({}).degraded == ""
    assert (
        parse_query({"response": "[LLM error: gone]", "routing": {"x": 1}}).degraded == "llm_error"
    )


def test_updates_are_counted_from_a_list_and_synapses_from_a_number() -> None:
    body = {"hebbian_updates": [{"pair": "a|b"}] * 3, "synapse_count": 56, "neuron_count": True}
    result = parse_query(body)
    assert (result.hebbian_updates, result.synapses, result.neurons) == (3, 56, 0)


def test_a_matched_term_count_is_derived_from_the_terms_where_it_is_missing() -> None:
    routing = parse_query({"routing": {"bm25_matched_terms": ["a", "b"]}}).routing
    assert routing is not None
    assert routing.matched_terms == 2


def test_variants_merge_to_each_notes_best_score_and_the_best_routing() -> None:
    first = parse_query(
        {"activated_notes": [note("a", 0.3), note("b", 0.4)], "routing": {"hybrid_top_score": 0.4}}
    )
    second = parse_query(
        {"activated_notes": [note("a", 0.8)], "routing": {"hybrid_top_score": 0.8}}
    )
    failed = parse_query({"activated_notes": [], "routing": {}})
    merged = merge([first, failed, second])
    assert [(n.id, n.score) for n in merged.notes] == [("a", 0.8), ("b", 0.4)]
    assert merged.routing is not None
    assert merged.routing.hybrid_top == 0.8


def test_numbers_and_lists_without_end_are_bounded() -> None:
    notes = [{"id": str(number), "score": 10**400} for number in range(50_000)]
    result = parse_query(
        {"activated_notes": notes, "hebbian_updates": 1e308, "neuron_count": 10**400}
    )
    assert len(result.notes) == MAX_ITEMS
    assert result.notes[0].score == 0.0
    assert result.hebbian_updates == MAX_COUNT
    assert result.neurons == 0
