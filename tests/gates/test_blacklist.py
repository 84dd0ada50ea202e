"""The live blacklist: where it is, what it does with any file, and how it is saved."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bdh_bridge.gates import blacklist as module
from bdh_bridge.gates.blacklist import Blacklist, blacklisted, resolve_blacklist
from bdh_bridge.gates.blacklist_edit import append_rule
from bdh_bridge.gates.blacklist_file import (
    MAX_BYTES,
    ChangedOnDisk,
    Content,
    NotEditable,
    edit,
    fingerprint,
    open_for_editing,
    save,
)
from bdh_bridge.gates.blacklist_rules import Rule, parse
from bdh_bridge.gates.decision import GatePath
from bdh_bridge.gates.reasons import Reason
from bdh_bridge.paths import BridgePaths
from bdh_bridge.settings import Settings

#: Exponential for a backtracking engine, and it does not depend on the message's length.
CATASTROPHE = r"^(?:(?:a|aa|a.)+)+\d$"
BAIT = "a" * 5_000 + "!"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "prompt_blacklist.txt"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_missing_file_is_an_empty_list(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blacklist = Blacklist(path)
    assert blacklist.match("anything") is None
    decision = blacklisted(GatePath.READ, "anything", blacklist)
    assert (decision.allowed, decision.reason) == (True, Reason.NO_RULES)
    assert warnings(caplog) == []


def test_an_edit_holds_from_the_next_message_on(path: Path) -> None:
    blacklist = Blacklist(path)
    assert blacklist.match("red green") is None
    for rule, line in (("red", 1), ("zzz\ngreen", 2), ("blu\nred", 2), ("xxx\nyyy", None)):
        path.write_text(rule)  # in place, at once, sometimes with the same size
        match = blacklist.match("red green")
        assert (match.line if match else None) == line
    path.unlink()
    assert blacklist.rules == ()


def test_edits_within_one_tick_of_the_file_systems_clock(path: Path) -> None:
    blacklist = Blacklist(path)
    for index in range(200):
        path.write_text(("red", "blu")[index % 2])
        assert bool(blacklist.match("red")) is (index % 2 == 0)


def test_the_file_is_parsed_only_when_it_changed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text("red")
    os.utime(path, (1, 1))
    parsed: list[str] = []

    def count(text: str) -> list[Rule]:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr(module, "parse", count)
    monkeypatch.setattr(Content, "is_fresh", lambda self: False)
    blacklist = Blacklist(path)
    for _ in range(5):
        blacklist.check("x")
    assert parsed == ["red"]


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbfnightly\r\n",
        "nightly\r\n".encode("utf-16"),
        b"nightly",
        b"\xff\x00binary\xfe\x00\x01\nnightly\n\x80\x81",
    ],
)
def test_encodings(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    assert Blacklist(path).match("the Nightly job")


def test_a_line_that_is_no_text_is_named_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(b"good\nb\xff\xfead\nre:(\nnul\0\n")
    blacklist = Blacklist(path)
    for _ in range(3):
        assert blacklist.match("good")
    assert [rule.line for rule in blacklist.errors] == [2, 3, 4]
    said = warnings(caplog)
    assert len(said) == 3
    assert all(sentence.startswith("[bdh-bridge] ") for sentence in said)
    assert all(f"line {line} " in sentence for line, sentence in zip((2, 3, 4), said, strict=True))


def test_a_hostile_list_does_not_flood_the_log(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blacklist = Blacklist(path)
    for version in range(50):
        path.write_text("\n".join(f"re:({version}" for _ in range(100)))
        assert len(blacklist.errors) == 100
    assert len(warnings(caplog)) <= 200


def test_warnings_quote_no_rule(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_text("re:(my private words\n")
    Blacklist(path).check("x")
    assert len(caplog.records) == 1
    assert "private" not in caplog.text


def test_random_bytes(path: Path) -> None:
    path.write_bytes(bytes((index * 7919 + index // 251) % 256 for index in range(300_000)))
    assert Blacklist(path).check("anything").match is None


def test_a_file_of_ten_megabytes_is_used_up_to_the_bound(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text("blocked first\n" + ("#" + "x" * 99 + "\n") * 100_000 + "blocked last\n")
    blacklist = Blacklist(path)
    assert blacklist.match("blocked first")
    assert blacklist.match("blocked last") is None
    assert str(MAX_BYTES) in caplog.text


def test_a_file_of_one_endless_line(path: Path) -> None:
    path.write_bytes(b"x" * (MAX_BYTES + 10))
    assert Blacklist(path).check("x").match is None


@pytest.mark.parametrize("kind", ["directory", "pipe", "loop", "device"])
def test_what_is_no_regular_file_is_one_warning(
    path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path if kind == "loop" else "/dev/zero")
    blacklist = Blacklist(path)
    for _ in range(3):
        assert blacklist.match("x") is None
    assert len(warnings(caplog)) == 1


def test_rules_hold_on_while_the_file_can_not_be_read(path: Path) -> None:
    path.write_text("red")
    blacklist = Blacklist(path)
    assert blacklist.match("red")
    path.unlink()
    path.mkdir()
    assert blacklist.match("red")
    path.rmdir()
    assert blacklist.match("red") is None


def test_a_file_that_may_not_be_read(path: Path) -> None:
    path.write_text("red")
    path.chmod(0o000)
    program = (
        "import os, sys; from pathlib import Path\n"
        "from bdh_bridge.gates.blacklist import Blacklist\n"
        "import regex\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "print(Blacklist(Path(sys.argv[1])).match('red'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "None\n", done.stderr
    assert "can't be read" in done.stderr


def test_a_file_that_is_replaced_all_the_time(path: Path) -> None:
    """Readers see one whole version or the other, and no error."""
    versions = ["red\n" + "x\n" * 2_000, "green\n" + "y\n" * 2_000]
    save(path, versions[0], None)
    blacklist, stop = Blacklist(path), threading.Event()
    unblocked: list[str] = []

    def read() -> None:
        while not stop.is_set():
            if not blacklist.match("red green"):
                unblocked.append("seen")

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for index in range(40):
            edit(path, lambda text, new=versions[index % 2]: new)  # type: ignore[misc]
    finally:
        stop.set()
        reader.join()
    assert unblocked == []


def test_a_catastrophic_expression_ends_and_counts_as_no_match(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(f"re:{CATASTROPHE}\nre:!$\n")
    blacklist = Blacklist(path)
    checked = blacklist.check(BAIT)
    assert [rule.line for rule in checked.unfinished] == [1]
    assert checked.match
    assert checked.match.line == 2
    blacklist.check(BAIT)
    assert len(warnings(caplog)) == 1


def test_the_list_as_a_whole_has_a_deadline(path: Path) -> None:
    path.write_text("\n".join(f"re:{CATASTROPHE}{number}" for number in range(200)) + "\nliteral")
    blacklist = Blacklist(path)
    decision = blacklisted(GatePath.READ, BAIT, blacklist)
    # 200 times its own limit would be four seconds: most are not even begun.
    assert decision.allowed
    assert decision.reason == Reason.RULE_TIMED_OUT
    assert decision.details["bdh.gate.rule_errors"] == 200
    assert decision.details["bdh.gate.rule.line"] == 1
    # Literals are looked for whatever expressions cost.
    assert blacklist.match(BAIT + " literal")


def test_ordinary_expressions_do_not_run_out_of_time_beside_busy_threads(path: Path) -> None:
    path.write_text("\n".join(rf"re:\b(?:job|task) {n}\b.*done" for n in range(200)))
    blacklist, stop = Blacklist(path), threading.Event()

    def burn() -> None:
        while not stop.is_set():
            sum(range(1_000))

    threads = [threading.Thread(target=burn) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        checked = [blacklist.check("the task 7 and a job of theirs " * 60) for _ in range(30)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert [len(check.unfinished) for check in checked] == [0] * 30


def test_only_the_beginning_of_a_message_is_looked_at(path: Path) -> None:
    path.write_text("secret word")
    blacklist = Blacklist(path)
    assert blacklist.match("x" * 19_000 + "secret word")
    assert blacklist.match("x" * 20_000 + "secret word") is None


def test_one_resolver(tmp_path: Path) -> None:
    paths = BridgePaths(tmp_path)
    assert resolve_blacklist(Settings(), paths) == tmp_path / "bdh-bridge/prompt_blacklist.txt"
    clone = tmp_path / "plugins" / "bdh-hermes-bridge" / "prompt_blacklist.txt"
    clone.parent.mkdir(parents=True)
    assert resolve_blacklist(Settings(), paths) == paths.blacklist
    clone.write_text("x")
    assert resolve_blacklist(Settings(), paths) == clone
    for value, expected in (
        ("/etc/list.txt", Path("/etc/list.txt")),
        ("l.txt", tmp_path / "l.txt"),
    ):
        assert resolve_blacklist(Settings(BDH_PROMPT_BLACKLIST_FILE=value), paths) == expected


def test_the_place_may_change_while_it_is_used(tmp_path: Path) -> None:
    paths = BridgePaths(tmp_path)
    blacklist = Blacklist(lambda: resolve_blacklist(Settings(), paths))
    save(paths.blacklist, "red\n", None)
    assert blacklist.match("red")
    clone = tmp_path / "plugins" / "bdh-hermes-bridge" / "prompt_blacklist.txt"
    save(clone, "green\n", None)
    assert blacklist.match("green")
    assert not blacklist.match("red")


def test_saving_keeps_the_old_file_and_is_for_the_owner_alone(path: Path) -> None:
    first = save(path, "one\n", None)
    assert first == fingerprint(path)
    path.chmod(0o644)
    save(path, "two\r\n", fingerprint(path))
    backup = path.with_name("prompt_blacklist.txt.bak")
    assert (path.read_bytes(), backup.read_bytes()) == (b"two\r\n", b"one\n")
    assert [stat.S_IMODE(file.stat().st_mode) for file in (path, backup)] == [0o600, 0o600]
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name, backup.name]


def test_a_file_that_others_changed_is_not_overwritten(path: Path) -> None:
    opened = save(path, "mine\n", None)
    path.write_text("theirs\n")
    with pytest.raises(ChangedOnDisk):
        save(path, "mine again\n", opened)
    with pytest.raises(ChangedOnDisk):
        save(path, "as if new\n", None)
    path.unlink()
    with pytest.raises(ChangedOnDisk):
        save(path, "mine again\n", opened)
    assert not path.exists()


def test_what_can_not_be_encoded_leaves_the_file_whole(path: Path) -> None:
    opened = save(path, "one\n", None)
    with pytest.raises(UnicodeEncodeError):
        save(path, "\ud800", opened)
    assert path.read_text() == "one\n"
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_link_is_followed(tmp_path: Path, path: Path) -> None:
    real = tmp_path / "dotfiles" / "list.txt"
    real.parent.mkdir()
    real.write_text("one\n")
    path.symlink_to(real)
    edit(path, lambda text: append_rule(text, "two"))
    assert path.is_symlink()
    assert real.read_text() == "one\ntwo\n"


def test_an_editor_gets_the_exact_text_or_nothing(path: Path) -> None:
    assert open_for_editing(path).text == ""
    path.write_bytes(b"\xef\xbb\xbfone\r\n")
    assert open_for_editing(path).text == "\ufeffone\r\n"
    path.write_bytes(b"one\xff\n")
    with pytest.raises(NotEditable):
        open_for_editing(path)
    path.write_bytes(b"x" * (MAX_BYTES + 1))
    with pytest.raises(NotEditable):
        open_for_editing(path)


def test_edits_at_the_same_time_all_arrive(path: Path) -> None:
    failed: list[Exception] = []

    def add(name: str) -> None:
        for number in range(5):
            while True:
                try:
                    edit(path, lambda text, rule=f"{name}{number}": append_rule(text, rule))  # type: ignore[misc]
                    break
                except ChangedOnDisk:
                    continue
                except Exception as error:
                    failed.append(error)
                    return

    threads = [threading.Thread(target=add, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert sorted(path.read_text().split()) == sorted(f"{n}{i}" for n in "abc" for i in range(5))


@pytest.fixture(autouse=True)
def _levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
