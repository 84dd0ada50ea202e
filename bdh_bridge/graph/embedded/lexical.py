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

_FREQUENCY_BITS = 24  # more than the words of the longest text that is searched
_FREQUENCY_MASK = (1 << _FREQUENCY_BITS) - 1
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
        # One number a posting, slot above and term frequency below: half the work of two.
        self._postings: dict[str, array[int]] = {}
        self._lengths = np.zeros(0, dtype=np.float32)
        self._documents = 0
        self._total_length = 0

    def add(self, slot: int, text: str) -> None:
        terms = terms_of(text)
        if slot >= len(self._lengths):
            grown = np.zeros(max(256, 2 * slot), dtype=np.float32)
            grown[: len(self._lengths)] = self._lengths
            self._lengths = grown
        self._lengths[slot] = len(terms)
        self._documents += 1
        self._total_length += len(terms)
        postings = self._postings
        for term, frequency in Counter(terms).items():
            posting = postings.get(term)
            if posting is None:
                posting = postings[term] = array("Q")
            posting.append(slot << _FREQUENCY_BITS | frequency)

    def remove(self, slot: int, text: str) -> None:
        """Undo :meth:`add`; ``text`` must be what was added."""
        terms = terms_of(text)
        self._documents -= 1
        self._total_length -= len(terms)
        for term, frequency in Counter(terms).items():
            posting = self._postings[term]
            last = posting.pop()
            own = slot << _FREQUENCY_BITS | frequency
            if last != own:  # order doesn't matter, so the last one fills the gap
                posting[posting.index(own)] = last
            if not posting:
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
            packed = np.frombuffer(posting, dtype=np.uint64).astype(np.int64)
            slots = packed >> _FREQUENCY_BITS
            tf = (packed & _FREQUENCY_MASK).astype(np.float32)
            idf = math.log(1 + (self._documents - len(slots) + 0.5) / (len(slots) + 0.5))
            norm = K1 * (1 - B + B * self._lengths[slots] / average)
            result[slots] += (idf * tf * (K1 + 1) / (tf + norm)).astype(np.float32)
        return result

    def known(self, terms: list[str]) -> list[str]:
        """The distinct terms that some document holds, sorted."""
        return sorted({term for term in terms if term in self._postings})
