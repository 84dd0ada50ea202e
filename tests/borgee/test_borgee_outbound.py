"""Messages to Borgee: their size on the wire, and what became of them."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hermes_borgee import config, outbound
from hermes_borgee.failures import SendKind
from hermes_borgee.link import Link, LinkState, Timing
from hermes_borgee.outbound import MAX_CONTENT_BYTES, Outbound, split, wire_size
from tests.support.borgee import until
from tests.support.bpp_server import LOST, BppServer, Denied, Failed

FAST = Timing(action=1.0, sdk_retry_first=0.05, sdk_retry_most=0.1, retry_first=0.05)


@dataclasses.dataclass
class Sender:
    out: Outbound
    link: Link
    sent: list[tuple[str, str]]


@pytest.fixture
async def sender(home: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sender]:
    monkeypatch.setattr(outbound, "RETRY_PAUSES", (0.05, 0.05))
    remembered: list[tuple[str, str]] = []

    async def nothing(*_: object) -> None:
        pass

    async def no_turn(_: str) -> dict[str, bool]:
        return {"aborted": False}

    async def remember(message_id: str, channel_id: str) -> None:
        remembered.append((message_id, channel_id))

    link = Link(
        config.load(home),
        on_delivery=nothing,
        on_state=nothing,
        on_final=nothing,
        on_stop_turn=no_turn,
        timing=FAST,
    )
    await link.start()
    yield Sender(Outbound(link, remember), link, remembered)
    await link.close()


LONG = "\n\n".join(
    f'## Part {n}\n\nHe said "so be it" \\ and left.\nÜber {"日本語 🙂 " * 40}' for n in range(120)
)
CODE = (
    "Look:\n\n```python\n" + "\n".join(f'print("line {n}")' for n in range(4000)) + "\n```\nDone."
)


@pytest.mark.parametrize(
    "text", [LONG, CODE, "x" * 100_000, '"' * 50_000, "\n" * 50_000 + "end", "🙂" * 30_000]
)
def test_every_part_fits_on_the_wire_and_nothing_is_lost(text: str) -> None:
    parts = split(text)
    assert len(parts) > 1
    assert all(wire_size(part) <= MAX_CONTENT_BYTES for part in parts)
    if "```" not in text:
        assert "".join("".join(parts).split()) == "".join(text.split())


def test_what_fits_is_left_alone() -> None:
    assert split("hello\n\n  world  ") == ["hello\n\n  world  "]
    assert split("") == [""]


def test_cuts_fall_between_paragraphs_and_code_blocks_are_closed() -> None:
    for part in split(LONG)[:-1]:
        assert part.endswith("🙂")
    parts = split(CODE)
    assert all(part.count("```") % 2 == 0 for part in parts)
    assert all(part.startswith("```python\n") for part in parts[1:])
    lines = [line for part in parts for line in part.splitlines() if line.startswith("print")]
    assert lines == [f'print("line {n}")' for n in range(4000)]


async def test_a_long_reply_arrives_in_order_and_whole(sender: Sender, server: BppServer) -> None:
    sent = await sender.out.send("c1", LONG, reply_to="in-1")
    assert sent.failure is None
    assert len(sent.message_ids) == sent.parts > 1
    assert "".join("".join(server.contents("c1")).split()) == "".join(LONG.split())
    assert max(action.frame_bytes for action in server.asked("send_message")) <= 32 * 1024
    replies = [post.reply_to_id for post in server.posted.values()]
    assert replies == ["in-1", *[None] * (sent.parts - 1)]
    assert [message_id for message_id, _ in sender.sent] == list(sent.message_ids)


async def test_a_refusal_says_which_permission_lacks(sender: Sender, server: BppServer) -> None:
    server.answers["send_message"] = lambda _: Denied("message.send", "channel:c1")
    sent = await sender.out.send("c1", "hello")
    assert sent.failure is not None
    assert sent.failure.kind is SendKind.REFUSED
    assert sent.failure.permission == "message.send"
    assert "channel:c1" in sent.failure.message
    assert len(server.asked("send_message")) == 1


async def test_a_server_code_is_a_refusal(sender: Sender, server: BppServer) -> None:
    server.answers["send_message"] = lambda _: Failed("channel_archived")
    sent = await sender.out.send("c1", "hello")
    assert sent.failure is not None
    assert (sent.failure.kind, sent.failure.code) == (SendKind.REFUSED, "channel_archived")


async def test_a_lost_answer_is_uncertain_and_not_tried_again(
    sender: Sender, server: BppServer
) -> None:
    server.answers["send_message"] = lambda _: LOST
    sent = await sender.out.send("c1", "hello")
    assert sent.failure is not None
    assert sent.failure.kind is SendKind.UNCERTAIN
    assert server.contents() == ["hello"]


async def test_a_connection_lost_under_way_is_uncertain(sender: Sender, server: BppServer) -> None:
    def drop(_: object) -> object:
        for connection in list(server._open):
            connection.transport.abort()
        return LOST

    server.answers["send_message"] = drop
    sent = await sender.out.send("c1", "hello")
    assert sent.failure is not None
    assert sent.failure.kind is SendKind.UNCERTAIN
    assert len(server.asked("send_message")) == 1


async def test_without_a_connection_it_was_never_sent(sender: Sender) -> None:
    await sender.link.close()
    sent = await sender.out.send("c1", "hello")
    assert sent.failure is not None
    assert sent.failure.kind is SendKind.NEVER_SENT


async def test_during_a_reconnect_a_message_waits_and_arrives_once(
    sender: Sender, server: BppServer
) -> None:
    server.drop(1012)
    await until(lambda: sender.link.state is LinkState.RECONNECTING)
    sent = await sender.out.send("c1", "hello")
    assert sent.failure is None
    assert server.contents() == ["hello"]


async def test_parts_before_a_failure_are_told(sender: Sender, server: BppServer) -> None:
    asked = server.asked

    def second_fails(action: object) -> object:
        if len(asked("send_message")) == 2:
            return Denied("message.send")
        return server._result(action)  # type: ignore[arg-type]

    server.answers["send_message"] = second_fails
    sent = await sender.out.send("c1", LONG)
    assert sent.failure is not None
    assert sent.failure.kind is SendKind.REFUSED
    assert len(sent.message_ids) == 1
    assert sent.parts > 2


async def test_an_edit_shows_what_fits_and_the_last_one_sends_the_rest(
    sender: Sender, server: BppServer
) -> None:
    first = (await sender.out.send("c1", "…")).message_ids[0]
    preview = await sender.out.edit("c1", first, LONG, final=False)
    assert preview.failure is None
    assert len(server.posted) == 1
    final = await sender.out.edit("c1", first, LONG, final=True)
    assert final.failure is None
    assert final.message_ids[0] == first
    assert "".join("".join(server.contents()).split()) == "".join(LONG.split())


async def test_delete_and_its_refusal(sender: Sender, server: BppServer) -> None:
    first = (await sender.out.send("c1", "bye")).message_ids[0]
    assert await sender.out.delete(first) is None
    assert server.posted == {}
    server.answers["delete_message"] = lambda _: Denied("message.delete")
    failure = await sender.out.delete(first)
    assert failure is not None
    assert failure.kind is SendKind.REFUSED
