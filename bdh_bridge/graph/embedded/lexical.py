"""Okapi BM25 over an inverted index in memory."""

from __future__ import annotations

import math
import re
import unicodedata
from array import array
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from bdh_bridge.graph.embedded.stopwords import STOP_WORDS

K1 = 1.5
B = 0.75

_WORD = re.compile(r"\w\w+")


def terms_of(text: str) -> list[str]:
    """Lowercase Unicode words of two and more characters, without stop words."""
    words = _WORD.findall(unicodedata.normalize("NFC", text).lower())
    return [word for word in words if word not in STOP_WORDS]


class LexicalIndex:
    """Postings by term. Documents are slots: small integers that the caller gives and reuses.

    Score of a document for a query (Robertson and Zaragoza 2009, with Lucene's idf, which is
    never negative): the sum over the query's distinct terms of
    ``idf * tf * (K1 + 1) / (tf + K1 * (1 - B + B * length / average length))`` with
    ``idf = ln(1 + (N - df + 0.5) / (df + 0.5))``.
    """

    def __init__(self) -> None:
        self._postings: dict[str, tuple[array[int], array[int]]] = {}  # slots, frequencies
        self._lengths = np.zeros(0, dtype=np.float32)
        self._documents = 0
        self._total_length = 0

    def add(self, slot: int, text: str) -> None:
        terms = terms_of(text)
        if slot >= len(self._lengths):
            self._lengths = np.concatenate(
                [self._lengths, np.zeros(max(256, slot + 1), dtype=np.float32)]
            )
        self._lengths[slot] = len(terms)
        self._documents += 1
        self._total_length += len(terms)
        for term, frequency in Counter(terms).items():
            posting = self._postings.get(term)
            if posting is None:
                posting = self._postings[term] = (array("I"), array("I"))
            posting[0].append(slot)
            posting[1].append(frequency)

    def remove(self, slot: int, text: str) -> None:
        """Undo :meth:`add`; ``text`` must be what was added."""
        terms = terms_of(text)
        self._documents -= 1
        self._total_length -= len(terms)
        for term in set(terms):
            slots, frequencies = self._postings[term]
            place = slots.index(slot)
            # Order doesn't matter, so the last one fills the gap.
            slots[place], frequencies[place] = slots[-1], frequencies[-1]
            slots.pop()
            frequencies.pop()
            if not slots:
                del self._postings[term]

    def scores(self, terms: list[str], size: int) -> NDArray[np.float32]:
        """BM25 of every slot below ``size`` (float32, not normalised)."""
        result = np.zeros(size, dtype=np.float32)
        if not self._documents:
            return result
        average = max(self._total_length / self._documents, 1.0)
        for term in dict.fromkeys(terms):
            posting = self._postings.get(term)
            if posting is None:
                continue
            slots = np.frombuffer(posting[0], dtype=np.uint32)
            tf = np.frombuffer(posting[1], dtype=np.uint32).astype(np.float32)
            idf = math.log(1 + (self._documents - len(slots) + 0.5) / (len(slots) + 0.5))
            norm = K1 * (1 - B + B * self._lengths[slots] / average)
            result[slots] += (idf * tf * (K1 + 1) / (tf + norm)).astype(np.float32)
        return result

    def known(self, terms: list[str]) -> list[str]:
        """The distinct terms that some document holds, sorted."""
        return sorted({term for term in terms if term in self._postings})
