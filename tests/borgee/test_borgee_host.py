"""Messages and the host's own state: its start, its own turns, its queues."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.borgee import until
from tests.support.borgee_adapter import Bench
from tests.support.bpp_server import BppServer

pytestmark = pytest.mark.usefixtures("own_home")


async def test_while_hermes_starts_nothing_is_handed_over(home: Path, server: BppServer) -> None:
    bench = Bench(home)
    bench.runner._startup_restore_in_progress = True
    assert await bench.adapter.connect()
    server.push("early")
    receipt = await bench.until_state("early", "pending")
    await asyncio.sleep(0.3)
    assert bench.seen == []
    bench.runner.adapters[bench.adapter.platform] = bench.adapter
    await asyncio.sleep(0.2)
    assert (await bench.until_state("early", "pending")).attempt == receipt.attempt == 0
    bench.runner._startup_restore_in_progress = False
    await bench.until_state("early", "completed")
    await bench.stop()


async def test_a_gate_that_closes_between_claim_and_start_gives_the_message_back(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = bench.adapter._desk
    assert desk is not None
    begin = desk.begin

    async def closing(receipt: Any) -> bool:
        began = await begin(receipt)
        bench.runner._draining = True
        return began

    monkeypatch.setattr(desk, "begin", closing)
    server.push("late")
    await until(lambda: bench.runner._draining)
    receipt = await bench.until_state("late", "pending")
    assert bench.seen == []
    assert receipt.attempt == 1
    monkeypatch.setattr(desk, "begin", begin)
    bench.runner._draining = False
    await bench.until_state("late", "completed")
    assert bench.seen == ["late"]


async def test_a_turn_that_hermes_made_up_itself_is_waited_for(
    bench: Bench, server: BppServer
) -> None:
    from gateway.platforms.base import MessageEvent

    gate = bench.hold("synthetic")
    source = bench.adapter.build_source(chat_id="chan-1", chat_type="channel", user_id="x")
    await bench.adapter.handle_message(MessageEvent(text="synthetic", source=source, internal=True))
    await bench.until_seen("synthetic")
    server.push("real")
    await bench.until_state("real", "pending")
    await asyncio.sleep(0.3)
    assert bench.seen == ["synthetic"]
    assert bench.adapter._pending_messages == {}
    gate.set()
    await bench.until_state("real", "completed")
    assert bench.seen == ["synthetic", "real"]


async def test_a_message_that_finds_the_session_taken_stays_out_of_hermes_queue(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is taken in the moment between the look at it and the handing over."""
    from gateway.platforms.base import MessageEvent

    gate = bench.hold("synthetic")
    hand_over = bench.adapter.hand_over
    source = bench.adapter.build_source(chat_id="chan-1", chat_type="channel", user_id="x")

    async def overtaken(event: Any) -> None:
        if not bench.seen:
            await hand_over(MessageEvent(text="synthetic", source=source, internal=True))
            await bench.until_seen("synthetic")
        await hand_over(event)

    monkeypatch.setattr(bench.adapter, "hand_over", overtaken)
    server.push("real")
    await bench.until_seen("synthetic")
    receipt = await bench.until_state("real", "pending")
    assert receipt.attempt == 1
    assert bench.adapter._pending_messages == {}
    gate.set()
    await bench.until_state("real", "completed")
    assert bench.seen == ["synthetic", "real"]


async def test_a_turn_of_the_runner_under_another_adapter_is_waited_for(
    bench: Bench, server: BppServer
) -> None:
    key = "agent:main:borgee:channel:chan-1"
    bench.runner._running_agents[key] = object()
    server.push("waits")
    await bench.until_state("waits", "pending")
    await asyncio.sleep(0.3)
    assert bench.seen == []
    bench.runner._running_agents.clear()
    await bench.until_state("waits", "completed")
