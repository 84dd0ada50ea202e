"""Screen 6."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from textual.widgets import Input, TextArea

from bdh_bridge.gates.blacklist import Blacklist
from bdh_bridge.gates.blacklist_rules import MAX_RULES
from bdh_bridge.paths import BridgePaths
from bdh_tui.blacklist.preview import Message, preview, slow
from tests.tui.conftest import Drive, Driver
from tests.tui.scenes import BLACKLIST


async def on_blacklist(ui: Driver) -> None:
    await ui.press("6")
    await ui.sees("prompt_blacklist.txt")


async def test_lists_rules_with_their_state_their_hits_and_what_is_wrong_with_them(
    home: Path, drive: Drive
) -> None:
    async with drive(home) as ui:
        await on_blacklist(ui)
        await ui.sees("2 in use", "1 off", "1 can't be used", "stopped 10 turns")
        await ui.press("end")
        await ui.sees("Invalid expression")


async def test_a_rule_is_added_with_a_comment_and_holds_for_the_plugin(
    home: Path, drive: Drive
) -> None:
    path = BridgePaths(home).blacklist
    async with drive(home) as ui:
        await on_blacklist(ui)
        await ui.press("a")
        ui.fill("#rule", "spare siren")
        await ui.sees("usable as a text", "10 of the last 120 messages match")
        ui.fill("#comment", "nobody's business")
        await ui.press("enter")
        await ui.sees("It holds from the next message on")
    assert path.read_text(encoding="utf-8") == BLACKLIST + "\n# nobody's business\nspare siren\n"
    assert path.with_name(path.name + ".bak").read_text(encoding="utf-8") == BLACKLIST
    assert path.stat().st_mode & 0o777 == 0o600
    assert Blacklist(path).match("Where is the SPARE SIREN?") is not None


async def test_what_is_typed_is_judged_at_once(home: Path, drive: Drive) -> None:
    async with drive(home) as ui:
        await on_blacklist(ui)
        await ui.press("a")
        for typed, verdict in (
            ("re:(open", "Invalid expression"),
            ("re:.*", "It matches everything"),
            ("re:(a+)+$", "Dangerously slow"),
            ("# a note", "a comment, not a rule"),
            ("re:salar(y|ies)", "usable as a regular expression"),
        ):
            ui.fill("#rule", typed)
            await ui.sees(verdict)
        ui.fill("#rule", "re:(open")
        await ui.sees("Invalid expression")
        await ui.press("enter")
        assert ui.app.screen.query("#rule"), "an unusable rule is not accepted"
        await ui.press("escape")
    assert BridgePaths(home).blacklist.read_text(encoding="utf-8") == BLACKLIST


async def test_rules_are_switched_edited_and_deleted_where_they_stand(
    home: Path, drive: Drive
) -> None:
    path = BridgePaths(home).blacklist
    async with drive(home) as ui:
        await on_blacklist(ui)
        await ui.press("space")
        await ui.until(lambda: "#off: salaries" in path.read_text(encoding="utf-8"))
        await ui.press("space")
        await ui.until(lambda: path.read_text(encoding="utf-8") == BLACKLIST)
        await ui.press("e")
        ui.fill("#rule", "wages")
        await ui.press("ctrl+s")
        await ui.until(lambda: "\nwages\n" in path.read_text(encoding="utf-8"))
        await ui.press("end", "d")
        await ui.sees("Delete this rule?")
        await ui.press("y")
        await ui.until(lambda: "(unclosed" not in path.read_text(encoding="utf-8"))
    kept = BLACKLIST.replace("salaries", "wages").replace("re:(unclosed\n", "")
    assert path.read_text(encoding="utf-8") == kept


async def test_the_prompt_of_a_turn_is_blacklisted_from_the_list(home: Path, drive: Drive) -> None:
    path = BridgePaths(home).blacklist
    async with drive(home) as ui:
        message = ui.pane("live").turns[0].message
        await ui.press("b")
        await ui.until(lambda: ui.app.screen.query("#rule"))
        assert ui.app.screen.query_one("#rule", Input).value == message
        await ui.press("enter")
        await ui.until(lambda: message in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("choice", ["take theirs", "save mine", "leave it"])
async def test_another_program_s_change_is_shown_and_nothing_is_lost(
    home: Path, drive: Drive, choice: str
) -> None:
    path = BridgePaths(home).blacklist
    theirs = BLACKLIST + "theirs\n"
    async with drive(home) as ui:
        await on_blacklist(ui)
        await ui.press("v")
        area = ui.app.screen.query_one(TextArea)
        area.text = BLACKLIST + "mine\n"
        path.write_text(theirs, encoding="utf-8")
        await ui.sees("changed on disk")
        await ui.press("ctrl+s")
        await ui.sees("-theirs", "+mine")
        if choice == "take theirs":
            await ui.press("down", "enter")
            await ui.until(lambda: area.text == theirs)
        elif choice == "save mine":
            await ui.press("down", "down", "enter")
            await ui.until(lambda: "mine" in path.read_text(encoding="utf-8"))
            backup = path.with_name(path.name + ".bak")
            assert backup.read_text(encoding="utf-8") == theirs
        else:
            await ui.press("enter")
            assert area.text == BLACKLIST + "mine\n"
            assert path.read_text(encoding="utf-8") == theirs


@pytest.mark.parametrize("deed", ["delete", "edit", "switch", "add"])
async def test_a_rule_is_changed_where_it_stands_by_now(
    home: Path, drive: Drive, deed: str
) -> None:
    """Another program puts a rule above it while the question is on the screen."""
    path = BridgePaths(home).blacklist
    path.write_text("one\ntwo\nthree\n", encoding="utf-8")
    async with drive(home) as ui:
        await on_blacklist(ui)
        await ui.sees("3 in use")
        await ui.press("down")
        if deed != "switch":
            await ui.press(deed[0])
            if deed in ("edit", "add"):
                ui.fill("#rule", "other")
        path.write_text("theirs\none\ntwo\nthree\n", encoding="utf-8")
        pane = ui.pane("blacklist")
        await ui.until(lambda: len(pane.document.rules) == 4, "their rule")
        await ui.press({"delete": "y", "switch": "space"}.get(deed, "enter"))
    expected = {
        "delete": "theirs\none\nthree\n",
        "edit": "theirs\none\nother\nthree\n",
        "switch": "theirs\none\n#off: two\nthree\n",
        "add": "theirs\none\ntwo\nthree\nother\n",
    }
    assert path.read_text(encoding="utf-8") == expected[deed]


async def test_a_rule_that_others_took_out_is_not_changed(home: Path, drive: Drive) -> None:
    path = BridgePaths(home).blacklist
    path.write_text("one\ntwo\n", encoding="utf-8")
    async with drive(home) as ui:
        await on_blacklist(ui)
        await ui.sees("2 in use")
        await ui.press("d")
        path.write_text("two\n", encoding="utf-8")
        await ui.press("y")
        await ui.sees("took this rule out")
    assert path.read_text(encoding="utf-8") == "two\n"


async def test_a_rule_over_the_limit_is_not_said_to_hold(home: Path, drive: Drive) -> None:
    path = BridgePaths(home).blacklist
    full = "".join(f"rule {number}\n" for number in range(MAX_RULES["literal"]))
    path.write_text(full, encoding="utf-8")
    async with drive(home) as ui:
        await on_blacklist(ui)
        await ui.press("a")
        ui.fill("#rule", "one more")
        await ui.press("enter")
        await ui.sees("It is not used")


async def test_an_added_rule_stands_apart_from_the_headings_of_others(
    home: Path, drive: Drive
) -> None:
    path = BridgePaths(home).blacklist
    path.write_bytes(b"# Money\r\nsalaries\r\n# Health\r\ndoctor")
    async with drive(home) as ui:
        await on_blacklist(ui)
        await ui.press("a")
        ui.fill("#rule", "spare siren")
        await ui.press("enter")
        await ui.sees("It holds from the next message on")
    assert path.read_bytes() == (
        b"# Money\r\nsalaries\r\n# Health\r\ndoctor\r\n\r\nspare siren\r\n"
    )


@pytest.mark.parametrize("trouble", ["a directory", "read-only"])
async def test_a_file_that_can_t_be_saved_is_told(
    home: Path, drive: Drive, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = BridgePaths(home).blacklist
    path.unlink()
    if trouble == "a directory":
        path.mkdir()
    else:  # whoever runs this may be allowed everything, so the system says no here

        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr("tempfile.mkstemp", refuse)
    async with drive(home) as ui:
        await on_blacklist(ui)
        await ui.press("a")
        ui.fill("#rule", "new")
        await ui.press("enter")
        await ui.sees("Not saved")
        monkeypatch.undo()


async def test_an_outside_change_shows_by_itself_while_nothing_is_typed(
    home: Path, drive: Drive
) -> None:
    async with drive(home) as ui:
        await on_blacklist(ui)
        BridgePaths(home).blacklist.write_text("only this\n", encoding="utf-8")
        await ui.sees("only this", "1 in use")
        BridgePaths(home).blacklist.unlink()
        await ui.sees("No rules")


async def test_what_is_no_text_is_not_edited(home: Path, drive: Drive) -> None:
    path = BridgePaths(home).blacklist
    path.write_bytes(b"caf\xe9\n")
    async with drive(home) as ui:
        await on_blacklist(ui)
        await ui.sees("(byte 3)")  # the path before it may wrap anywhere
        await ui.press("a")
        ui.fill("#rule", "new")
        await ui.press("enter")
        await ui.settled()
    assert path.read_bytes() == b"caf\xe9\n"


async def test_windows_line_ends_survive_the_text_view(home: Path, drive: Drive) -> None:
    path = BridgePaths(home).blacklist
    path.write_bytes(b"one\r\ntwo\r\n")
    async with drive(home) as ui:
        await on_blacklist(ui)
        await ui.press("v")
        ui.app.screen.query_one(TextArea).text = "one\ntwo\nthree\n"
        await ui.press("ctrl+s")
        await ui.until(lambda: b"three" in path.read_bytes())
    assert path.read_bytes() == b"one\r\ntwo\r\nthree\r\n"


def test_the_preview_says_how_much_of_the_messages_it_saw() -> None:
    kept = [
        Message("1", 1, "about salaries", True),
        Message("2", 2, "the beginning of", False),
        Message("3", 3, "", False),
    ]
    found = preview("salaries", kept)
    assert [message.trace_id for message in found.matches] == ["1"]
    assert found.summary == (
        "1 of the last 2 messages matches; 1 is kept only in part; of 1 more the text is not kept."
    )


def test_a_pattern_that_backtracks_without_bound_is_found_out_quickly() -> None:
    began = time.thread_time()
    assert slow("re:(a+)+$")
    assert not slow("re:\\bsalar(y|ies)\\b")
    assert not slow("plain text")
    # Generous: each probe has 20 ms, without that limit it would not end at all.
    assert time.thread_time() - began < 5
