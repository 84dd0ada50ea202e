"""Passages that a reader gets to see of a note."""

from __future__ import annotations

import time

import pytest

from bdh_bridge.graph.embedded.excerpts import EXCERPT_CHARS, beginning, excerpt, plain
from bdh_bridge.graph.embedded.index import MAX_EVIDENCE, recent

TEXT = """# Harbour

The harbour opened in spring. It has *three* piers.

- The northern pier belongs to [[ferries|the ferry line]].
- Cranes stand on the southern pier.

See also: [[lighthouse]], [[folder/tide tables]]
"""


def test_the_passage_with_most_of_the_words_is_taken() -> None:
    assert excerpt(TEXT, ["southern", "cranes"]).startswith("Cranes stand on the southern pier.")
    assert excerpt(TEXT, ["ferry"]).startswith("The northern pier belongs to the ferry line.")
    assert excerpt(TEXT, []).startswith("Harbour The harbour opened in spring.")


def test_lists_of_links_are_no_passage_unless_there_is_nothing_else() -> None:
    body = "The answer is short.\n\nRelated: [[a/lighthouse|Lighthouse]], [[b]]\n"
    assert excerpt(body, ["lighthouse"]) == "The answer is short."
    assert excerpt("- [[a|Lighthouse]]\n- [[b]]", []) == "Lighthouse b"


def test_passages_are_one_bounded_printable_line() -> None:
    hostile = "word \x1b]0;title\x07 \u202e " * 200
    passage = excerpt(hostile, ["word"])
    assert len(passage) <= EXCERPT_CHARS
    assert passage.isprintable()
    assert passage.endswith("…")
    assert len(beginning("字" * 5_000, 200)) == 200
    assert excerpt("", ["a"]) == beginning("", 9) == ""


@pytest.mark.parametrize(
    "text", ["[[a]] " * 50_000, "x: [[" * 50_000, "- " * 100_000, "[[a]],\n" * 50_000]
)
def test_hostile_text_takes_linear_time(text: str) -> None:
    started = time.process_time()
    plain(text)
    assert time.process_time() - started < 20  # quadratic would be minutes


def test_only_the_newest_evidence_is_searched() -> None:
    texts = [str(number) for number in range(500)]
    assert recent(texts) == tuple(texts[-MAX_EVIDENCE:])
    assert recent(["old", "x" * 99_000, "y" * 1_000]) == ("x" * 99_000, "y" * 1_000)
    assert recent(["z" * 200_000]) == ("z" * 200_000,)
    assert recent([]) == ()
