"""The inbox file under fire: damaged, out of reach, gone, owned by somebody else, in a leap of
the clock."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path

import pytest

from hermes_borgee import inbox
from hermes_borgee.config import inbox_path
from tests.support.borgee import until
from tests.support.borgee_adapter import Bench, raw_inbox, running
from tests.support.bpp_server import BppServer

pytestmark = pytest.mark.usefixtures("own_home")


async def test_a_damaged_inbox_is_left_alone_and_named(home: Path, server: BppServer) -> None:
    path = inbox_path(home)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"SQLite format 3\x00" + os.urandom(8_192))
    path.chmod(0o600)
    damaged = path.read_bytes()
    bench = Bench(home)
    assert not await bench.start()
    assert bench.adapter.fatal_error_code == "borgee_inbox"
    assert str(path) in bench.adapter.fatal_error_message
    assert bench.adapter.fatal_error_retryable  # once it is moved away, Hermes' next try works
    assert path.read_bytes() == damaged
    assert server.connections == 0
    assert not list((home / "locks").glob("*.lock"))
    path.rename(path.with_suffix(".damaged"))
    async with running(home) as again:
        server.push("hello")
        await again.until_state("hello", "completed")


@pytest.mark.parametrize("obstacle", ["a file in the folder's place", "read-only"])
async def test_a_folder_that_cannot_be_written_is_named(
    home: Path, server: BppServer, obstacle: str
) -> None:
    folder = inbox_path(home).parent
    if obstacle == "read-only":
        if os.geteuid() == 0:
            pytest.skip("root may write everywhere")
        folder.mkdir(parents=True)
        folder.chmod(0o500)
    else:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.write_text("in the way")
    bench = Bench(home)
    assert not await bench.start()
    assert bench.adapter.fatal_error_code == "borgee_inbox"
    assert str(folder) in bench.adapter.fatal_error_message
    assert server.connections == 0
    if obstacle == "read-only":
        folder.chmod(0o700)
    else:
        folder.unlink()
    async with running(home):
        pass


@pytest.mark.parametrize("fate", ["moved", "removed", "replaced"])
async def test_a_file_that_goes_while_in_use_is_noticed_and_nothing_goes_on_into_it(
    home: Path, server: BppServer, fate: str, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite would write on, into a file that no start ever reads."""
    path = inbox_path(home)
    async with running(home) as bench:
        gate = bench.hold("running")
        server.push("running")
        await bench.until_seen("running")
        server.push("waits in the old file")
        await bench.until_state("waits in the old file", "pending")
        files = [path, *path.parent.glob(f"{path.name}-*")]
        for file in files:
            if fate == "removed":
                file.unlink()
            else:
                file.rename(file.with_name(f"old-{file.name}"))
        if fate == "replaced":
            with raw_inbox(home):
                pass
        server.push("after", channel_id="c2")
        await bench.until_state("after", "completed")
        gate.set()
        server.push("in the same channel")
        await bench.until_state("in the same channel", "completed")
        # The old one's message is not known any more; nothing was run twice.
        assert bench.seen == ["running", "after", "in the same channel"]
    assert sum("was moved or removed" in record.message for record in caplog.records) == 1
    with raw_inbox(home) as connection:
        kept = {receipt.source_body for receipt in inbox.select(connection)}
    assert kept == {"after", "in the same channel"}


async def test_a_path_that_is_blocked_after_the_file_went_costs_time_only(
    home: Path, server: BppServer, caplog: pytest.LogCaptureFixture
) -> None:
    path = inbox_path(home)
    with caplog.at_level(logging.ERROR):
        async with running(home) as bench:
            for file in [path, *path.parent.glob(f"{path.name}-*")]:
                file.unlink()
            path.mkdir()  # nothing can be opened there
            server.push("patient")
            await until(lambda: "waits for the inbox" in caplog.text)
            await asyncio.sleep(1.2)  # some looks of the requests' loop
            path.rmdir()
            await bench.until_state("patient", "completed")
            assert bench.seen == ["patient"]
    assert sum("requests can't be read" in record.message for record in caplog.records) <= 2


@pytest.mark.parametrize("days", [-40, 40])
async def test_a_leap_of_the_clock_changes_nothing(
    home: Path, server: BppServer, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    real, leap = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + leap[0])
    async with running(home) as bench:
        gate = bench.hold("first")
        server.push("first")
        await bench.until_seen("first")
        server.push("second")
        await bench.until_state("second", "pending")
        leap[0] = days * 86_400.0
        server.push("third")
        server.push("/status")
        await bench.until_state("/status", "completed")
        gate.set()
        await bench.until_state("third", "completed")
        assert [text for text in bench.seen if text != "/status"] == ["first", "second", "third"]
    async with running(home) as again:  # retention ran by the new clock
        server.push("fourth")
        await again.until_state("fourth", "completed")
        assert again.seen == ["fourth"]
