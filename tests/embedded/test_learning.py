"""Hebbian learning and consolidation on a real state file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bdh_bridge.graph.embedded import hebbian
from bdh_bridge.graph.embedded.consolidation import STALE_SECONDS, consolidate, quality
from bdh_bridge.graph.embedded.hebbian import Synapse, learn
from bdh_bridge.graph.embedded.state import GraphState, StoredAnswer

NOW = 1_800_000_000.0


@pytest.fixture
def state(tmp_path: Path) -> Iterator[GraphState]:
    state = GraphState(tmp_path / "graph.sqlite3", tmp_path)
    yield state
    state.close()


def weights(state: GraphState) -> dict[str, float]:
    return {synapse.pair: synapse.weight for synapse in hebbian.synapses(state)}


def set_synapse(state: GraphState, a: str, b: str, weight: float, f: float, last: float) -> None:
    state.connection.execute(
        "INSERT OR REPLACE INTO synapses VALUES (?, ?, ?, ?, ?, ?)",
        (state.vault, a, b, weight, f, last),
    )


def test_weight_grows_with_frequency_up_to_one() -> None:
    assert hebbian.weight_of(1.0) == pytest.approx(0.37)
    assert hebbian.weight_of(1.3) == pytest.approx(0.391)
    assert hebbian.weight_of(2.3) == pytest.approx(0.461)
    assert hebbian.weight_of(10) == hebbian.weight_of(99) == pytest.approx(1.0)


def test_every_pair_of_active_notes_is_strengthened(state: GraphState) -> None:
    updates = learn(state, ["c", "a", "b"], 1.0, NOW)
    assert {s.pair for s in updates} == {"a|b", "a|c", "b|c"}
    learn(state, ["b", "a"], 0.3, NOW + 1)
    synapses = {s.pair: s for s in hebbian.synapses(state)}
    assert synapses["a|b"].frequency == pytest.approx(1.3)
    assert synapses["a|b"].weight == pytest.approx(0.391)
    assert synapses["a|b"].last == NOW + 1
    assert synapses["a|c"].weight == pytest.approx(0.37)  # one end active: no decay


def test_synapses_of_idle_notes_fade_and_vanish(state: GraphState) -> None:
    learn(state, ["a", "b"], 1.0, NOW)
    learn(state, ["x", "y"], 1.0, NOW)
    assert weights(state)["a|b"] == pytest.approx(0.37 * 0.95)
    set_synapse(state, "a", "b", 0.0104, 1.0, NOW)
    learn(state, ["x", "y"], 1.0, NOW)
    assert "a|b" not in weights(state)


def test_a_query_without_active_notes_lets_all_fade(state: GraphState) -> None:
    learn(state, ["a", "b"], 1.0, NOW)
    assert learn(state, [], 1.0, NOW) == []
    assert weights(state)["a|b"] == pytest.approx(0.37 * 0.95)


def test_boost_is_a_share_of_the_strongest_synapse(state: GraphState) -> None:
    set_synapse(state, "a", "b", 0.552, 3.6, NOW)
    set_synapse(state, "b", "c", 0.3, 0.3, NOW)
    assert hebbian.boost(state, "b") == pytest.approx(0.4968)
    assert hebbian.boost(state, "c") == pytest.approx(0.27)
    assert hebbian.boost(state, "d") == 0.0


def test_vaults_in_one_file_do_not_see_each_other(state: GraphState, tmp_path: Path) -> None:
    other = GraphState(state.path, tmp_path / "other")
    try:
        learn(state, ["a", "b"], 1.0, NOW)
        state.keep_answer("k", StoredAnswer(b"1", "{}"), NOW)
        assert hebbian.synapses(other) == []
        assert other.answer("k", NOW) is None
        assert other.instance != state.instance
    finally:
        other.close()


def test_consolidation_scales_drops_and_reports(state: GraphState) -> None:
    old = NOW - STALE_SECONDS - 1
    set_synapse(state, "a", "b", 0.8, 9.0, old)
    set_synapse(state, "a", "c", 0.15, 1.0, old)  # scaled to 0.135: weak, once, old
    set_synapse(state, "a", "d", 0.15, 1.0, NOW)  # weak but fresh
    set_synapse(state, "a", "e", 0.15, 2.0, old)  # weak but seen twice
    set_synapse(state, "a", "f", 0.022, 5.0, NOW)  # scaled below the floor
    notes = list("abcdef")

    planned = consolidate(state, notes, NOW, dry_run=True)
    assert len(weights(state)) == 5
    assert weights(state)["a|b"] == 0.8
    assert state.dormant() == set()

    done = consolidate(state, notes, NOW, dry_run=False)
    assert done == planned
    assert (done.synapses_before, done.synapses_after) == (5, 3)
    assert (done.floor_dropped, done.stale_dropped) == (1, 1)
    assert weights(state) == pytest.approx({"a|b": 0.72, "a|d": 0.135, "a|e": 0.135})
    assert (done.dormant_before, done.dormant_after) == (0, len(state.dormant()))
    assert {"c", "f"} <= state.dormant()
    assert "b" not in state.dormant()
    state.wake(["c"])
    assert "c" not in state.dormant()


def test_quality_follows_its_formula() -> None:
    synapses = [Synapse("a", "b", 0.8, 3.0, NOW), Synapse("a", "c", 0.4, 1.0, NOW)]
    assert quality(synapses, 8.0) == pytest.approx(0.40 * 0.5 + 0.35 * 0.6 + 0.25 * 0.5)
    assert quality([], 8.0) == 0.0


def test_answers_are_kept_for_a_day(state: GraphState) -> None:
    state.keep_answer("k", StoredAnswer(b"digest", "{}"), NOW)
    assert state.answer("k", NOW + 86_399) == StoredAnswer(b"digest", "{}")
    assert state.answer("k", NOW + 86_400) is None
    state.keep_answer("other", StoredAnswer(b"digest", "{}"), NOW + 86_401)
    rows = state.connection.execute("SELECT key FROM answers").fetchall()
    assert [row[0] for row in rows] == ["other"]
