"""Screen 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from textual import events
from textual.widgets import Input

from bdh_bridge.paths import BridgePaths
from bdh_otel.tracer import Tracer
from tests.tui import scenes
from tests.tui.conftest import Drive, Driver


async def test_newest_turns_are_on_top_with_marks_scores_and_write_state(
    home: Path, drive: Drive
) -> None:
    async with drive(home, size=(160, 40)) as ui:
        turns = ui.pane("live").turns
        assert [turn.start_ns for turn in turns] == sorted(
            (turn.start_ns for turn in turns), reverse=True
        )
        await ui.sees("following", "quarantined", "blacklisted", "! unreachable", "✓ learned")
        line = next(line for line in ui.screen.splitlines() if "quarantined" in line)
        assert "✓✓✓✓✓✓✓✗" in line
        assert "906 ms" in line


async def test_a_new_turn_appears_by_itself_and_its_delivery_changes_its_line(
    empty_home: Path, drive: Drive
) -> None:
    async with drive(empty_home) as ui:
        await ui.sees("no spans yet")
        scenes.play(BridgePaths(empty_home).spans, 1, over_seconds=1)
        await ui.sees("Why did we choose SQLite", "3 notes")
        assert "no spans yet" not in ui.screen


async def test_an_open_turn_is_shown_and_completed_in_place(empty_home: Path, drive: Drive) -> None:
    tracer = Tracer(BridgePaths(empty_home).spans, strict=True)
    async with drive(empty_home) as ui:
        import time

        scene = scenes.Scene(tracer, "Is anybody there?", "s", "cli", time.time_ns())
        scene.root.save_provisional()
        assert tracer.flush(10)
        await ui.sees("Is anybody there?", "open")
        scene.gate("read", "eligibility", "casual", "skip")
        scene.end("skip", "casual", "short_answer")
        assert tracer.flush(10)
        await ui.sees("small talk")
        assert len(ui.pane("live").turns) == 1
    tracer.shutdown()


async def test_scrolling_pauses_and_following_takes_up_what_came_meanwhile(
    home: Path, drive: Drive
) -> None:
    async with drive(home) as ui:
        live = ui.pane("live")
        await ui.press("down", "down")
        await ui.sees("paused")
        shown = [turn.trace_id for turn in live.turns]
        scenes.play(BridgePaths(home).spans, 5, over_seconds=1)
        await ui.sees("5 new")
        assert [turn.trace_id for turn in live.turns] == shown
        await ui.press("f")
        await ui.sees("following")
        assert len({turn.trace_id for turn in live.turns} - set(shown)) == 5


async def test_older_turns_come_when_they_are_scrolled_to(home: Path, drive: Drive) -> None:
    async with drive(home) as ui:
        live = ui.pane("live")
        assert len(live.turns) == 100
        await ui.press("end")
        await ui.until(lambda: len(live.turns) == 120, "the oldest turns")
        await ui.press("end")
        assert live.lines.cursor == 119


async def test_the_filter_shows_only_what_matches_and_escape_clears_it(
    home: Path, drive: Drive
) -> None:
    async with drive(home) as ui:
        live = ui.pane("live")
        ui.fill("Input", "gate:blacklist decision:skip")
        await ui.until(lambda: live.turns and all(t.read == "blacklisted" for t in live.turns))
        assert len(live.turns) == 10
        await ui.press("slash", "escape")
        await ui.until(lambda: len(live.turns) == 100, "every turn again")


async def test_a_wrong_filter_says_what_is_wrong(home: Path, drive: Drive) -> None:
    async with drive(home) as ui:
        await ui.press("slash")
        await ui.press("x", "colon", "1")
        await ui.sees("there is no field")


async def test_filters_are_saved_for_the_next_run(home: Path, drive: Drive) -> None:
    async with drive(home) as ui:
        ui.fill("Input", "platform:cli")
        await ui.press("s")
    kept = BridgePaths(home).directory / "tui.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    async with drive(home) as ui:
        await ui.press("S")
        await ui.sees("platform:cli")
        await ui.press("enter")
        live = ui.pane("live")
        await ui.until(lambda: {turn.platform for turn in live.turns} == {"cli"})


async def test_enter_opens_the_turn_and_escape_leads_back(home: Path, drive: Drive) -> None:
    async with drive(home) as ui:
        await ui.press("down", "enter")
        await ui.until(lambda: ui.pane("turn").spans, "the turn's spans")
        assert ui.pane("turn").trace_id == ui.pane("live").turns[1].trace_id
        await ui.press("escape")
        assert ui.pane("live").display


async def test_a_click_selects_and_a_second_one_opens(home: Path, drive: Drive) -> None:
    async with drive(home) as ui:
        lines: Any = ui.pane("live").lines
        await ui.pilot.click(lines, offset=(10, 3))
        assert lines.cursor == 3
        await ui.pilot.click(lines, offset=(10, 3))
        await ui.until(lambda: ui.app.pane("turn") and ui.pane("turn").display)


async def test_numbers_and_clicks_on_the_tabs_change_the_screen(home: Path, drive: Drive) -> None:
    from bdh_tui.tabs import TabStrip

    names = ["live", "turn", "decisions", "providers", "graph", "blacklist", "outbox"]
    async with drive(home) as ui:
        for number, name in enumerate(names, start=1):
            await ui.press(str(number))
            assert ui.pane(name).display
            assert sum(bool(ui.app.pane(one) and ui.pane(one).display) for one in names) == 1
        strip = ui.app.query_one(TabStrip)
        start = strip._places[0][0]
        await ui.pilot.click(strip, offset=(start + 1, 0))
        await ui.until(lambda: ui.pane("live").display)


async def test_news_come_in_behind_an_open_dialog(home: Path, drive: Drive) -> None:
    async with drive(home) as ui:
        before = len(ui.pane("live").turns)
        await ui.press("S")
        scenes.play(BridgePaths(home).spans, 3, over_seconds=1)
        await ui.until(lambda: len(ui.pane("live").turns) == before + 3)
        await ui.press("escape")


def type_quickly(ui: Driver, *keys: str) -> None:
    """Several keys in one go, as a slow connection brings them."""
    for key in keys:
        ui.app.post_message(events.Key(key, key if len(key) == 1 else None))


async def test_keys_typed_at_once_go_where_the_ones_before_them_lead(
    home: Path, drive: Drive
) -> None:
    async with drive(home) as ui:
        live = ui.pane("live")
        text = "text:quartz"
        names = {":": "colon"}
        keys = [events.Key(names.get(char, char), char) for char in text]
        for key in [events.Key("slash", "/"), *keys, events.Key("enter", "\r")]:
            ui.app.post_message(key)
        type_quickly(ui, "j", "4")
        await ui.until(lambda: ui.app.pane("providers") and ui.pane("providers").display)
        assert ui.app.screen.query_one("#live Input", Input).value == text
        assert ui.app.is_running
        await ui.press("1")
        assert ui.app.focused is live.lines


async def test_enter_gives_the_focus_away_before_the_next_key(home: Path, drive: Drive) -> None:
    async with drive(home) as ui:
        await ui.press("slash", "a")
        type_quickly(ui, "enter", "f", "2")
        await ui.until(lambda: ui.app.pane("turn") and ui.pane("turn").display)
        assert ui.app.screen.query_one("#live Input", Input).value == "a"
