"""What goes wrong around the application: each thing a calm message, and gone with its cause."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from bdh_bridge.paths import BridgePaths
from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.store import SCHEMA
from bdh_otel.tracer import Tracer
from tests.tui import scenes
from tests.tui.conftest import Drive


@pytest.fixture
def saved(home: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(BridgePaths(home).spans, tmp_path / "saved.sqlite3"))


def put_back(saved: Path, path: Path) -> None:
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    shutil.copy(saved, path.with_name("new.sqlite3"))
    path.with_name("new.sqlite3").chmod(0o600)
    path.with_name("new.sqlite3").replace(path)


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        ("missing", "appears with the first turn"),
        ("empty", "appears with the first turn"),
        ("corrupt", "the file is damaged"),
        ("newer", "upgrade bdh-hermes-bridge"),
        ("foreign", "is not a span store"),
        ("others may read it", "chmod 600"),
    ],
)
async def test_a_store_that_can_t_be_read_is_told_and_taken_up_when_it_can(
    home: Path, saved: Path, drive: Drive, trouble: str, told: str
) -> None:
    path = BridgePaths(home).spans
    for companion in path.parent.glob("spans.sqlite3-*"):
        companion.unlink()
    if trouble == "missing":
        path.unlink()
    elif trouble == "empty":
        path.write_bytes(b"")
    elif trouble == "corrupt":
        path.write_bytes(b"SQLite format 3\0" + os.urandom(8_000))
    elif trouble == "newer":
        connection = sqlite3.connect(path)
        connection.execute(f"PRAGMA user_version={len(SCHEMA.migrations) + 1}")
        connection.close()
    elif trouble == "foreign":
        path.unlink()
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE other (x)")
        connection.commit()
        connection.close()
        path.chmod(0o600)
    else:
        path.chmod(0o644)
    async with drive(home, size=(200, 30)) as ui:
        await ui.sees(told)
        for key in "2341":
            await ui.press(key)
        put_back(saved, path)
        live = ui.pane("live")
        await ui.until(lambda: len(live.turns) == 100, "the turns, once the store is whole")
        assert told not in ui.screen


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        ("truncated", ""),
        ("garbage", "the file is damaged"),
        ("newer", "upgrade bdh-hermes-bridge"),
        ("removed", "no spans yet"),
    ],
)
async def test_harm_that_comes_while_it_runs_is_told_and_mended(
    home: Path, saved: Path, drive: Drive, harm: str, told: str
) -> None:
    path = BridgePaths(home).spans
    async with drive(home, size=(200, 30)) as ui:
        other = path.with_name("other")
        if harm == "truncated":
            os.truncate(path, 5_000)
        elif harm == "garbage":
            other.write_bytes(b"SQLite format 3\0" + os.urandom(8_000))
        elif harm == "newer":
            shutil.copy(saved, other)
            connection = sqlite3.connect(other)
            connection.execute(f"PRAGMA user_version={len(SCHEMA.migrations) + 1}")
            connection.close()
        else:
            path.unlink()
        if other.exists():
            other.chmod(0o600)
            other.replace(path)
        for key in "23411":
            await ui.press(key)
        await ui.sees(told)
        put_back(saved, path)
        scenes.play(path, 1, over_seconds=1)
        live = ui.pane("live")
        await ui.press("f")
        await ui.until(lambda: len(live.turns) >= 100, "the turns, once the store is whole")
        await ui.press("3")
        await ui.sees("121 turns")
        assert "Traceback" not in ui.screen


async def test_a_locked_store_does_not_freeze_the_keys(home: Path, drive: Drive) -> None:
    path = BridgePaths(home).spans
    blocker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    # In WAL mode readers go on; the mode of network mounts is where a writer keeps them out.
    blocker.execute("PRAGMA journal_mode=delete")
    async with drive(home) as ui:
        blocker.execute("BEGIN EXCLUSIVE")
        await ui.pilot.press("down", "down")
        assert ui.pane("live").lines.cursor == 2
        await ui.until(lambda: "is locked" in ui.screen, "what is the matter")
        blocker.execute("ROLLBACK")
        blocker.close()
        await ui.until(lambda: "is locked" not in ui.screen, "its end")


async def test_a_store_that_is_replaced_is_shown_anew(
    home: Path, empty_home: Path, drive: Drive
) -> None:
    scenes.play(BridgePaths(empty_home).spans, 3, over_seconds=5)
    async with drive(home) as ui:
        put_back(BridgePaths(empty_home).spans, BridgePaths(home).spans)
        await ui.until(lambda: len(ui.pane("live").turns) == 3)


async def test_clocks_that_differ_are_told(home: Path, drive: Drive) -> None:
    async with drive(home) as ui:
        tracer = Tracer(BridgePaths(home).spans, strict=True)
        ahead = time.time_ns() + 90 * 10**9
        values = {attr.PLATFORM: "cli", attr.TURN_MESSAGE: "from the future"}
        tracer.start_span(names.TURN, start_time=ahead, attributes=values).end(ahead + 10**9)
        assert tracer.flush(10)
        tracer.shutdown()
        await ui.sees("from the future", "clock skew")


async def test_lost_spans_are_told(home: Path, drive: Drive) -> None:
    connection = sqlite3.connect(BridgePaths(home).spans)
    connection.execute("UPDATE resources SET dropped = 41")
    connection.commit()
    connection.close()
    async with drive(home) as ui:
        await ui.sees("dropped")
        assert "! 41 dropped" in ui.screen


async def test_an_unreadable_outbox_is_told(home: Path, drive: Drive) -> None:
    path = BridgePaths(home).outbox
    path.write_bytes(b"no database at all, " * 500)
    async with drive(home, size=(160, 30)) as ui:
        await ui.sees("outbox ! unreadable")
        await ui.press("7")
        await ui.sees("the file is damaged")


async def test_looking_makes_no_files(empty_home: Path, drive: Drive) -> None:
    async with drive(empty_home) as ui:
        for key in "1234567":
            await ui.press(key)
        await ui.sees("There is no outbox yet")
    assert not (empty_home / "bdh-bridge").exists()


@pytest.mark.parametrize("size", [(30, 8), (59, 40), (200, 10)])
async def test_a_terminal_that_is_too_small_says_so_and_recovers(
    home: Path, drive: Drive, size: tuple[int, int]
) -> None:
    async with drive(home, size=size) as ui:
        await ui.sees("too small")
        await ui.pilot.resize_terminal(80, 24)
        await ui.until(lambda: "too small" not in ui.screen and "following" in ui.screen)


async def test_resizing_draws_every_screen_for_its_new_width(home: Path, drive: Drive) -> None:
    async with drive(home) as ui:
        for key in "1234567":
            await ui.press(key)
            for size in ((80, 24), (200, 60), (120, 40)):
                await ui.pilot.resize_terminal(*size)
                await ui.settled()
                lines = ui.app.screen._compositor.render_strips()
                assert {strip.cell_length for strip in lines} == {size[0]}
