"""A receipt is completed on evidence; failures of handler and inbox are told or outlived."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bdh_otel import database
from hermes_borgee.receipts import Outcome
from tests.support.borgee import until
from tests.support.borgee_adapter import Bench
from tests.support.bpp_server import BppServer, Denied

pytestmark = pytest.mark.usefixtures("own_home")


async def test_a_handler_that_raises_fails_its_receipt_at_once(
    bench: Bench, server: BppServer
) -> None:
    bench.errors["boom"] = RuntimeError("the handler broke")
    server.push("boom")
    receipt = await bench.until_state("boom", "failed")
    assert receipt.outcome == Outcome.HANDLER_ERROR
    assert "the handler broke" in receipt.error
    server.push("after")
    await bench.until_state("after", "completed")


async def test_a_control_that_raises_fails_at_once_and_suspends_nothing(
    bench: Bench, server: BppServer
) -> None:
    key = bench.make_session()
    gate = bench.hold("long")
    server.push("long")
    await bench.until_seen("long")
    bench.errors["/status"] = RuntimeError("swallowed by the host")
    server.push("/status")
    receipt = await bench.until_state("/status", "failed")
    assert receipt.outcome == Outcome.HANDLER_ERROR
    assert not bench.store._entries[key].suspended
    gate.set()
    await bench.until_state("long", "completed")


@pytest.mark.parametrize("kind", [ValueError, TimeoutError])
async def test_a_message_that_cannot_be_handed_over_fails_and_holds_nobody_up(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    event_of = bench.adapter.event_of

    def broken(receipt: Any) -> Any:
        if receipt.source_body == "unfit":
            raise kind("no event can be made of this")
        return event_of(receipt)

    monkeypatch.setattr(bench.adapter, "event_of", broken)
    server.push("unfit")
    server.push("from the far future", created_at=10**18)
    await bench.until_state("from the far future", "completed")
    assert (await bench.until_state("unfit", "failed")).outcome == Outcome.HANDLER_ERROR


@pytest.mark.parametrize("operation", ["claim", "begin", "finish"])
async def test_an_inbox_that_cannot_be_written_for_a_while_costs_time_only(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    from hermes_borgee import dispatch, scheduler

    monkeypatch.setattr(dispatch, "STORE_PAUSE", 0.05)
    monkeypatch.setattr(scheduler, "STORE_PAUSE", 0.05)
    desk, work = bench.adapter._desk, bench.adapter._scheduler._work
    owner, name = (work, "_claim") if operation == "claim" else (desk, operation)
    real, failures = getattr(owner, name), 2

    async def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise database.StoreUnavailable(desk.path, "disk full", "free some disk space")
        return await real(*args, **kwargs)

    monkeypatch.setattr(owner, name, failing)
    server.push("patient")
    server.push("next")
    await bench.until_state("next", "completed")
    assert bench.seen == ["patient", "next"]
    assert server.contents() == ["Answer to: patient", "Answer to: next"]


async def test_a_message_that_hermes_offers_twice_runs_once(
    bench: Bench, server: BppServer
) -> None:
    gate = bench.hold("once")
    server.push("once")
    await bench.until_seen("once")
    assert await bench.adapter._on_message(bench.events[0]) is None
    gate.set()
    await bench.until_state("once", "completed")
    assert bench.seen == ["once"]
    assert await bench.adapter._on_message(bench.events[0]) is None  # and after its end


async def test_completed_needs_evidence_that_a_turn_ran(bench: Bench, server: BppServer) -> None:
    bench.calls_model = False
    bench.answer = lambda _: None  # as when a plugin drops the message
    server.push("dropped")
    receipt = await bench.until_state("dropped", "failed")
    assert receipt.outcome == Outcome.NO_TURN


async def test_a_reply_that_cannot_be_sent_is_told(bench: Bench, server: BppServer) -> None:
    server.answers["send_message"] = lambda _: Denied("message.send")
    server.push("hello")
    receipt = await bench.until_state("hello", "failed")
    assert receipt.outcome == Outcome.UNDELIVERED
    assert len(server.asked("send_message")) == 1  # no second try in another form


async def test_a_reply_waits_for_the_connection_to_come_back(
    bench: Bench, server: BppServer
) -> None:
    gate = bench.hold("patience")
    server.push("patience")
    await bench.until_seen("patience")
    server.status = 503
    server.drop(1002)
    await until(lambda: not bench.adapter.is_connected)
    gate.set()
    await asyncio.sleep(0.2)
    assert server.contents() == []
    server.status = None
    await bench.until_state("patience", "completed")
    assert server.contents() == ["Answer to: patience"]
