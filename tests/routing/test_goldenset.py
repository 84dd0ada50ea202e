"""The rules that the benchmark's cases keep."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bdh_bridge.routing.examples import EXAMPLES
from bdh_bridge.routing.history import recent_messages
from bdh_bridge.settings import Settings

GOLDENSET = json.loads(
    (Path(__file__).parents[2] / "benchmarks" / "query_rewrite_goldenset.json").read_text("utf-8")
)
CASES: list[dict[str, Any]] = GOLDENSET["cases"]
KINDS = {
    "architecture_question",
    "background_prompt",
    "decision",
    "fact",
    "general_knowledge",
    "injection",
    "knowledge_question",
    "lesson",
    "link",
    "mixed",
    "operational",
    "preference",
    "project_status",
    "proposal",
    "reference",
    "report",
    "smalltalk",
    "strategy",
}


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [case for case in CASES if case["kind"] == kind]


def route(case: dict[str, Any]) -> tuple[bool, bool]:
    return case["expect"]["should_retrieve"], case["expect"]["store_candidate"]


def test_there_are_a_hundred_different_cases() -> None:
    assert isinstance(GOLDENSET["version"], int)
    assert set(GOLDENSET["policy"]) == {"should_retrieve", "store_candidate"}
    assert len(CASES) == 100
    assert len({case["id"] for case in CASES}) == 100
    assert len({case["message"].casefold() for case in CASES}) == 100


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_case_is_well_formed(case: dict[str, Any]) -> None:
    required = {"id", "language", "kind", "history", "message", "expect", "why"}
    assert required <= case.keys() <= required | {"subject"}
    assert re.fullmatch(rf"{case['language']}-\d\d", case["id"])
    assert case["kind"] in KINDS
    assert 0 < len(case["message"]) <= 400
    assert case["message"] == case["message"].strip()
    for flag in ("should_retrieve", "store_candidate"):
        assert type(case["expect"][flag]) is bool
        assert len(case["why"][flag]) >= 5, "every label has its reason"
    assert len(case["expect"]) == len(case["why"]) == 2
    roles = [message["role"] for message in case["history"]]
    assert roles == ["user", "assistant"] * (len(roles) // 2), "the current message comes next"


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_no_history_is_cut_by_the_defaults(case: dict[str, Any]) -> None:
    settings = Settings()
    seen = recent_messages(
        case["history"], settings.context_messages_n, settings.context_msg_max_chars
    )
    assert [message.text for message in seen] == [item["content"] for item in case["history"]]


def test_english_and_italian_come_first_and_six_more_languages_follow() -> None:
    counts = Counter(case["language"] for case in CASES)
    assert counts["en"] >= 30
    assert counts["it"] >= 30
    others = {language: count for language, count in counts.items() if language not in ("en", "it")}
    assert len(others) == 6
    assert min(others.values()) >= 5


@pytest.mark.parametrize("language", ["en", "it"])
def test_each_route_occurs_in_the_main_languages(language: str) -> None:
    counts = Counter(route(case) for case in CASES if case["language"] == language)
    assert len(counts) == 4
    assert min(counts.values()) >= 3


def test_no_single_answer_scores_well() -> None:
    """Neither always nor never reading or storing may look like a router."""
    for position in (0, 1):
        share = sum(route(case)[position] for case in CASES) / len(CASES)
        assert 0.25 <= share <= 0.75


def test_every_kind_occurs() -> None:
    assert {case["kind"] for case in CASES} == KINDS


def test_injections_neither_read_nor_store() -> None:
    cases = of_kind("injection")
    assert len(cases) >= 5
    assert len({case["language"] for case in cases}) >= 3
    assert {route(case) for case in cases} == {(False, False)}


def test_background_prompts_neither_read_nor_store() -> None:
    cases = of_kind("background_prompt")
    assert len(cases) >= 4
    assert {route(case) for case in cases} == {(False, False)}
    starts = ("Review the conversation above", "[IMPORTANT: You are running as a scheduled cron")
    assert all(case["message"].startswith(starts) for case in cases)


def test_references_are_resolved_by_the_history_alone() -> None:
    cases = of_kind("reference")
    assert len(cases) >= 8
    assert len({route(case) for case in cases}) >= 3, "they are not all questions"
    for case in cases:
        subject = case["subject"].casefold()
        assert subject in " ".join(item["content"] for item in case["history"]).casefold()
        assert subject not in case["message"].casefold()


def test_nothing_points_at_a_real_person_or_place_on_the_net() -> None:
    text = json.dumps(CASES, ensure_ascii=False)
    hosts = set(re.findall(r"https?://([^/\s\"]+)", text))
    assert hosts <= {"example.com", "example.org"}
    assert not re.search(r"\w@\w", text)
    assert not re.search(r"\+\d{6,}", text)


def test_no_case_is_one_of_the_prompts_examples() -> None:
    shown = {given["message"].casefold() for given, _ in EXAMPLES}
    assert shown.isdisjoint(case["message"].casefold() for case in CASES)
