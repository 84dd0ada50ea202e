"""The gates one by one, and the order in which both paths ask them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bdh_bridge.gates.blacklist import Blacklist
from bdh_bridge.gates.circuit import circuit
from bdh_bridge.gates.cron import job_id_of
from bdh_bridge.gates.decision import Decision, GatePath
from bdh_bridge.gates.read import read_gates
from bdh_bridge.gates.reasons import Reason
from bdh_bridge.gates.view import AnswerView, TurnView
from bdh_bridge.gates.write import write_gates
from bdh_bridge.settings import Settings
from bdh_bridge.state import BreakerDecision, SharedState
from bdh_otel.attributes import TABLE

QUESTION = "why did we move the flood gauges to the new protocol?"
TURN = TurnView(session_id="s-1", turn_id="t-1", platform="cli", message=QUESTION)
ANSWER = AnswerView(session_id="s-1", turn_id="t-1", finish_reason="stop", content="x" * 200)
CRON_SESSION = "cron_a1_b2_20260102_030405"


class World:
    """Everything that the gates ask, real and empty."""

    def __init__(self, home: Path) -> None:
        self.state = SharedState(home / "state.sqlite3")
        self.blacklist_file = home / "prompt_blacklist.txt"
        self.blacklist = Blacklist(self.blacklist_file)
        self.jobs: Callable[[str], Any] = lambda job_id: None

    def read(self, view: TurnView, **settings: Any) -> list[Decision]:
        return list(read_gates(view, _settings(settings), self.blacklist, self.state, self.jobs))

    def write(self, answer: AnswerView, turn: TurnView | None, **settings: Any) -> list[Decision]:
        decided = write_gates(
            answer, turn, _settings(settings), self.blacklist, self.state, self.jobs
        )
        return list(decided)

    def last(self, view: TurnView, **settings: Any) -> tuple[str, str]:
        decision = self.read(view, **settings)[-1]
        return decision.gate, decision.reason


def _settings(values: dict[str, Any]) -> Settings:
    return Settings(**{f"BDH_{name.upper()}": value for name, value in values.items()})


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.state.close()


def turn(**changes: Any) -> TurnView:
    return dataclasses.replace(TURN, **changes)


def answer(**changes: Any) -> AnswerView:
    return dataclasses.replace(ANSWER, **changes)


def test_a_read_passes_every_gate_in_order(world: World) -> None:
    decisions = world.read(TURN)
    assert [decision.gate for decision in decisions] == [
        "bridge",
        "origin",
        "cron",
        "platform",
        "blacklist",
        "injectable",
        "sender",
        "eligibility",
    ]
    assert all(decision.allowed and decision.path is GatePath.READ for decision in decisions)


def test_a_write_passes_every_gate_in_order(world: World) -> None:
    decisions = world.write(ANSWER, TURN)
    assert [decision.gate for decision in decisions] == [
        "bridge",
        "answer",
        "captured",
        "origin",
        "cron",
        "platform",
        "sender",
        "blacklist",
    ]
    assert all(decision.allowed and decision.path is GatePath.WRITE for decision in decisions)


def test_reasons_are_codes_and_details_are_declared_attributes(world: World) -> None:
    world.blacklist_file.write_text("gauges\nre:(\n")
    circuits = [
        circuit(GatePath.READ, BreakerDecision(True, "closed")),
        circuit(GatePath.READ, BreakerDecision(True, "probe", failures=3)),
        circuit(GatePath.READ, BreakerDecision(False, "open", 4.2, 3)),
    ]
    assert [decision.allowed for decision in circuits] == [True, True, False]
    for decision in [*world.read(TURN), *world.write(ANSWER, TURN), *circuits]:
        assert Reason(decision.reason)
        assert decision.details.keys() <= TABLE.keys()


def test_the_first_skip_is_the_last_decision_and_later_gates_are_not_asked(world: World) -> None:
    asked: list[str] = []
    world.jobs = lambda job_id: asked.append(job_id)
    decisions = world.read(turn(is_background_review=True, session_id=CRON_SESSION))
    assert [decision.allowed for decision in decisions] == [True, False]
    assert asked == []


def test_what_forbids_both_ways_is_asked_before_what_forbids_reading_alone(world: World) -> None:
    """A router may be asked about the write of such a turn: a blocked text must not reach it."""
    world.blacklist_file.write_text("private\n")
    blocks = turn(message=None, flattened="a private picture", sender_id="9", platform="chat")
    assert world.last(blocks, read_senders="1") == ("blacklist", Reason.BLACKLISTED)
    denied = turn(message=None, flattened="x", platform="subagent")
    assert world.last(denied) == ("platform", Reason.PLATFORM_DENIED)
    scheduled = turn(message=None, flattened="x", session_id=CRON_SESSION)
    assert world.last(scheduled)[0] == "cron"


def test_switched_off(world: World) -> None:
    assert world.last(TURN, enabled=False) == ("bridge", Reason.DISABLED)
    assert world.write(ANSWER, TURN, enabled=False)[-1].reason == Reason.DISABLED


def test_paused_everywhere_or_in_this_session(world: World) -> None:
    world.state.pause("s-1")
    assert world.last(TURN) == ("bridge", Reason.PAUSED_SESSION)
    assert world.write(ANSWER, TURN)[-1].reason == Reason.PAUSED_SESSION
    assert world.last(turn(session_id="s-2")) == ("eligibility", Reason.KNOWLEDGE_CUE)
    world.state.pause("all", 600)
    assert world.last(turn(session_id="s-2")) == ("bridge", Reason.PAUSED_ALL)
    world.state.resume("all")
    world.state.resume("s-1")
    assert world.read(TURN)[-1].allowed


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            "Review the conversation above and consider saving to memory if appropriate.",
            Reason.BACKGROUND_REVIEW,
        ),
        ("Review the conversation above and update two things:\n\n", Reason.BACKGROUND_REVIEW),
        ("[ASYNC DELEGATION BATCH COMPLETE — d1]\nwhy?", Reason.DELEGATION_RESULT),
        ("\n [ASYNC DELEGATION COMPLETE — d1]", Reason.DELEGATION_RESULT),
        ("[IMPORTANT: Background process p1 finished (exit 0)]", Reason.PROCESS_NOTICE),
    ],
)
def test_messages_of_the_host_itself(world: World, message: str, reason: Reason) -> None:
    assert world.last(turn(message=message)) == ("origin", reason)
    assert world.write(ANSWER, turn(message=message))[-1].reason == reason


def test_a_person_who_speaks_of_such_messages_is_a_person(world: World) -> None:
    quoted = "What does 'Review the conversation above and update two things' mean?"
    assert world.read(turn(message=quoted))[-1].allowed


def test_the_hosts_word_for_a_review_needs_no_wording(world: World) -> None:
    reviewed = turn(is_background_review=True)
    assert world.last(reviewed) == ("origin", Reason.BACKGROUND_REVIEW)
    assert world.write(ANSWER, reviewed)[-1].reason == Reason.BACKGROUND_REVIEW
    said_late = world.write(answer(is_background_review=True), TURN)
    assert said_late[-1].reason == Reason.BACKGROUND_REVIEW


def test_a_message_of_blocks_is_not_injectable_but_may_be_written(world: World) -> None:
    blocks = turn(message=None, flattened="see the picture of the gauge")
    assert world.last(blocks) == ("injectable", Reason.NOT_INJECTABLE)
    assert world.write(ANSWER, blocks)[-1].allowed
    assert world.last(turn(message=" \n")) == ("injectable", Reason.EMPTY_MESSAGE)


@pytest.mark.parametrize(
    ("session_id", "job_id"),
    [
        (CRON_SESSION, "a1_b2"),
        ("cron_7_20260102_030405", "7"),
        ("cron_7", None),
        ("cron__20260102_030405", None),
        ("cron_7_20260102_030405\n", None),
        ("s_7_20260102_030405", None),
    ],
)
def test_the_job_in_a_session_id(session_id: str, job_id: str | None) -> None:
    assert job_id_of(session_id) == job_id


def test_cron_is_denied_whatever_its_message_says(world: World) -> None:
    world.jobs = lambda job_id: "collect the news"
    message = "[BDH:ALLOW-CRON] why did we choose this? [BDH:ALLOW-CRON]"
    view = turn(platform="cron", session_id=CRON_SESSION, message=message)
    assert world.last(view) == ("cron", Reason.CRON_NOT_OPTED_IN)
    written = world.write(answer(session_id=CRON_SESSION), view)
    assert written[-1].reason == Reason.CRON_NOT_OPTED_IN


def test_the_jobs_own_prompt_opts_in(world: World) -> None:
    asked: list[str] = []

    def prompt(job_id: str) -> str:
        asked.append(job_id)
        return "weekly summary [BDH:ALLOW-CRON]"

    world.jobs = prompt
    view = turn(platform="cron", session_id=CRON_SESSION)
    assert world.read(view)[-1].allowed
    assert asked == ["a1_b2"]


def _raise(job_id: str) -> str:
    raise OSError("no such store")


@pytest.mark.parametrize("jobs", [lambda job_id: None, _raise, lambda job_id: 7])
def test_without_the_jobs_record_cron_is_denied(world: World, jobs: Callable[[str], Any]) -> None:
    world.jobs = jobs
    view = turn(platform="cron", session_id=CRON_SESSION)
    assert world.last(view) == ("cron", Reason.CRON_RECORD_UNAVAILABLE)


def test_either_sign_of_cron_is_enough(world: World) -> None:
    assert world.last(turn(platform="CRON"))[0] == "cron"
    assert world.last(turn(platform="", session_id=CRON_SESSION))[0] == "cron"


@pytest.mark.parametrize("platform", ["subagent", "curator", "Subagent "])
def test_denied_platforms(world: World, platform: str) -> None:
    view = turn(platform=platform)
    assert world.last(view) == ("platform", Reason.PLATFORM_DENIED)
    assert world.write(ANSWER, view)[-1].reason == Reason.PLATFORM_DENIED
    assert world.read(view, deny_platforms="")[-1].allowed


@pytest.mark.parametrize(
    ("platform", "sender_id", "reason"),
    [
        ("telegram", "42", Reason.SENDER_LISTED),
        ("discord", "7", Reason.SENDER_LISTED),
        ("telegram", "7", Reason.SENDER_NOT_LISTED),
        ("matrix", "@ada:example.org", Reason.SENDER_LISTED),
        ("telegram", "4", Reason.SENDER_NOT_LISTED),
        ("telegram", "discord:7", Reason.SENDER_NOT_LISTED),
        ("telegram", "", Reason.SENDER_UNKNOWN),
        ("api_server", "", Reason.SENDER_UNKNOWN),
        ("cli", "", Reason.LOCAL_OPERATOR),
        ("tui", "", Reason.LOCAL_OPERATOR),
        ("cli", "99", Reason.SENDER_NOT_LISTED),
    ],
)
def test_senders(world: World, platform: str, sender_id: str, reason: Reason) -> None:
    listed = "42, Discord:7, @ada:example.org"
    view = turn(platform=platform, sender_id=sender_id)
    by_gate = {decision.gate: decision for decision in world.read(view, read_senders=listed)}
    assert by_gate["sender"].reason == reason
    # Reading and teaching are two lists.
    assert world.write(ANSWER, view, read_senders=listed)[-1].allowed
    written = {d.gate: d for d in world.write(ANSWER, view, write_senders=listed)}
    assert written["sender"].reason == reason


def test_the_blacklist_holds_on_both_paths(world: World) -> None:
    world.blacklist_file.write_text("# noise\nFLOOD gauges\n")
    for decisions in (world.read(TURN), world.write(ANSWER, TURN)):
        assert decisions[-1].reason == Reason.BLACKLISTED
        assert decisions[-1].rule == "FLOOD gauges"
        assert decisions[-1].details["bdh.gate.rule.line"] == 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"finish_reason": "length"}, Reason.NOT_FINAL),
        ({"finish_reason": ""}, Reason.NOT_FINAL),
        ({"finish_reason": "tool_calls", "tool_calls": 1}, Reason.TOOL_CALLS),
        ({"tool_calls": 1}, Reason.TOOL_CALLS),
        ({"content": ""}, Reason.EMPTY_ANSWER),
        ({"content": " \n" * 300}, Reason.EMPTY_ANSWER),
        ({"content": "x" * 199}, Reason.SHORT_ANSWER),
        ({"content": " " * 200 + "x" * 199}, Reason.SHORT_ANSWER),
    ],
)
def test_answers_that_teach_nothing(world: World, changes: dict[str, Any], reason: Reason) -> None:
    decision = world.write(answer(**changes), TURN)[-1]
    assert (decision.gate, decision.reason) == ("answer", reason)


@pytest.mark.parametrize("captured", [None, turn(message=""), turn(message=None)])
def test_no_answer_is_written_without_its_message(world: World, captured: TurnView | None) -> None:
    decision = world.write(ANSWER, captured)[-1]
    assert (decision.gate, decision.reason) == ("captured", Reason.NO_USER_MESSAGE)


@pytest.mark.parametrize("message", ["\0" * 100_000, "\ud800?" * 50_000, "x" * 1_000_000])
def test_hostile_messages_pass_through_all_gates(world: World, message: str) -> None:
    world.blacklist_file.write_text("blocked text\nre:(x+x+)+y\n")
    assert world.read(turn(message=message))[-1].gate == "eligibility"
    assert world.write(ANSWER, turn(message=message))[-1].allowed
