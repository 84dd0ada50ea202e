"""BM25 against the formula computed the slow way."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from bdh_bridge.graph.embedded.lexical import LexicalIndex, terms_of


def bm25(documents: list[list[str]], query: set[str], number: int) -> float:
    n = len(documents)
    average = sum(map(len, documents)) / n
    score = 0.0
    for term in query:
        df = sum(term in document for document in documents)
        tf = documents[number].count(term)
        idf = math.log(1 + (n - df + 0.5) / (df + 0.5))
        length = len(documents[number])
        score += idf * tf * 2.5 / (tf + 1.5 * (1 - 0.75 + 0.75 * length / average))
    return score


def test_terms_are_lowercase_words_without_stop_words() -> None:
    text = "The Crash-safe WAL, e la sua copia: Über x 2024 die"
    assert terms_of(text) == ["crash", "safe", "wal", "copia", "2024"]
    assert terms_of("Über") == []  # a German preposition


def test_composed_and_decomposed_letters_are_one_word() -> None:
    assert terms_of("cafe\u0301") == terms_of("caf\u00e9") == ["café"]


@pytest.mark.parametrize("seed", range(3))
def test_scores_follow_the_formula_also_after_removals(seed: int) -> None:
    rng = random.Random(seed)
    words = [f"word{number}" for number in range(40)]
    texts = {slot: " ".join(rng.choices(words, k=rng.randint(1, 60))) for slot in range(50)}
    index = LexicalIndex()
    for slot, text in texts.items():
        index.add(slot, text)
    for slot in rng.sample(sorted(texts), 20):
        index.remove(slot, texts.pop(slot))
    reused = next(slot for slot in range(50) if slot not in texts)
    texts[reused] = "word1 word1 word2"
    index.add(reused, texts[reused])

    query = ["word1", "word2", "word7", "absent", "word1"]
    scores = index.scores(query, 50)
    slots = sorted(texts)
    documents = [texts[slot].split() for slot in slots]
    expected = np.zeros(50)
    for number, slot in enumerate(slots):
        expected[slot] = bm25(documents, set(query), number)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)
    assert index.known(query) == ["word1", "word2", "word7"]


def test_an_emptied_index_knows_nothing() -> None:
    index = LexicalIndex()
    index.add(3, "radio bridge")
    index.remove(3, "radio bridge")
    assert index.known(["radio"]) == []
    assert index.scores(["radio"], 4).tolist() == [0, 0, 0, 0]
