"""What becomes of a delivery: stored, then checkpointed, once, whatever it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bdh_otel import database
from hermes_borgee import intake
from hermes_borgee.receipts import Outcome
from tests.support.borgee import until
from tests.support.borgee_adapter import Bench
from tests.support.bpp_server import AGENT_ID, BppServer

pytestmark = pytest.mark.usefixtures("own_home")


async def test_a_message_is_answered_in_its_channel(bench: Bench, server: BppServer) -> None:
    context = {"guild_id": "g-7", "top_level_channel_id": "chan-1", "task_id": "t-3"}
    server.push("hello", conversation_context=context)
    receipt = await bench.until_state("hello", "completed")
    assert receipt.outcome == Outcome.TURN_RAN
    assert receipt.session_key == "agent:main:borgee:channel:chan-1"
    assert server.contents("chan-1") == ["Answer to: hello"]
    [event] = bench.events
    assert event.source.user_name == "Ada"
    assert event.source.chat_type == "channel"
    # What the model gets: real ids for its tools.
    assert "guild_id: g-7" in event.channel_prompt
    assert "task_id: t-3" in event.channel_prompt
    assert "thread_id" not in event.channel_prompt


async def test_a_direct_message_and_a_channel_have_sessions_of_their_own(
    bench: Bench, server: BppServer
) -> None:
    server.push("to you", channel_id="d1", channel_type="dm")
    server.push("from Ada", author_id="u1", author_name="Ada")
    server.push("from Bob", author_id="u2", author_name="Bob")
    await bench.until_state("from Bob", "completed")
    await bench.until_state("to you", "completed")
    keys = [receipt.session_key for receipt in await bench.receipts()]
    channel = "agent:main:borgee:channel:chan-1"
    assert keys == ["agent:main:borgee:dm:d1", channel, channel]
    assert [e.source.user_name for e in bench.events if e.source.chat_id == "chan-1"] == [
        "Ada",
        "Bob",
    ]


async def test_the_receipt_is_committed_before_the_delivery_is_checkpointed(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    desk = bench.adapter._desk
    assert desk is not None
    commit = desk.commit

    async def committed(receipt: Any) -> int | None:
        number = await commit(receipt)
        order.append("commit")
        return number

    checkpoint = intake.Intake._checkpoint

    async def checkpointed(self: Any, delivery: Any) -> None:
        order.append("checkpoint")
        await checkpoint(self, delivery)

    monkeypatch.setattr(desk, "commit", committed)
    monkeypatch.setattr(intake.Intake, "_checkpoint", checkpointed)
    server.push("hello")
    await bench.until_state("hello", "completed")
    assert order == ["commit", "checkpoint"]


async def test_a_checkpoint_that_comes_too_late_is_no_error(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = bench.adapter._desk
    assert desk is not None
    commit = desk.commit

    async def slow(receipt: Any) -> int | None:
        number = await commit(receipt)
        if receipt.source_body == "stale":
            await asyncio.to_thread(server.drop, 1012)
            link = bench.adapter.link
            assert link is not None
            await until(lambda: server.connections == 2 and link.online)
        return number

    monkeypatch.setattr(desk, "commit", slow)
    server.push("stale")
    await bench.until_state("stale", "completed")
    server.push("next")
    await bench.until_state("next", "completed")
    assert bench.seen == ["stale", "next"]
    assert bench.fatal == []


async def test_a_message_delivered_twice_runs_once_whatever_its_author_is_called(
    bench: Bench, server: BppServer
) -> None:
    frame = server.message("once")
    server.send(frame)
    server.send({**frame, "author_name": "Ada Lovelace"})
    server.push("last")
    await bench.until_state("last", "completed")
    assert bench.seen == ["once", "last"]


async def test_the_agents_own_messages_come_back_unanswered(
    bench: Bench, server: BppServer
) -> None:
    server.echo = True
    server.push("hello")
    await bench.until_state("hello", "completed")
    own = next(iter(server.posted))
    server.push("renamed echo", message_id=own, author_id="someone")  # told by its id alone
    server.push("mine", author_id=AGENT_ID)
    server.push("last")
    await bench.until_state("last", "completed")
    assert [text for text, _, _ in await bench.states()] == ["hello", "last"]


async def test_edits_deletions_and_reactions_are_kept_but_start_nothing(
    bench: Bench, server: BppServer
) -> None:
    server.push("changed", kind="edited", message_id="m1")
    server.push("", kind="deleted", message_id="m1")
    server.push(
        "", kind="reaction", message_id="m1", emoji="👍", reactor_id="u", reaction_added=True
    )
    server.push("   ", message_id="m2")
    server.push("last", kind="mention")
    await bench.until_state("last", "completed")
    states = [(r.kind, r.status.value) for r in await bench.receipts()]
    assert states[:4] == [
        ("edited", "ignored"),
        ("deleted", "ignored"),
        ("reaction", "ignored"),
        ("message", "ignored"),
    ]
    assert bench.seen == ["last"]


@pytest.mark.parametrize("fault", ["classification", "no id"])
async def test_a_poison_event_is_quarantined_and_intake_goes_on(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    if fault == "classification":
        real = bench.adapter.host.classify

        def classify(text: str, *rest: Any) -> Any:
            if text == "poison":
                raise KeyError("a fault in the host")
            return real(text, *rest)

        monkeypatch.setattr(bench.adapter.host, "classify", classify)
        server.push("poison", channel_id="c2")
    else:
        server.push("poison", channel_id="c2", message_id="")
    server.push("behind it", channel_id="c2")
    server.push("elsewhere")
    await bench.until_state("elsewhere", "completed")
    receipt = await bench.until_state("poison", "quarantined")
    assert receipt.outcome == Outcome.POISON
    assert receipt.error
    assert (await bench.until_state("behind it", "pending")).attempt == 0
    await bench.adapter.remediate_receipt(receipt.ingest_seq, "discard")
    await bench.until_state("behind it", "completed")


async def test_while_the_inbox_cannot_be_written_the_message_is_held_back(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "COMMIT_PAUSES", (0.05,))
    desk = bench.adapter._desk
    assert desk is not None
    commit, failures = desk.commit, 3

    async def failing(receipt: Any) -> int | None:
        nonlocal failures
        if failures:
            failures -= 1
            raise database.StoreUnavailable(desk.path, "disk full", "free some disk space")
        return await commit(receipt)

    monkeypatch.setattr(desk, "commit", failing)
    server.push("first")
    server.push("second")
    await bench.until_state("second", "completed")
    assert bench.seen == ["first", "second"]
