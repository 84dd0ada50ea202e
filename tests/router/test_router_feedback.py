"""Corrections: kept at home, learned from, and never more than that."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from bdh_bridge import cli
from bdh_bridge.bridge import Bridge, message_view
from bdh_bridge.paths import BridgePaths
from bdh_bridge.routing.local import head as heads
from bdh_bridge.routing.local.feedback import corrections
from bdh_bridge.settings import load
from bdh_otel.reader import SpanReader

MESSAGES = (
    "How do we store the seed potatoes over winter?",
    "and the dahlias?",
    "restart the print server",
)


@pytest.fixture
def bridge(home: Path) -> Iterator[Bridge]:
    loaded = load(home, environ={"BDH_API_URL": "http://127.0.0.1:9", "BDH_WORKER": "off"})
    made = Bridge(loaded, job_prompt=lambda _: None)
    for number, message in enumerate(MESSAGES):
        view = message_view(
            message,
            session_id="s",
            turn_id=f"turn-{number}",
            platform="cli",
            sender_id="",
            is_background_review=False,
        )
        turn = made.new_turn(view, task_id="", model="", sender_id="", is_first=number == 0)
        made.begin_turn(turn, [])
        made.end_turn(turn, "end_of_turn")
    yield made
    made.close()


class Command:
    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._home, self._capsys = home, capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        status = cli.main(["--home", str(self._home), "router", *arguments])
        out, err = self._capsys.readouterr()
        return status, out, err


@pytest.fixture
def command(home: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(home, capsys)


def test_a_correction_keeps_the_words_it_is_about(bridge: Bridge, command: Command) -> None:
    status, out, _ = command("feedback", "turn-1", "--read", "yes")
    assert status == 0
    assert "read yes" in out
    path = bridge.loaded.paths.feedback
    (kept,) = corrections(path)
    assert (kept.message, kept.read, kept.store) == ("and the dahlias?", True, None)
    assert [item["content"] for item in kept.history] == [MESSAGES[0]]
    assert kept.conversation.last("user") == MESSAGES[0]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_later_word_replaces_what_it_speaks_of(bridge: Bridge, command: Command) -> None:
    command("feedback", "turn-1", "--read", "yes", "--store", "no")
    command("feedback", "turn-1", "--read", "no")
    (kept,) = corrections(bridge.loaded.paths.feedback)
    assert (kept.read, kept.store) == (False, False)
    assert "and the dahlias?" in command("feedback")[1]
    assert command("feedback", "turn-1", "--forget")[0] == 0
    assert command("feedback")[1] == "no corrections\n"


def test_a_turn_is_named_by_its_trace_or_as_the_last(bridge: Bridge, command: Command) -> None:
    reader = SpanReader(bridge.loaded.paths.spans)
    trace_id = reader.turns(1)[0].root.trace_id
    reader.close()
    assert command("feedback", trace_id[:12], "--store", "no")[0] == 0
    assert command("feedback", "last", "--read", "no")[0] == 0
    (kept,) = corrections(bridge.loaded.paths.feedback)
    assert (kept.message, kept.read, kept.store) == (MESSAGES[2], False, False)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("feedback", "nowhere", "--read", "no"), "no turn is called 'nowhere'"),
        (("feedback", "turn-0"), "say --read"),
        (("feedback", "turn-0", "--forget"), "no correction"),
        (("train",), "say --with-feedback"),
        (("train", "--with-feedback"), "no corrections are kept"),
    ],
)
def test_mistakes_are_one_sentence(
    bridge: Bridge, command: Command, arguments: tuple[str, ...], sentence: str
) -> None:
    status, _, err = command(*arguments)
    assert status == 2
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_without_any_turn_there_is_nothing_to_correct(command: Command) -> None:
    assert command("feedback", "last", "--read", "no")[0] == 2


@pytest.mark.usefixtures("local")
def test_a_personal_head_follows_the_corrections(
    bridge: Bridge, command: Command, home: Path
) -> None:
    shipped = heads.load()
    command("feedback", "turn-0", "--read", "no")
    command("feedback", "turn-1", "--read", "no")
    status, out, _ = command("train", "--with-feedback")
    assert status == 0
    assert "2 corrections" in out
    path = BridgePaths(home).personal_head
    mine = heads.load(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert mine.card["personal"] == {"corrections": 2, "shipped": shipped.version}
    found = json.loads(command("status", "--json")[1])
    assert found["personal"] is True
    assert found["corrections"] == 2
    assert command("train", "--reset")[0] == 0
    assert not path.exists()
    assert json.loads(command("status", "--json")[1])["personal"] is False


@pytest.mark.usefixtures("local")
def test_labelled_messages_are_scored(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    rows = [
        {"message": "Why did we pick the north slope for the hives?", "read": True, "store": False},
        {"message": "restart the print server", "read": False, "store": False, "language": "en"},
        {
            "message": "and why?",
            "history": [{"role": "user", "text": "x"}, {"role": "assistant", "content": "y"}],
            "expect": {"should_retrieve": True, "store_candidate": True},
        },
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    status, out, _ = command("eval", str(file), "--json")
    assert status == 0
    found = json.loads(out)
    assert found["local"]["messages"] == found["mechanical"]["messages"] == 3
    assert {item["id"] for item in found["errors"]} <= {"1", "2", "3"}
    status, out, _ = command("eval", str(file), "--errors")
    assert status == 0
    assert "mechanical" in out


@pytest.mark.parametrize(
    "content", ["", "{", '{"message": "x"}', '{"message": "x", "read": 1, "store": false}', "[1]"]
)
def test_a_file_without_labels_is_refused(command: Command, tmp_path: Path, content: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(content, "utf-8")
    assert command("eval", str(file))[0] == 2
