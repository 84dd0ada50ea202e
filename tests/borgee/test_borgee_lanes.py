"""Commands, answers and stops beside a running turn."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hermes_borgee.receipts import Outcome
from hermes_borgee.remediation import Refused
from tests.support.borgee import make_home, until
from tests.support.borgee_adapter import Bench, running
from tests.support.bpp_server import BppServer

pytestmark = pytest.mark.usefixtures("own_home")


async def test_commands_pass_a_running_turn_and_stop_ends_it(
    bench: Bench, server: BppServer
) -> None:
    bench.hold("long")
    server.push("long")
    await bench.until_seen("long")
    server.push("waits")
    server.push("/status")
    await bench.until_state("/status", "completed")
    assert "waits" not in bench.seen
    server.push("/stop")
    await bench.until_state("/stop", "completed")
    receipt = await bench.until_state("long", "completed")
    assert receipt.outcome == Outcome.STOPPED
    await bench.until_state("waits", "completed")


async def test_a_command_in_an_idle_session_waits_for_its_place(
    bench: Bench, server: BppServer
) -> None:
    bench.runner._draining = True
    for text in ("one", "/status", "two"):
        server.push(text)
    await bench.until_state("two", "pending")
    bench.runner._draining = False
    await bench.until_state("two", "completed")
    assert bench.seen == ["one", "/status", "two"]


async def test_queue_keeps_its_payload_for_the_time_after(bench: Bench, server: BppServer) -> None:
    gate = bench.hold("long")
    server.push("long")
    await bench.until_seen("long")
    server.push("/queue do this later")
    server.push("/q and this")
    server.push("/queue")
    usage = await bench.until_state("/queue", "completed")
    assert usage.dispatch_class == "control"  # the host answers how to use it
    later = await bench.until_state("/queue do this later", "pending")
    assert (later.effective_body, later.forced_queue) == ("do this later", True)
    gate.set()
    await bench.until_state("/q and this", "completed")
    assert bench.seen == ["long", "/queue", "do this later", "and this"]


async def test_the_answer_to_a_clarify_question_reaches_it(bench: Bench, server: BppServer) -> None:
    from tools import clarify_gateway

    key = bench.make_session()
    gate = bench.hold("long")
    server.push("long")
    await bench.until_seen("long")
    clarify_gateway.register("clarify-1", key, "Which one?", ["red", "blue"])
    try:
        server.push("blue")
        receipt = await bench.until_state("blue", "completed")
        assert receipt.dispatch_class == "control"
    finally:
        clarify_gateway.clear_session(key)
    assert bench.seen == ["long", "blue"]
    gate.set()


async def test_a_plain_yes_reaches_the_approval_that_waits_for_it(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tools import approval

    key = bench.make_session()
    gate = bench.hold("long")
    answered: list[str] = []

    async def host_busy(event: Any, session_key: str) -> bool:
        answered.append(event.text)
        approval._gateway_queues.pop(session_key, None)
        return True

    bench.on_busy = host_busy
    server.push("long")
    await bench.until_seen("long")
    monkeypatch.setitem(approval._gateway_queues, key, [object()])
    server.push("what is that?")  # no answer: waits its turn
    server.push("yes")
    receipt = await bench.until_state("yes", "completed")
    assert receipt.outcome == Outcome.ANSWERED
    assert answered == ["yes"]
    assert bench.seen == ["long"]
    server.push("ok")  # nothing waits any more: an ordinary message
    gate.set()
    await bench.until_state("ok", "completed")
    assert bench.seen == ["long", "what is that?", "ok"]


async def test_an_answer_that_comes_too_late_becomes_an_ordinary_message(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hermes_borgee.host import Classified
    from hermes_borgee.receipts import DispatchClass

    gate = bench.hold("long")
    server.push("long")
    await bench.until_seen("long")
    monkeypatch.setattr(
        bench.adapter.host, "classify", lambda text, *_: Classified(DispatchClass.CONTROL, text)
    )
    server.push("yes")  # at its commit an approval waited; it does not any more
    receipt = await bench.until_state("yes", "pending")
    await until(lambda: bench.adapter._scheduler.active == 1)
    gate.set()
    receipt = await bench.until_state("yes", "completed")
    assert (receipt.dispatch_class, receipt.outcome) == ("ordinary", Outcome.TURN_RAN)


async def test_a_control_that_hangs_frees_its_slot_and_is_quarantined(
    home: Path, server: BppServer
) -> None:
    make_home(home, server.url, control_timeout_seconds=1)
    async with running(home) as bench:
        key = bench.make_session()
        gate = bench.hold("long")
        bench.hold("/status")
        server.push("long")
        await bench.until_seen("long")
        server.push("/status")
        server.push("/help")
        receipt = await bench.until_state("/status", "quarantined")
        assert receipt.outcome == Outcome.CONTROL_TIMEOUT
        assert bench.store._entries[key].suspended
        await bench.until_state("/help", "completed")
        server.push("later")
        await bench.until_state("later", "pending")
        with pytest.raises(Refused, match="a turn of its session runs"):
            await bench.adapter.remediate_receipt(receipt.ingest_seq, "discard")
        gate.set()
        await bench.until_state("long", "completed")
        await asyncio.sleep(0.2)
        assert "later" not in bench.seen
        await bench.adapter.remediate_receipt(receipt.ingest_seq, "discard")
        await bench.until_state("later", "completed")


async def test_the_servers_stop_turn_is_hermes_stop(bench: Bench, server: BppServer) -> None:
    bench.hold("long")
    server.push("long")
    await bench.until_seen("long")
    answer = await asyncio.to_thread(
        server.request, {"action": "stop_turn", "channel_id": "chan-1"}
    )
    assert answer["data"] == {"aborted": True}
    await bench.until_state("long", "completed")
    assert "/stop" in bench.seen
    answer = await asyncio.to_thread(
        server.request, {"action": "stop_turn", "channel_id": "chan-1"}
    )
    assert answer["data"] == {"aborted": False}
