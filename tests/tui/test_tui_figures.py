"""Counts over a window: piece by piece, each span once, and then only what is new."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

from bdh_bridge.paths import BridgePaths
from bdh_otel import names
from bdh_otel.reader import SpanReader
from bdh_otel.tracer import Tracer
from bdh_tui.decisions import tally as tallying
from bdh_tui.decisions.tally import Counted, Tally
from bdh_tui.window import WINDOWS
from tests.tui import scenes
from tests.tui.conftest import Drive

DAY = WINDOWS[2]


@pytest.fixture
def store(home: Path) -> Path:
    return BridgePaths(home).spans


def whole(tally: Tally) -> Counted:
    while (found := tally.advance(0)).share < 1:
        pass
    return found


def stored(path: Path, condition: str) -> int:
    connection = sqlite3.connect(path)
    (found,) = connection.execute(f"SELECT count(*) FROM spans WHERE {condition}").fetchone()
    connection.close()
    return int(found)


def test_pieces_add_up_to_the_whole(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = whole(Tally(SpanReader(store), DAY))
    monkeypatch.setattr(tallying, "PIECE", 70)
    tally, shares = Tally(SpanReader(store), DAY), []
    while not shares or shares[-1] < 1:
        found = tally.advance(0)
        shares.append(found.share)
    assert len(shares) > 5
    assert shares == sorted(shares)
    assert found == at_once
    assert sum(found.turns) == stored(store, "name = 'bdh.turn'")
    decided = sum(count for count, _ in found.decisions.values())
    assert decided == stored(store, "gate IS NOT NULL")


def test_the_next_look_counts_what_is_new_and_nothing_twice(store: Path) -> None:
    tally = Tally(SpanReader(store), DAY)
    before = whole(tally)
    assert whole(tally) == before
    scenes.play(store, 7, over_seconds=1)
    after = whole(tally)
    assert sum(after.turns) == sum(before.turns) + 7
    assert after == whole(Tally(SpanReader(store), DAY))


def test_a_turn_under_way_is_counted_once_when_it_ends_too(store: Path) -> None:
    tally, tracer = Tally(SpanReader(store), DAY), Tracer(store, strict=True)
    before = sum(whole(tally).turns)
    root = tracer.start_span(names.TURN)
    root.save_provisional()
    assert tracer.flush(10)
    assert sum(whole(tally).turns) == before + 1
    root.end()
    assert tracer.flush(10)
    tracer.shutdown()
    assert sum(whole(tally).turns) == before + 1


def test_what_the_store_has_given_up_is_not_counted_on(store: Path) -> None:
    tally = Tally(SpanReader(store), WINDOWS[1])
    before = sum(whole(tally).turns)
    half_an_hour_ago = time.time_ns() - 1_800 * 1_000_000_000
    connection = sqlite3.connect(store)
    connection.execute("DELETE FROM spans WHERE start_ns < ?", (half_an_hour_ago,))
    connection.commit()
    connection.close()
    left = stored(store, "name = 'bdh.turn'")
    assert left <= sum(whole(tally).turns) < before


def test_another_file_in_its_place_is_counted_from_the_start(store: Path, tmp_path: Path) -> None:
    tally = Tally(SpanReader(store), DAY)
    whole(tally)
    other = tmp_path / "other.sqlite3"
    scenes.play(other, 3, over_seconds=5)
    for suffix in ("-wal", "-shm"):
        store.with_name(store.name + suffix).unlink(missing_ok=True)
    other.replace(store)
    assert sum(whole(tally).turns) == 3


async def test_the_screen_shows_the_first_figures_before_the_last(
    home: Path, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tallying, "PIECE", 70)
    advance = Tally.advance
    monkeypatch.setattr(Tally, "advance", lambda tally: advance(tally, 0))
    shown: list[float] = []
    async with drive(home, size=(120, 40)) as ui:
        await ui.press("3")
        pane = ui.pane("decisions")
        answer = pane.answer
        pane.answer = lambda found: (shown.append(found.share), answer(found))[1]
        await ui.press("w")
        await ui.until(lambda: shown and shown[-1] == 1, "the whole window")
        assert shown[0] < 1
        await ui.sees("120 turns")
        assert "counting" not in ui.screen
