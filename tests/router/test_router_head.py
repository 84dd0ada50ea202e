"""The shipped head, the data it was made from, and that one follows from the other."""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bdh_bridge.routing.local import head as heads
from bdh_bridge.routing.local.decide import LocalRouter
from bdh_bridge.routing.local.encoder import Encoder
from bdh_bridge.routing.local.evaluate import local_decisions, read_labelled
from bdh_bridge.routing.local.features import Embed, Vector
from bdh_bridge.routing.local.scores import scores
from benchmarks.routing import corpus
from scripts import train_router

ROOT = Path(__file__).parents[2]
GOLDENSET = ROOT / "benchmarks" / "query_rewrite_goldenset.json"


@pytest.fixture(scope="module")
def messages() -> list[corpus.Message]:
    return corpus.read_corpus()


@pytest.fixture(scope="module")
def embed(encoder: Encoder) -> Embed:
    """Encodes every text once: several tests look at the same messages."""
    known: dict[str, Any] = {}

    def remembered(texts: Sequence[str]) -> Vector:
        missing = [text for text in texts if text not in known]
        known.update(zip(missing, encoder.encode(missing), strict=True))
        return np.stack([known[text] for text in texts])

    return remembered


def test_the_corpus_keeps_its_rules(messages: list[corpus.Message]) -> None:
    everything = corpus.read_corpus(duplicates=True)
    assert corpus.problems(everything) == []
    assert len(messages) >= 3_000
    assert len({m.writer for m in messages}) >= 12
    languages = Counter(m.language for m in messages)
    assert len([name for name in languages if name != "mixed"]) >= 9
    assert languages["mixed"] >= 50
    assert sum(bool(m.history) for m in messages) > len(messages) / 2
    assert {m.kind for m in messages} == corpus.KINDS
    assert min(len(m.text) for m in messages) < 10
    assert max(len(m.text) for m in messages) > 1_000


def test_no_address_of_anybody_is_in_it(messages: list[corpus.Message]) -> None:
    mail = re.compile(r"[\w.+-]+@[\w-]+\.[a-z]{2,}", re.IGNORECASE)
    reserved = re.compile(r"\.(example|test|invalid|local|lan|internal|svc|service)$|@example\.")
    for m in messages:
        for text in (m.text, *(item["text"] for item in m.history)):
            for found in mail.findall(text):
                assert reserved.search(found.casefold()), f"{m.id}: {found}"


def test_the_golden_set_is_not_among_what_was_trained_on(messages: list[corpus.Message]) -> None:
    golden = {case["message"].casefold() for case in json.loads(GOLDENSET.read_text())["cases"]}
    assert golden.isdisjoint(m.text.casefold() for m in messages)


def test_kappa_is_cohens() -> None:
    # Cohen's own form: 20 and 15 agreed of 50, 5 and 10 apart.
    pairs = [(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10
    pairs += [(False, False)] * 15
    assert corpus.kappa(pairs) == pytest.approx(0.4)
    assert corpus.kappa([(True, True)] * 3) == 1.0


def test_the_head_is_small_and_tells_of_itself() -> None:
    assert heads.SHIPPED.stat().st_size < heads.MAX_BYTES
    made = heads.load()
    assert {"data", "fit", "scores", "limits", "slice"} <= made.card.keys()
    assert made.version.endswith(made.card["data"]["sha256"][:8])


def test_the_shipped_head_was_made_from_this_data_by_this_script(
    messages: list[corpus.Message], embed: Embed
) -> None:
    """The whole takes minutes: a slice is trained again, and the head is asked about it."""
    card = heads.load().card
    assert card["data"]["sha256"] == corpus.digest(messages), "run scripts/train_router.py"
    assert card["fit"] == train_router.fit_settings()
    again = train_router.slice_scores(messages, embed, heads.load())
    assert again["messages"] == card["slice"]["messages"] > 150
    for which in ("held_out", "shipped"):
        for name, value in card["slice"][which].items():
            assert again[which][name] == pytest.approx(value, abs=0.015), (which, name)


def test_a_head_of_other_data_would_be_found_out(
    messages: list[corpus.Message], embed: Embed
) -> None:
    card = heads.load().card
    made = heads.load()
    turned = {
        name: heads.FlagHead(-part.weights, part.bias, part.slope, part.shift, part.threshold)
        for name, part in made.flags.items()
    }
    other = heads.Head("x", turned, made.means, made.scales)
    found = train_router.shipped_scores(train_router.slice_of(messages), embed, other)
    assert abs(found["joint"] - card["slice"]["shipped"]["joint"]) > 0.1


def test_held_out_scores_beat_the_mechanical_gate_by_far() -> None:
    found: dict[str, Any] = heads.load().card["scores"]
    assert found["agreed"]["joint"] > 0.75
    assert found["usual"]["joint"] > 0.78
    assert found["usual"]["false_read"] <= 0.085
    assert found["usual"]["false_store"] <= 0.055


def test_the_golden_set_is_decided_well(local: LocalRouter) -> None:
    cases = read_labelled(GOLDENSET)
    wanted = np.array([[case.read, case.store] for case in cases])
    found = scores(local_decisions(local, cases), wanted)
    assert found["joint"] > 0.73, "a cloud model's published figure"
    assert found["false_read"] < 0.131
    assert found["false_store"] < 0.056


def test_the_slice_is_the_same_everywhere(messages: list[corpus.Message]) -> None:
    chosen = train_router.slice_of(messages)
    assert [m.id for m in chosen] == [m.id for m in messages if zlib.crc32(m.id.encode()) % 12 == 0]
    assert len({m.writer for m in chosen}) == len({m.writer for m in messages})
