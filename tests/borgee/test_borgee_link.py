"""The connection: what each failure means, and that the right ones are tried again."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from hermes_borgee.failures import LinkFailure, LinkKind
from hermes_borgee.link import LinkState
from tests.support.borgee import make_home, until
from tests.support.borgee_link import Watched, watched
from tests.support.bpp_server import AGENT_ID, BppServer


async def test_it_knows_who_it_is_and_delivers_in_order(online: Watched, server: BppServer) -> None:
    assert online.link.online
    assert online.link.agent_id == AGENT_ID
    for n in range(20):
        server.push(f"message {n}")
    await until(lambda: len(online.bodies) == 20)
    assert online.bodies == [f"message {n}" for n in range(20)]


@pytest.mark.parametrize(
    ("status", "kind", "final"),
    [
        (401, LinkKind.AUTH, True),
        (403, LinkKind.FORBIDDEN, True),
        (429, LinkKind.RATE_LIMITED, False),
        (500, LinkKind.SERVER_ERROR, False),
        (502, LinkKind.SERVER_ERROR, False),
        (503, LinkKind.SERVER_ERROR, False),
        (404, LinkKind.HTTP_ERROR, False),
        (302, LinkKind.HTTP_ERROR, False),
    ],
)
async def test_a_refused_first_connect_is_told_by_its_status(
    home: Path, server: BppServer, status: int, kind: LinkKind, final: bool
) -> None:
    server.status = status
    server.headers = {"Retry-After": "7", "Location": "http://127.0.0.1:1/"}
    found = watched(home)
    with pytest.raises(LinkFailure) as caught:
        await found.link.start()
    assert (caught.value.kind, caught.value.final) == (kind, final)
    if status == 429:
        assert caught.value.retry_after == 7
    await found.link.close()


async def test_a_server_that_is_down_is_a_network_failure(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        found = watched(make_home(tmp_path / "h", f"http://127.0.0.1:{port}"))
        with pytest.raises(LinkFailure) as caught:
            await found.link.start()
    assert (caught.value.kind, caught.value.final) == (LinkKind.NETWORK, False)
    await found.link.close()


async def test_a_wrong_key_is_final(home: Path, server: BppServer) -> None:
    (home / ".env").write_text("BORGEE_API_KEY=bgr_wrong\n")
    found = watched(home)
    with pytest.raises(LinkFailure, match="BORGEE_API_KEY") as caught:
        await found.link.start()
    assert caught.value.final
    assert "bgr_wrong" not in str(caught.value)
    await found.link.close()


async def test_a_persons_key_is_refused(home: Path, server: BppServer) -> None:
    server.answers["get_me"] = lambda _: {
        "id": "u1",
        "display_name": "Ada",
        "role": "member",
        "permissions": [],
    }
    found = watched(home)
    with pytest.raises(LinkFailure, match="person's key"):
        await found.link.start()
    await found.link.close()


@pytest.mark.parametrize("code", [None, 1001, 1011, 1012])
async def test_an_ordinary_disconnect_reconnects(
    online: Watched, server: BppServer, code: int | None
) -> None:
    server.drop(code)
    await until(lambda: LinkState.RECONNECTING in online.states and online.link.online)
    await until(lambda: server._open)
    server.push("after")
    await until(lambda: online.bodies == ["after"])
    assert online.final == []


@pytest.mark.parametrize("code", [1002, 1003, 1007, 1008, 1009])
async def test_after_a_terminal_close_a_new_client_listens(
    online: Watched, server: BppServer, code: int
) -> None:
    first = online.link._client
    server.drop(code)
    await until(lambda: online.link.online and online.link._client is not first)
    assert LinkState.WAITING in online.states
    server.push("after")
    await until(lambda: online.bodies == ["after"])


async def test_an_auth_close_is_final_and_it_says_that_it_is_not_connected(
    online: Watched, server: BppServer
) -> None:
    server.drop(4004)
    await until(lambda: online.final)
    assert online.final[0].kind is LinkKind.AUTH
    assert online.link.state is LinkState.FAILED
    assert not online.link.online


@pytest.mark.parametrize(
    "frame",
    [
        "{not json",
        '{"no": "type"}',
        '{"type":"inbound_message","kind":"telepathy"}',
        '{"type":"inbound_message","kind":"message","channel_id":7}',
    ],
)
async def test_a_malformed_frame_costs_one_client_not_the_adapter(
    online: Watched, server: BppServer, frame: str
) -> None:
    server.push("before")
    await until(lambda: online.bodies == ["before"])
    server.send(frame)
    await until(lambda: LinkState.WAITING in online.states and online.link.online)
    server.push("after")
    await until(lambda: online.bodies == ["before", "after"])


async def test_a_proxy_error_at_a_reconnect_is_outlived(online: Watched, server: BppServer) -> None:
    server.status = 503
    server.drop(1012)
    await until(lambda: online.states.count(LinkState.WAITING) >= 1)
    assert online.link.failure is not None
    assert online.link.failure.kind is LinkKind.SERVER_ERROR
    assert not online.link.online
    server.status = None
    await until(lambda: online.link.online)
    server.push("after")
    await until(lambda: online.bodies == ["after"])


async def test_a_silent_peer_is_noticed(online: Watched, server: BppServer) -> None:
    first = online.link._client
    server.silent = True
    await until(lambda: not online.link.online)
    assert online.link.failure is not None
    server.silent = False
    await until(lambda: online.link.online and online.link._client is not first)


async def test_the_probe_outlives_what_no_probe_expects(
    online: Watched, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = online.link._client
    asked: list[str] = []

    async def gone() -> None:
        asked.append("get_me")
        raise RuntimeError("no close frame")  # as the WebSocket library's own errors

    assert client is not None
    monkeypatch.setattr(client, "get_me", gone)
    await until(lambda: len(asked) > 3)
    assert online.link._client is client  # neither the end of the probe nor a silent peer
    monkeypatch.undo()
    server.silent = True
    await until(lambda: not online.link.online)
    server.silent = False
    await until(lambda: online.link.online and online.link._client is not client)


async def test_a_disabled_agent_takes_nothing_in_until_it_is_enabled(
    online: Watched, server: BppServer
) -> None:
    server.disabled = True
    await until(lambda: online.link.state is LinkState.DISABLED and not server._open)
    assert not online.link.online
    server.disabled = False
    await until(lambda: online.link.online)
    assert online.final == []


async def test_a_configuration_from_the_server_is_rejected_with_a_legal_reason(
    online: Watched, server: BppServer
) -> None:
    server.send(
        {
            "type": "agent_config_update",
            "cursor": 3,
            "agent_id": AGENT_ID,
            "schema_version": 1,
            "blob": "{}",
            "idempotency_key": "k1",
            "created_at": 0,
        }
    )
    ack = await asyncio.to_thread(
        server.wait,
        lambda: next((f for f in server.frames if f["type"] == "agent_config_ack"), None),
    )
    assert (ack["status"], ack["reason"], ack["cursor"]) == ("rejected", "unknown", 3)


async def test_stop_turn_is_answered_by_the_adapter(online: Watched, server: BppServer) -> None:
    for channel, aborted in (("running", True), ("idle", False)):
        response = await asyncio.to_thread(
            server.request, {"action": "stop_turn", "channel_id": channel}
        )
        assert response["data"] == {"aborted": aborted}
