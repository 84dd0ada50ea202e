"""Connected or not, and why: what Hermes, operators and tools are told."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import sqlite3
from pathlib import Path

import pytest

from hermes_borgee import live
from hermes_borgee.operator import Operator
from hermes_borgee.receipts import Status
from tests.support.borgee import make_home, until
from tests.support.borgee_adapter import FAST, Bench, left_behind, running
from tests.support.bpp_server import BppServer

pytestmark = pytest.mark.usefixtures("own_home")


async def test_no_connection_no_success(home: Path, server: BppServer) -> None:
    server.status = 503
    bench = Bench(home)
    assert not await bench.start()
    assert bench.adapter.fatal_error_code == "borgee_server_error"
    assert bench.adapter.fatal_error_retryable
    await bench.adapter.disconnect()
    server.status = None
    again = Bench(home)
    assert await again.start()
    await again.stop()


async def test_a_wrong_key_is_final_and_hermes_is_told(home: Path, server: BppServer) -> None:
    async with running(home) as bench:
        server.drop(4004)
        await until(lambda: bench.fatal)
        assert bench.fatal == ["borgee_auth"]
        assert not bench.adapter.fatal_error_retryable
        assert not bench.adapter.is_connected


async def test_a_wrong_configuration_is_final_and_names_its_keys(
    home: Path, server: BppServer
) -> None:
    make_home(home, "http://10.1.2.3:80", max_concurrent_dispatches=0)
    bench = Bench(home)
    assert not await bench.start()
    assert not bench.adapter.fatal_error_retryable
    message = bench.adapter.fatal_error_message
    assert "borgee.base_url" in message
    assert "borgee.max_concurrent_dispatches" in message
    await bench.adapter.disconnect()
    assert server.upgrades == 0


async def test_a_second_gateway_is_told_who_has_the_agent(home: Path, server: BppServer) -> None:
    async with running(home):
        second = Bench(home)
        assert not await second.start()
        assert second.adapter.fatal_error_code == "borgee_lock"
        assert second.adapter.fatal_error_retryable
        assert server.connections == 1
        await second.adapter.disconnect()


async def test_a_disabled_agent_takes_nothing_in_and_its_running_turn_goes_on(
    home: Path, server: BppServer
) -> None:
    async with running(home, dataclasses.replace(FAST, probe_every=0.1)) as bench:
        gate = bench.hold("long")
        server.push("long")
        await bench.until_seen("long")
        server.disabled = True
        await until(lambda: not bench.adapter.is_connected and not server._open)
        health = Operator(home).health()
        assert health is not None
        assert health.state == "disabled"
        server.push("nobody takes this in")
        server.disabled = False
        await until(lambda: bench.adapter.is_connected)
        gate.set()
        await bench.until_state("long", "completed")
        assert [text for text, _, _ in await bench.states()] == ["long"]
        assert bench.fatal == []


async def test_a_time_without_connection_is_told_as_a_gap(
    bench: Bench, server: BppServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.status = 503
    server.drop(1012)
    await until(lambda: not bench.adapter.is_connected)
    server.push("nobody hears this")
    server.status = None
    with caplog.at_level(logging.WARNING):
        await until(lambda: bench.adapter.is_connected)
        await until(lambda: "were not delivered" in caplog.text)
    [gap] = Operator(bench.home).gaps()
    assert gap.ended_at is not None
    await asyncio.sleep(0.1)
    assert bench.seen == []  # it did not pass Borgee's mention policy for this agent
    assert server.asked("read_channel_history") == []


async def test_typing_is_not_made_up(bench: Bench, server: BppServer) -> None:
    gate = bench.hold("long")
    server.push("long")
    await bench.until_seen("long")
    await bench.adapter.send_typing("chan-1")
    gate.set()
    await bench.until_state("long", "completed")
    assert [frame for frame in server.frames if frame["type"] == "typing"] == []


async def test_tools_follow_the_live_adapter(
    home: Path, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hermes_borgee import tools

    monkeypatch.setenv("BORGEE_API_KEY", "bgr_test_key")
    assert not tools.available()
    async with running(home, dataclasses.replace(FAST, disabled_retry=30.0)) as bench:
        assert tools.available()
        assert live.current() is not None
        server.status = 503
        server.drop(1002)
        await until(lambda: not bench.adapter.is_connected)
        assert not tools.available()
        server.status = None
        await until(lambda: bench.adapter.is_connected)
        assert tools.available()
    assert not tools.available()
    assert live.current() is None


def test_the_inbox_lies_where_it_is_documented(home: Path) -> None:
    left_behind(home, Status.PENDING, "s", "x")
    path = home / "plugins" / "borgee" / "inbox.sqlite3"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM receipts").fetchone()[0] == 1
