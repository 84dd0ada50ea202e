"""What is kept of a session's written turns, for how long, and when the session is due."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from bdh_bridge import transcripts as module
from bdh_bridge.transcripts import KEEP, QUIET, REMEMBER, Transcripts, WrittenTurn
from bdh_otel.database import CorruptFile
from tests.support.outbox import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def transcripts(tmp_path: Path, clock: Clock) -> Transcripts:
    tmp_path.chmod(0o700)
    return Transcripts(tmp_path / "sessions.sqlite3", clock=clock)


def add(transcripts: Transcripts, number: int, session: str = "s-1", **texts: str) -> bool:
    turn = WrittenTurn(texts.get("message", f"m{number}"), texts.get("answer", f"a{number}"), "")
    return transcripts.add(
        turn,
        session_id=session,
        write_id=f"{session}-{number}",
        platform="cli",
        destination="http://127.0.0.1:9",
        vault_id="v",
    )


def fill(transcripts: Transcripts, count: int = 3, session: str = "s-1") -> None:
    for number in range(count):
        assert add(transcripts, number, session)


def test_a_session_that_ended_is_due_with_its_turns_in_order(transcripts: Transcripts) -> None:
    fill(transcripts)
    assert transcripts.next_due(3) is None
    assert transcripts.waiting(3)
    assert transcripts.mark_ended("s-1", "finalize")
    due = transcripts.next_due(3)
    assert due is not None
    assert (due.id, due.turns, due.trigger, due.vault_id) == ("s-1", 3, "finalize", "v")
    assert [turn.message for turn in transcripts.turns_of("s-1")] == ["m0", "m1", "m2"]


def test_an_hour_of_quiet_ends_a_session_of_enough_turns(
    transcripts: Transcripts, clock: Clock
) -> None:
    fill(transcripts)
    fill(transcripts, 2, "s-short")
    clock.now += QUIET - 1
    assert transcripts.next_due(3) is None
    clock.now += 2
    due = transcripts.next_due(3)
    assert due is not None
    assert (due.id, due.trigger) == ("s-1", "quiet")
    transcripts.decide("s-1", "queued")
    assert transcripts.next_due(3) is None
    assert not transcripts.waiting(3), "two turns keep no worker up"


def test_a_decided_session_is_decided_for_good_and_its_words_are_gone(
    transcripts: Transcripts, tmp_path: Path
) -> None:
    fill(transcripts)
    transcripts.mark_ended("s-1", "reset")
    transcripts.decide("s-1", "queued")
    assert not add(transcripts, 9)
    assert not transcripts.mark_ended("s-1", "finalize")
    assert transcripts.next_due(1) is None
    assert transcripts.turns_of("s-1") == []


def test_a_turn_after_the_end_means_that_it_goes_on(transcripts: Transcripts) -> None:
    fill(transcripts)
    transcripts.mark_ended("s-1", "finalize")
    add(transcripts, 3)
    assert transcripts.next_due(3) is None


def test_a_session_without_written_turns_leaves_no_trace(
    transcripts: Transcripts, tmp_path: Path
) -> None:
    assert not transcripts.mark_ended("s-1", "finalize")
    assert not (tmp_path / "sessions.sqlite3").exists()
    fill(transcripts, 1, "s-2")
    assert not transcripts.mark_ended("s-1", "finalize")
    assert transcripts.next_due(1) is None


def test_a_write_is_kept_once(transcripts: Transcripts) -> None:
    add(transcripts, 1)
    add(transcripts, 1)
    transcripts.mark_ended("s-1", "finalize")
    due = transcripts.next_due(1)
    assert due is not None
    assert due.turns == 1


def test_undecided_sessions_are_forgotten_after_a_day_and_decided_ones_after_a_month(
    transcripts: Transcripts, clock: Clock
) -> None:
    fill(transcripts, session="old")
    fill(transcripts, session="decided")
    transcripts.mark_ended("old", "finalize")
    transcripts.decide("decided", "queued")
    clock.now += KEEP + 1
    assert transcripts.next_due(1) is None
    assert not transcripts.waiting(1)
    transcripts.prune()
    assert transcripts.turns_of("old") == []
    assert not add(transcripts, 9, "decided")
    clock.now += REMEMBER
    transcripts.prune()
    assert add(transcripts, 9, "decided")


def test_a_clock_that_jumps_back_holds_no_session_for_ever(
    transcripts: Transcripts, clock: Clock
) -> None:
    clock.now += 365 * 86_400
    fill(transcripts)
    clock.now -= 365 * 86_400
    assert not transcripts.waiting(3)
    transcripts.prune()
    assert transcripts.turns_of("s-1") == []


def test_a_postponed_session_waits_its_time(transcripts: Transcripts, clock: Clock) -> None:
    fill(transcripts)
    transcripts.mark_ended("s-1", "finalize")
    transcripts.postpone("s-1", 60, failed=True)
    assert transcripts.next_due(3) is None
    assert transcripts.waiting(3)
    clock.now += 61
    due = transcripts.next_due(3)
    assert due is not None
    assert due.attempts == 1


def test_turns_and_sessions_are_bounded(
    transcripts: Transcripts, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(module, "MAX_TURNS", 4)
    monkeypatch.setattr(module, "MAX_SESSIONS", 2)
    add(transcripts, 0, message="x" * 50_000, answer="y" * 50_000)
    (turn,) = transcripts.turns_of("s-1")
    assert len(turn.message) <= module.MESSAGE_CHARS
    assert len(turn.answer) <= module.ANSWER_CHARS
    for number in range(1, 10):
        add(transcripts, number)
    assert [turn.message for turn in transcripts.turns_of("s-1")] == ["m6", "m7", "m8", "m9"]
    for session in ("s-2", "s-3"):
        clock.now += 1
        fill(transcripts, 1, session)
    assert transcripts.turns_of("s-1") == []
    assert transcripts.turns_of("s-3") != []


def test_the_file_is_for_its_owner_alone(transcripts: Transcripts, tmp_path: Path) -> None:
    fill(transcripts)
    for path in tmp_path.iterdir():
        assert not path.stat().st_mode & 0o077, path


def test_trouble_costs_the_agent_one_warning(
    transcripts: Transcripts, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sessions.sqlite3").write_bytes(b"no database " * 100)
    (tmp_path / "sessions.sqlite3").chmod(0o600)
    assert not add(transcripts, 0)
    assert not add(transcripts, 1)
    assert not transcripts.mark_ended("s-1", "finalize")
    assert caplog.text.count("transcript is not kept") == 1
    with pytest.raises(CorruptFile) as raised:
        transcripts.waiting(1)
    transcripts.put_aside(raised.value)
    assert add(transcripts, 2)
    assert len(list(tmp_path.glob("sessions.sqlite3.corrupt-*"))) == 1


def test_a_locked_file_is_waited_for_a_moment_only(
    transcripts: Transcripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(transcripts, 1)
    monkeypatch.setattr(module, "AGENT_WAIT", 0.05)
    blocker = sqlite3.connect(tmp_path / "sessions.sqlite3", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    assert not add(transcripts, 1)
    blocker.execute("ROLLBACK")
    blocker.close()
    assert add(transcripts, 1)


def test_odd_text_is_kept(transcripts: Transcripts) -> None:
    assert add(transcripts, 0, message="half \ud800 surrogate", answer="\x00 zero")
    assert not transcripts.add(
        WrittenTurn("m", "a", ""), session_id="", write_id="w", platform="", destination="",
        vault_id="",
    )  # fmt: skip
