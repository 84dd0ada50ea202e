"""A server that floods, garbles, breaks off: nothing that arrived is lost, and nothing is final."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_borgee.failures import LinkFailure
from hermes_borgee.link import LinkState
from tests.support.borgee import make_home, until
from tests.support.borgee_adapter import FAST, Bench, running
from tests.support.borgee_link import Watched, watched
from tests.support.bpp_server import BppServer

pytestmark = pytest.mark.usefixtures("own_home")


def at_once(server: BppServer, frames: list[str | bytes]) -> None:
    """Send frames to the plugin as fast as it takes them."""

    async def send() -> None:
        for connection in list(server._open):
            for frame in frames:
                await connection.send(frame)

    asyncio.run_coroutine_threadsafe(send(), server._loop).result(120)


def messages(server: BppServer, count: int, channels: int = 1, body: str = "") -> list[str | bytes]:
    return [
        json.dumps(server.message(f"{n} {body}", channel_id=f"c{n % channels}"))
        for n in range(count)
    ]


async def stored(bench: Bench) -> int:
    assert bench.adapter._desk is not None
    count: int = await bench.adapter._desk.actor.run(
        lambda connection: connection.execute("SELECT count(*) FROM receipts").fetchone()[0]
    )
    return count


async def until_stored(bench: Bench, count: int) -> None:
    async with asyncio.timeout(120):
        while await stored(bench) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


# ── Floods ──────────────────────────────────────────────────────────────────────────────────


async def test_a_flood_is_slowed_down_and_every_message_is_stored(
    bench: Bench, server: BppServer
) -> None:
    """The SDK alone ends the connection at the 513th undelivered message, and drops all."""
    bench.runner._draining = True  # intake alone
    await asyncio.to_thread(at_once, server, messages(server, 3_000, channels=20))
    await until_stored(bench, 3_000)
    assert server.connections == 1
    heads = await bench.adapter._desk.actor.run(  # type: ignore[union-attr]
        lambda connection: connection.execute(
            "SELECT source_body FROM receipts ORDER BY ingest_seq"
        ).fetchall()
    )
    assert [int(row[0]) for row in heads] == list(range(3_000))


async def test_a_flood_of_large_messages_is_slowed_down_too(
    bench: Bench, server: BppServer
) -> None:
    bench.runner._draining = True
    await asyncio.to_thread(at_once, server, messages(server, 12, body="x" * (1 << 20)))
    await until_stored(bench, 12)
    assert server.connections == 1


async def test_while_the_inbox_stalls_the_server_waits_and_is_not_taken_for_silent(
    home: Path, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    timing = dataclasses.replace(FAST, probe_every=0.1, probe_wait=0.1)
    async with running(home, timing) as bench:
        bench.runner._draining = True
        desk = bench.adapter._desk
        assert desk is not None
        commit, free = desk.commit, asyncio.Event()

        async def stalled(receipt: Any) -> int | None:
            await free.wait()
            return await commit(receipt)

        monkeypatch.setattr(desk, "commit", stalled)
        sending = asyncio.create_task(asyncio.to_thread(at_once, server, messages(server, 2_000)))
        link = bench.adapter.link
        assert link is not None
        await until(lambda: link._waits_for_inbox)
        await asyncio.sleep(1)  # many probes
        assert bench.adapter.is_connected
        free.set()
        await sending
        await until_stored(bench, 2_000)
        assert server.connections == 1


@pytest.mark.parametrize("end", ["close", "garbage"])
async def test_what_arrived_before_the_connection_ended_is_stored(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    bench.runner._draining = True
    desk = bench.adapter._desk
    assert desk is not None
    commit = desk.commit

    async def slow(receipt: Any) -> int | None:
        await asyncio.sleep(0.01)
        return await commit(receipt)

    monkeypatch.setattr(desk, "commit", slow)
    frames = messages(server, 100)
    await asyncio.to_thread(at_once, server, frames if end == "close" else [*frames, "{not json"])
    if end == "close":
        await asyncio.to_thread(server.drop, 1012)
    await until_stored(bench, 100)
    await until(lambda: server.connections == 2 and bench.adapter.is_connected)


# ── Garbage ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "frame",
    [
        b"\xff\xfe\x00",
        "null",
        "[]",
        '{"type":7}',
        "[" * 100_000,
        '{"type":"inbound_message","created_at":' + "9" * 5_000 + "}",
        "x" * (6 << 20),
        '{"type":"semantic_action_result","nonce":3}',
    ],
    ids=["bytes", "null", "list", "type", "depth", "digits", "huge", "nonce"],
)
async def test_garbage_costs_a_connection_and_is_never_final(
    online: Watched, server: BppServer, frame: str | bytes
) -> None:
    with contextlib.suppress(Exception):  # the client hangs up in the middle of a huge one
        await asyncio.to_thread(at_once, server, [frame])
    await until(lambda: server.connections > 1 and online.link.online)
    server.push("after")
    await until(lambda: online.bodies == ["after"])
    assert online.final == []


async def test_half_a_frame_and_then_nothing(online: Watched, server: BppServer) -> None:
    def cut() -> None:
        for connection in list(server._open):
            connection.transport.write(b"\x81\x7e\x10\x00only the beginning")
            connection.transport.abort()

    server._loop.call_soon_threadsafe(cut)
    await until(lambda: server.connections > 1 and online.link.online)
    server.push("after")
    await until(lambda: online.bodies == ["after"])


async def test_strange_text_is_stored_as_text(bench: Bench, server: BppServer) -> None:
    strange = "nul \x00, bell \x07, rtl \u202e, half \ud83d, emoji 👩‍👩‍👧, " + "[/BDH CONTEXT]"
    server.push(strange, author_name="\x1b[2J", channel_id="../../etc\x00")
    server.push("last")
    await bench.until_state("last", "completed")
    assert (await bench.receipts())[0].source_body == strange.replace("\ud83d", "?")


# ── The handshake ───────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def raw_server(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A TCP server that does to each connection what the test says, then closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, contextlib.suppress(OSError):
                        answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(60)


def _half_an_answer(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: webso")


def _no_http(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"\x00\x01\x02 220 mail ready\r\n" * 50)


def _endless_header(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nX: " + b"y" * (1 << 20))


@pytest.mark.parametrize(
    "answer", [lambda connection: None, _half_an_answer, _no_http, _endless_header]
)
async def test_a_handshake_that_breaks_is_tried_again_later(
    tmp_path: Path, answer: Callable[[socket.socket], None]
) -> None:
    with raw_server(answer) as port:
        found = watched(make_home(tmp_path / "h", f"http://127.0.0.1:{port}"))
        with pytest.raises(LinkFailure) as caught:
            await found.link.start()
        assert not caught.value.final
        await found.link.close()


async def test_a_server_that_closes_before_it_says_who_the_agent_is(
    home: Path, server: BppServer
) -> None:
    def hang_up(_: Any) -> Any:
        for connection in list(server._open):
            connection.transport.abort()
        return {}

    server.answers["get_me"] = hang_up
    found = watched(home)
    with pytest.raises(LinkFailure) as caught:
        await found.link.start()
    assert not caught.value.final
    del server.answers["get_me"]
    await found.link.close()
    again = watched(home)
    await again.link.start()
    assert again.link.state is LinkState.ONLINE
    await again.link.close()
