"""Events at the edges of what an inbox can hold, and one broken part that must not end the rest."""

from __future__ import annotations

from typing import Any

import pytest

from hermes_borgee.receipts import Outcome
from tests.support.borgee import until
from tests.support.borgee_adapter import Bench
from tests.support.bpp_server import BppServer

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.mark.parametrize("kind", ["message", "edited"])
async def test_a_time_beyond_every_calendar_is_stored_and_intake_goes_on(
    bench: Bench, server: BppServer, kind: str
) -> None:
    server.push("from the far future", kind=kind, created_at=10**30)
    server.push("next")
    await bench.until_state("next", "completed")
    status = "completed" if kind == "message" else "ignored"
    await bench.until_state("from the far future", status)


async def test_ids_are_kept_whole_so_that_the_answer_finds_its_channel(
    bench: Bench, server: BppServer
) -> None:
    channel = "c" * 2000
    server.push("far away", channel_id=channel, message_id="m" * 2000)
    receipt = await bench.until_state("far away", "completed", "failed")
    assert receipt.outcome == Outcome.TURN_RAN
    assert server.contents(channel) == ["Answer to: far away"]


async def test_an_id_that_is_too_long_for_the_prompt_is_left_out_not_cut(
    bench: Bench, server: BppServer
) -> None:
    place = {"guild_id": "g-1", "top_level_channel_id": "chan-1"}
    server.push("hello", conversation_context={**place, "task_id": "t" * 3000})
    receipt = await bench.until_state("hello", "completed")
    assert receipt.context == place


async def test_a_message_without_a_channel_is_kept_for_the_operator(
    bench: Bench, server: BppServer
) -> None:
    server.push("from nowhere", channel_id="")
    receipt = await bench.until_state("from nowhere", "quarantined", "completed")
    assert receipt.outcome == Outcome.POISON
    server.push("next")
    await bench.until_state("next", "completed")


async def test_the_id_of_an_answer_is_no_echo_in_another_channel(
    bench: Bench, server: BppServer
) -> None:
    server.push("one", channel_id="a")
    await bench.until_state("one", "completed")
    [sent] = server.posts("a")
    server.push("two", channel_id="b", message_id=sent.message_id)
    await bench.until_state("two", "completed")
    assert bench.adapter._intake is not None
    bench.adapter._intake._recent.clear()  # as after a restart: the inbox alone knows
    server.push("three", channel_id="c", message_id=sent.message_id)
    server.push("my own words", channel_id="a", message_id=sent.message_id)
    server.push("last", channel_id="a")
    await bench.until_state("three", "completed")
    await bench.until_state("last", "completed")
    assert "my own words" not in bench.seen


async def test_nobody_speaks_for_another_by_a_name_with_brackets(
    bench: Bench, server: BppServer
) -> None:
    server.push("do it", author_name="Eve] hello [Ada")
    await bench.until_state("do it", "completed")
    assert bench.events[0].source.user_name == "Eve) hello (Ada"


async def test_what_the_inbox_cannot_hold_is_quarantined_and_intake_goes_on(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = bench.adapter._desk
    assert desk is not None
    commit = desk.commit

    async def picky(receipt: Any) -> int | None:
        if receipt.source_body == "odd" and receipt.outcome != Outcome.POISON:
            raise OverflowError("too large")
        return await commit(receipt)

    monkeypatch.setattr(desk, "commit", picky)
    server.push("odd", channel_id="odd")
    server.push("next")
    receipt = await bench.until_state("odd", "quarantined")
    assert "too large" in receipt.error
    await bench.until_state("next", "completed")


async def test_an_intake_that_breaks_is_not_left_deaf(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    intake = bench.adapter._intake
    assert intake is not None
    receive = intake._receive
    broken = ["yes"]

    async def breaks_once(event: Any) -> None:
        if broken:
            broken.clear()
            raise RuntimeError("a fault of ours")
        await receive(event)

    monkeypatch.setattr(intake, "_receive", breaks_once)
    server.push("lost to the fault")
    link = bench.adapter.link
    assert link is not None
    await until(lambda: server.connections == 2 and link.online)
    server.push("heard again")
    await bench.until_state("heard again", "completed")
    assert bench.fatal == []


async def test_a_fault_in_choosing_the_next_message_is_outlived(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = bench.adapter._scheduler
    assert scheduler is not None
    fill, broken = scheduler._fill, ["yes"]

    def breaks_once() -> bool:
        if broken:
            broken.clear()
            raise AttributeError("the host is another one")
        return fill()

    monkeypatch.setattr(scheduler, "_fill", breaks_once)
    monkeypatch.setattr("hermes_borgee.scheduler.STORE_PAUSE", 0.05)
    server.push("hello")
    await bench.until_state("hello", "completed")
    assert not broken
