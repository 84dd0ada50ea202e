"""The registry of turns: by turn, bounded, expiring."""

from __future__ import annotations

from pathlib import Path

import pytest

from bdh_bridge import turns as module
from bdh_bridge.gates.view import TurnView
from bdh_bridge.turns import Turn, Turns
from bdh_otel.tracer import Tracer


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def tracer(tmp_path: Path) -> Tracer:
    return Tracer(tmp_path / "spans.sqlite3")


class Registry:
    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.clock = Clock()
        self.dropped: list[tuple[str, str]] = []
        self.turns = Turns(lambda t, why: self.dropped.append((t.turn_id, why)), clock=self.clock)

    def add(self, turn_id: str, session: str = "s", platform: str = "cli", **view: bool) -> Turn:
        turn = Turn(
            turn_id=turn_id,
            session_id=session,
            task_id=f"task-{turn_id}",
            platform=platform,
            model="m",
            sender_id="",
            view=TurnView(session, turn_id, platform, message="x", **view),
            span=self.tracer.start_span("bdh.turn"),
            created=self.clock.now,
        )
        self.turns.add(turn)
        return turn


@pytest.fixture
def registry(tracer: Tracer) -> Registry:
    return Registry(tracer)


def test_a_turn_is_found_by_its_id_and_by_session_only_where_no_id_is_given(
    registry: Registry,
) -> None:
    turn = registry.add("t1")
    assert registry.turns.get("t1", "other") is turn
    assert registry.turns.get("", "s") is turn
    assert registry.turns.get("unknown", "s") is None, "another turn's state is never handed out"


def test_without_any_id_nobody_is_handed_somebodys_turn(registry: Registry) -> None:
    registry.add("t1", session="")
    assert registry.turns.get("", "") is None
    assert registry.turns.of_task("", "") is None


def test_a_turn_id_that_comes_again_closes_the_turn_that_had_it(registry: Registry) -> None:
    first, second = registry.add("t1", session="a"), registry.add("t1", session="b")
    assert registry.dropped == [("t1", "superseded")]
    assert not registry.turns.remove(first)
    assert registry.turns.get("t1") is second, "the end of the first is not the second's"


def test_a_task_tells_the_turn_after_its_session_got_a_new_id(registry: Registry) -> None:
    turn = registry.add("t1", session="a")
    registry.add("t2", session="b")
    assert registry.turns.of_task("a-compacted", "task-t1") is turn
    assert registry.turns.of_task("unknown", "unknown") is None
    for session in "cd":
        registry.add(f"same-{session}", session=session).task_id = "default"
    assert registry.turns.of_task("unknown", "default") is None, "two may be meant"


def test_the_next_turn_of_a_session_ends_the_one_before(registry: Registry) -> None:
    registry.add("t1")
    registry.add("t2")
    assert registry.dropped == [("t1", "superseded")]
    assert len(registry.turns) == 1


def test_a_turn_that_was_given_up_is_found_when_its_answer_comes_late(registry: Registry) -> None:
    first, second = registry.add("t1"), registry.add("t2")
    assert registry.turns.get("t1") is first
    assert registry.turns.get("", "s") is second, "but it is not the session's newest"
    assert registry.turns.revive(first)
    assert not registry.turns.revive(first)
    assert registry.turns.remove(first)
    assert registry.turns.get("t1") is None
    assert len(registry.turns) == 1
    registry.clock.now = module.GRACE_SECONDS + 1
    third = registry.add("t3")
    registry.clock.now += module.GRACE_SECONDS + 1
    assert registry.turns.get("t2") is None, "for a while only"
    assert registry.turns.get("t3") is third


def test_a_background_review_ends_nothing_and_is_nobodys_newest_turn(registry: Registry) -> None:
    turn = registry.add("t1")
    registry.add("review", is_background_review=True)
    assert registry.dropped == []
    assert registry.turns.get("", "s") is turn


def test_callers_of_the_api_server_may_share_a_session_id(registry: Registry) -> None:
    first = registry.add("t1", platform="api_server")
    second = registry.add("t2", platform="api_server")
    assert registry.dropped == []
    assert registry.turns.of_task("s", "task-t1") is first
    assert registry.turns.of_task("s", "task-t2") is second


def test_turns_that_never_end_expire(registry: Registry) -> None:
    registry.add("old", session="a")
    registry.clock.now = module.MAX_AGE_SECONDS + 1
    registry.add("new", session="b")
    assert registry.dropped == [("old", "expired")]


def test_the_number_of_turns_is_bounded(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_TURNS", 3)
    for number in range(10):
        registry.add(f"t{number}", session=f"s{number}")
    assert len(registry.turns) == 3
    assert [turn_id for turn_id, _ in registry.dropped] == [f"t{n}" for n in range(7)]


def test_after_an_api_error_a_turn_can_go_on_for_a_while(registry: Registry) -> None:
    turn = registry.add("t1")
    assert registry.turns.remove(turn, grace=True)
    assert len(registry.turns) == 0
    assert registry.turns.get("t1") is turn
    assert not registry.turns.remove(turn, grace=True), "it is closed once"
    registry.clock.now = module.GRACE_SECONDS + 1
    assert registry.turns.get("t1") is None
