"""A process that is not the gateway: one message, and what Hermes asks before it enables Borgee."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_borgee import plugin
from hermes_borgee.standalone import send_once
from tests.support.borgee_adapter import running
from tests.support.bpp_server import BppServer, Denied

pytestmark = pytest.mark.usefixtures("own_home")


async def test_a_scheduled_job_sends_by_itself_and_leaves_nothing_behind(
    home: Path, server: BppServer
) -> None:
    answer = await plugin._send_standalone(None, "c1", "the nightly report")
    assert answer["success"] is True
    assert server.posted[answer["message_id"]].content == "the nightly report"
    server.wait(lambda: not server._open)
    assert not list((home / "locks").glob("*.lock"))


async def test_while_a_gateway_has_the_agent_it_does_not_push_in(
    home: Path, server: BppServer
) -> None:
    async with running(home):
        answer = await send_once(home, "c1", "hello")
        assert "in use" in answer["error"]
        assert server.connections == 1


async def test_failures_are_told_and_free_the_locks(home: Path, server: BppServer) -> None:
    server.answers["send_message"] = lambda _: Denied("message.send")
    assert "message.send" in (await send_once(home, "c1", "hello"))["error"]
    server.status = 503
    assert "503" in (await send_once(home, "c1", "hello"))["error"]
    (home / ".env").write_text("")
    assert "BORGEE_API_KEY" in (await send_once(home, "c1", "hello"))["error"]
    assert not list((home / "locks").glob("*.lock"))


def test_hermes_enables_it_only_where_it_is_set_up(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plugin._configured(None)
    monkeypatch.delenv("BORGEE_API_KEY", raising=False)
    (home / ".env").write_text("")
    assert not plugin._configured(None)
