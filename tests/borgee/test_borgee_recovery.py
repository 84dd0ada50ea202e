"""What a death or an end leaves behind, and what the next start does with it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hermes_borgee import inbox
from hermes_borgee.receipts import Outcome, Status
from hermes_borgee.remediation import Refused
from tests.support.borgee import make_home, until
from tests.support.borgee_adapter import Bench, left_behind, raw_inbox, running
from tests.support.bpp_server import BppServer

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.mark.parametrize("status", [Status.PENDING, Status.CLAIMED])
async def test_what_had_not_begun_runs_after_a_restart(home: Path, status: Status) -> None:
    left_behind(home, status, "agent:main:borgee:channel:chan-1", "waiting")
    async with running(home) as bench:
        await bench.until_state("waiting", "completed")
        assert bench.seen == ["waiting"]


@pytest.mark.parametrize("status", [Status.PROCESSING, Status.IN_DOUBT])
@pytest.mark.parametrize("with_session", [True, False])
async def test_what_had_begun_is_quarantined_and_its_session_suspended(
    home: Path, server: BppServer, status: Status, with_session: bool
) -> None:
    bench = Bench(home)
    key = "agent:main:borgee:channel:chan-1"
    if with_session:
        assert bench.make_session() == key
        bench.store.mark_resume_pending(key)
    number = left_behind(home, status, key, "doubtful")
    left_behind(home, Status.PENDING, key, "behind it")
    assert await bench.start()
    receipt = await bench.until_state("doubtful", "quarantined")
    assert receipt.outcome == Outcome.PROCESS_DIED
    if with_session:
        assert bench.store._entries[key].suspended
        assert not bench.store._entries[key].resume_pending
    server.push("elsewhere", channel_id="c2")
    await bench.until_state("elsewhere", "completed")
    await asyncio.sleep(1.5)
    assert bench.seen == ["elsewhere"]  # nothing discards or runs it by itself
    await bench.until_state("doubtful", "quarantined")

    with pytest.raises(Refused, match="may repeat"):
        await bench.adapter.remediate_receipt(number, "requeue")
    old = bench.store.peek_session_id(key)
    answer = await bench.adapter.remediate_receipt(
        number, "requeue", confirm_duplicate_side_effect_risk=True
    )
    assert ("session was reset" in answer) is with_session
    if with_session:
        assert bench.store.peek_session_id(key) != old
        assert bench.runner.evicted == [key]
    await bench.until_state("behind it", "completed")
    assert bench.seen == ["elsewhere", "doubtful", "behind it"]
    with pytest.raises(Refused, match="completed"):
        await bench.adapter.remediate_receipt(number, "discard")
    await bench.stop()


async def test_recovery_repeats_after_a_crash_between_the_two_databases(
    home: Path, server: BppServer
) -> None:
    """Suspended but not yet quarantined: the next start does both again."""
    bench = Bench(home)
    key = bench.make_session()
    left_behind(home, Status.IN_DOUBT, key, "doubtful")
    bench.store.suspend_session(key)
    assert await bench.start()
    await bench.until_state("doubtful", "quarantined")
    assert bench.store._entries[key].suspended
    await bench.stop()


async def test_leaving_drains_what_runs_and_keeps_what_waits(home: Path, server: BppServer) -> None:
    async with running(home) as bench:
        gate = bench.hold("long")
        server.push("long")
        await bench.until_seen("long")
        server.push("waits")
        await bench.until_state("waits", "pending")
        leaving = asyncio.create_task(bench.adapter.cancel_background_tasks())
        await asyncio.sleep(0.1)
        server.push("too late to start", channel_id="c2")
        gate.set()
        await leaving
        await bench.adapter.disconnect()
    with raw_inbox(home) as connection:
        states = {r.source_body: r.status for r in inbox.select(connection)}
    assert states["long"] is Status.COMPLETED
    assert states["waits"] is Status.PENDING
    assert states.get("too late to start", Status.PENDING) is Status.PENDING
    assert "Answer to: long" in server.contents()


async def test_what_does_not_end_within_the_bound_stays_in_doubt(
    home: Path, server: BppServer
) -> None:
    make_home(home, server.url, drain_timeout_seconds=0.1)
    async with running(home) as bench:
        key = bench.make_session()
        bench.hold("endless")
        server.push("endless")
        await bench.until_seen("endless")
        await bench.adapter.cancel_background_tasks()
        await bench.adapter.disconnect()
    with raw_inbox(home) as connection:
        [receipt] = inbox.select(connection)
    assert receipt.status is Status.IN_DOUBT
    async with running(home) as again:
        await again.until_state("endless", "quarantined")
        assert again.store._entries[key].suspended


async def test_what_is_claimed_but_not_begun_at_the_end_stays_pending(
    home: Path, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has to decide about a message that Hermes never saw."""
    make_home(home, server.url, drain_timeout_seconds=0.1)
    async with running(home) as bench:
        handed = asyncio.Event()

        async def on_its_way(event: Any) -> None:
            handed.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(bench.adapter, "hand_over", on_its_way)
        server.push("on its way")
        await handed.wait()
        await bench.until_state("on its way", "claimed")
    with raw_inbox(home) as connection:
        [receipt] = inbox.select(connection)
    assert (receipt.status, receipt.attempt) == (Status.PENDING, 1)
    async with running(home) as again:
        await again.until_state("on its way", "completed")
        assert again.seen == ["on its way"]


async def test_leaving_closes_everything_even_if_hermes_stops_waiting(
    home: Path, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(home)
    assert await bench.start()
    bench.hold("slow")
    server.push("slow")
    await bench.until_seen("slow")
    leaving = asyncio.create_task(bench.adapter.disconnect())
    await asyncio.sleep(0.05)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    bench.gates["slow"].set()
    await until(lambda: not server._open and not list((home / "locks").glob("*.lock")))
    second = Bench(home)
    assert await second.start()  # the locks and the file are free again
    await second.stop()
