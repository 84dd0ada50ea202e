"""Seeds, spreading and boosts, with vectors made so that every score is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bdh_bridge.graph.embedded.index import Note, NoteIndex, Vector
from bdh_bridge.graph.embedded.retrieval import MAX_ACTIVATED, Retrieval, retrieve
from bdh_bridge.graph.embedded.vault import NoteFile, NoteText


def unit(cosine: float) -> Vector:
    """A unit vector with that cosine to :data:`QUERY`."""
    vector = np.zeros(512, dtype=np.float32)
    vector[0], vector[1] = cosine, np.sqrt(1 - cosine**2)
    return vector


QUERY = unit(1.0)


def index_of(notes: dict[str, tuple[float, str, tuple[str, ...]]]) -> NoteIndex:
    index = NoteIndex()
    for note_id, (cosine, body, links) in notes.items():
        file = NoteFile(note_id, Path(f"{note_id}.md"), 0, 0, 0)
        index.put(Note.of(file, NoteText(note_id, body, links)), unit(cosine))
    return index


def ask(index: NoteIndex, terms: list[str], boosts: dict[str, float] | None = None) -> Retrieval:
    return retrieve(index, QUERY, terms, lambda note_id: (boosts or {}).get(note_id, 0.0))


def test_hybrid_is_seven_tenths_vector_and_three_tenths_of_the_best_bm25() -> None:
    index = index_of({"a": (0.723, "crash", ()), "b": (0.5, "nothing", ())})
    found = ask(index, ["crash"])
    first, second = found.activations
    assert (first.id, first.bm25) == ("a", 1.0)
    assert first.score == pytest.approx(0.7 * 0.723 + 0.3, abs=1e-4)
    assert second.score == pytest.approx(0.35, abs=1e-4)
    assert found.routing["hybrid_margin"] == pytest.approx(first.score - second.score, abs=1e-6)


def test_links_bring_half_of_the_score_and_a_seed_keeps_the_better_one() -> None:
    index = index_of(
        {
            "top": (0.9, "x", ("linked", "seed2")),
            "seed2": (0.3, "x", ()),
            "linked": (-0.5, "x", ("beyond",)),
            "beyond": (-0.5, "x", ()),
        }
    )
    notes = {a.id: a for a in ask(index, []).activations}
    assert notes["linked"].score == pytest.approx(0.315, abs=1e-4)
    assert (notes["linked"].hop, notes["linked"].parent) == (1, "top")
    assert notes["linked"].vector == 0.0
    assert notes["seed2"].score == pytest.approx(0.315, abs=1e-4)
    assert (notes["seed2"].hop, notes["seed2"].parent) == (0, None)
    assert notes["seed2"].own == pytest.approx(0.21, abs=1e-4)
    assert "beyond" not in notes  # 0.1575 is not over 0.25


def test_a_boost_raises_a_seeds_score_and_reaches_two_hops() -> None:
    index = index_of(
        {"top": (0.9, "x", ("one",)), "one": (-0.5, "x", ("two",)), "two": (-0.5, "x", ())}
    )
    notes = {a.id: a for a in ask(index, [], {"top": 0.8}).activations}
    assert notes["top"].score == pytest.approx(0.63 * 1.8, abs=1e-4)
    assert notes["two"].score == pytest.approx(0.63 * 1.8 / 4, abs=1e-4)
    assert notes["two"].hop == 2


def test_at_most_five_seeds_and_only_those_that_stand_out() -> None:
    index = index_of({f"n{number}": (0.9 - number * 0.01, "x", ()) for number in range(20)})
    found = ask(index, [])
    assert [a.id for a in found.activations] == ["n0", "n1", "n2", "n3", "n4"]
    flat = index_of({f"n{number}": (0.9 if number == 0 else 0.4, "x", ()) for number in range(9)})
    assert [a.id for a in ask(flat, []).activations] == ["n0"]


def test_a_hub_does_not_activate_the_whole_vault() -> None:
    notes: dict[str, tuple[float, str, tuple[str, ...]]] = {
        f"n{number}": (-0.5, "x", ()) for number in range(500)
    }
    index = index_of({**notes, "hub": (0.9, "x", tuple(notes))})
    found = ask(index, [])
    assert len(found.activations) == MAX_ACTIVATED
    assert found.activations[0].id == "hub"


def test_an_empty_vault_finds_nothing() -> None:
    found = ask(NoteIndex(), ["word"])
    assert found.activations == []
    assert found.routing["hybrid_top_score"] == 0.0
    assert found.routing["bm25_query_term_count"] == 1


def test_links_resolve_by_id_then_by_name_whatever_the_case() -> None:
    index = index_of(
        {
            "x": (0, "", ("B/Note", "other NOTE", "deep/wrong/only", "missing")),
            "b/note": (0, "", ()),
            "a/note": (0, "", ()),
            "z/Other Note": (0, "", ()),
            "a/b/other note": (0, "", ()),
            "c/only": (0, "", ("x",)),
        }
    )
    assert index.neighbours("x") == ["b/note", "z/Other Note", "c/only"]
    assert list(index.unresolved()) == [("x", "missing")]
    assert index.edge_count == 4


def test_edges_are_counted_right_while_notes_come_and_go() -> None:
    index = index_of({"x": (0, "", ("late", "y")), "y": (0, "", ("x",))})
    assert index.edge_count == 2
    late = Note.of(NoteFile("f/late", Path("l"), 0, 0, 0), NoteText("l", "", ("x", "x", "f/late")))
    index.put(late, unit(0))
    assert index.edge_count == len(list(index.edges())) == 4
    index.put(late, unit(0.5))
    assert index.edge_count == 4
    index.remove("y")
    assert index.edge_count == len(list(index.edges())) == 2
    index.remove("f/late")
    assert index.edge_count == len(list(index.edges())) == 0
    assert index.titled("L") is None
