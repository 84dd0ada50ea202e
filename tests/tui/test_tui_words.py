"""Summaries, sentences and filters of turns, on what the store really holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bdh_bridge.gates.reasons import Reason
from bdh_bridge.operator import wording
from bdh_bridge.operator.explain import explain
from bdh_bridge.paths import BridgePaths
from bdh_bridge.routing.hop import HopOutcome
from bdh_tui.filters import Filter, FilterError
from bdh_tui.history import History
from bdh_tui.turns import TurnSummary


@pytest.fixture
def history(full_home: Path) -> Iterator[History]:
    history = History(BridgePaths(full_home).spans)
    yield history
    history.close()


@pytest.fixture
def turns(history: History) -> list[TurnSummary]:
    return history.page(1_000)


@pytest.mark.parametrize(
    ("filter_text", "sentences"),
    [
        ("read:weak_match", ["asked the graph, gave nothing", "vector score 0.", "< 0.50"]),
        ("error:unreachable", ["the graph failed: unreachable", "connection refused"]),
        ("gate:blacklist decision:skip", ["a rule of the blacklist matched: “salaries” (line 2)"]),
        ("write:learned", ["the graph learned it: 1 new concept, 10 links strengthened"]),
        ("write:quarantined", ["nobody knows whether the graph learned it", "decide in Outbox"]),
        ("write:waits", ["safe in the outbox"]),
        ("hop:circuit_open", ["no provider answered", "ollama HTTP error 503", "no key is set"]),
        ("hop:rate_limited", ["ollama rate limited", "openrouter answered: retrieve"]),
        ("read:casual", ["skipped by gate eligibility: it is small talk"]),
        ("read:context", ["to the model", "≥"]),
    ],
)
def test_a_turn_is_explained_in_words(
    history: History, turns: list[TurnSummary], filter_text: str, sentences: list[str]
) -> None:
    matching = [turn for turn in turns if Filter.parse(filter_text)(turn)]
    assert matching
    told = " ".join(one.text for one in explain(*history.trace(matching[0].trace_id)))
    for sentence in sentences:
        assert sentence in told


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 120),
        ("gate:blacklist decision:skip", 10),
        # One and the same gate: a turn stopped elsewhere is none that the blacklist stopped.
        ("gate:blacklist decision:skip reason:casual", 0),
        ("-read:context", 80),
        ("write:trouble", 10),
        ("write:waiting", 10),
        ("text:SIREN", 10),
        ('"spare siren"', 10),
        ("title:gateway", 20),
        ("provider:nous hop:no_credential", 10),
        ("hybrid>0.99", 0),
        ("took>500ms took<605ms read:blacklisted", 10),
        ("terms:1 read:weak", 10),
    ],
)
def test_filters(turns: list[TurnSummary], text: str, count: int) -> None:
    matched = sum(map(Filter.parse(text), turns))
    if text.startswith("provider"):
        assert matched >= count
    else:
        assert matched == count


@pytest.mark.parametrize("text", ["colour:red", 'text:"open', "hybrid:much"])
def test_a_filter_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(FilterError):
        Filter.parse(text)


def test_a_page_goes_on_where_the_last_one_ended(history: History) -> None:
    whole = [turn.trace_id for turn in history.page(120)]
    first = history.page(50)
    rest = history.page(100, first[-1].sort)
    assert [turn.trace_id for turn in [*first, *rest]] == whole


def test_every_reason_and_every_hop_outcome_has_words() -> None:
    assert {str(reason) for reason in Reason} <= set(wording.CLAUSES)
    assert {str(outcome) for outcome in HopOutcome} <= set(wording.HOPS)
    assert max(len(text) for text in wording.SHORT.values()) <= 15
