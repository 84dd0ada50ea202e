"""Tools: called from an agent's thread, carried out on the gateway's loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hermes_borgee import tools
from tests.support.borgee import make_home
from tests.support.borgee_adapter import Bench, running
from tests.support.bpp_server import LOST, BppServer, Denied

BY_NAME = {tool.name: tool for tool in tools.TOOLS}


@pytest.fixture(autouse=True)
def own_key(own_home: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BORGEE_API_KEY", "bgr_test_key")


async def call(tool: str, /, **args: Any) -> dict[str, Any]:
    """As Hermes does it: synchronously, in a thread that is not the loop's."""
    return await asyncio.to_thread(tools.call, BY_NAME[tool], args)


def test_every_tool_has_a_schema_of_its_own_and_no_zone_can_be_changed() -> None:
    assert len(BY_NAME) == len(tools.TOOLS)
    for tool in tools.TOOLS:
        parameters = tool.schema["parameters"]
        assert parameters["additionalProperties"] is False
        assert set(parameters["required"]) <= set(parameters["properties"])
        assert tool.description
    assert [name for name in BY_NAME if "zone" in name] == ["borgee_list_zones"]
    assert [tool.name for tool in tools.TOOLS if tool.destroys] == ["borgee_channel_delete"]


async def test_a_channel_is_created_where_the_model_says(bench: Bench, server: BppServer) -> None:
    made = await call("borgee_channel_create", guild_id="g1", name="lobby", parent_id=None)
    assert made["result"]["parent_id"] is None
    [action] = server.asked("create_channel")
    assert action.payload == {"name": "lobby", "guild_id": "g1", "parent_id": None}
    made = await call("borgee_channel_create", guild_id="g1", name="builds", parent_id="zone-01")
    assert made["result"]["parent_id"] == "zone-01"


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("borgee_channel_create", {"guild_id": "g", "name": "n"}, "parent_id is required"),
        ("borgee_channel_create", {"guild_id": "g", "name": "n", "parent_id": 7}, "parent_id"),
        ("borgee_channel_create", {"guild_id": "g", "name": "n", "parent_id": "null"}, "parent_id"),
        ("borgee_channel_create", {"guild_id": None, "name": "n", "parent_id": None}, "guild_id"),
        ("borgee_channel_create", {"guild_id": " ", "name": "n", "parent_id": None}, "guild_id"),
        ("borgee_channel_update", {"channel_id": "c", "parent_id": None}, "permanent"),
        ("borgee_channel_update", {"channel_id": "c", "channel_type": "text"}, "permanent"),
        ("borgee_channel_update", {"channel_id": "c"}, "at least one"),
        ("borgee_channel_update", {"channel_id": "c", "archived": "yes"}, "archived"),
        ("borgee_list_zones", {"guild_id": "g", "limit": 0}, "limit"),
        ("borgee_list_zones", {"guild_id": "g", "limit": 51}, "limit"),
        ("borgee_list_zones", {"guild_id": "g", "limit": True}, "limit"),
        ("borgee_list_zones", {"guild_id": "g", "limit": "20"}, "limit"),
        ("borgee_task_list", {}, "exactly one"),
        ("borgee_task_list", {"guild_id": "g", "channel_id": "c"}, "exactly one"),
        ("borgee_task_update", {"task_id": "t"}, "at least one"),
        ("borgee_read_history", {"channel_id": "c", "limit": 500}, "limit"),
        ("borgee_list_channels", {"surprise": 1}, "no such argument"),
    ],
)
async def test_wrong_arguments_are_explained_and_nothing_is_sent(
    bench: Bench, server: BppServer, name: str, args: dict[str, Any], says: str
) -> None:
    before = len(server.actions)
    answer = await call(name, **args)
    assert says in answer["error"]
    assert len(server.actions) == before


async def test_zones_come_in_ascending_pages(bench: Bench, server: BppServer) -> None:
    first = (await call("borgee_list_zones", guild_id="g", limit=2))["result"]
    assert [zone["id"] for zone in first["zones"]] == ["zone-00", "zone-01"]
    rest = (await call("borgee_list_zones", guild_id="g", limit=2, after=first["next_after"]))[
        "result"
    ]
    assert [zone["id"] for zone in rest["zones"]] == ["zone-02"]
    assert rest["next_after"] is None
    await call("borgee_list_zones", guild_id="g")
    assert server.asked("list_zones")[-1].payload["limit"] == 20


async def test_a_malformed_page_is_an_error(bench: Bench, server: BppServer) -> None:
    server.answers["list_zones"] = lambda _: {
        "zones": [{"id": "b", "name": "B"}, {"id": "a", "name": "A"}],
        "next_after": None,
    }
    assert "ascending" in (await call("borgee_list_zones", guild_id="g"))["error"]


async def test_a_refusal_names_the_permission(bench: Bench, server: BppServer) -> None:
    server.answers["create_channel"] = lambda _: Denied("channel.create", "guild:g1")
    answer = await call("borgee_channel_create", guild_id="g1", name="x", parent_id=None)
    assert "channel.create" in answer["error"]


async def test_deleting_needs_the_operators_word(
    bench: Bench, server: BppServer, home: Path
) -> None:
    assert not tools._destructive_available()
    assert "not allowed" in (await call("borgee_channel_delete", channel_id="c"))["error"]
    assert server.asked("delete_channel") == []


async def test_deleting_with_the_operators_word(home: Path, server: BppServer) -> None:
    make_home(home, server.url, allow_destructive_tools=True)
    async with running(home):
        assert tools._destructive_available()
        assert (await call("borgee_channel_delete", channel_id="c"))["result"] is True
        assert len(server.asked("delete_channel")) == 1


async def test_a_call_that_takes_too_long_is_cancelled_on_the_loop(
    bench: Bench, server: BppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "CALL_TIMEOUT", 0.2)
    server.answers["list_channels"] = lambda _: LOST
    answer = await call("borgee_list_channels")
    assert "no answer within" in answer["error"]
    await asyncio.sleep(0.05)
    client = bench.adapter.link.client  # type: ignore[union-attr]
    assert client._transport._pending_actions == {}  # type: ignore[attr-defined]


async def test_on_the_loop_itself_it_refuses_instead_of_hanging(bench: Bench) -> None:
    assert "event loop" in tools.call(BY_NAME["borgee_list_channels"], {})["error"]


async def test_after_leaving_it_says_that_borgee_is_not_connected(home: Path) -> None:
    async with running(home):
        pass
    assert await call("borgee_list_channels") == {"error": "Borgee is not connected"}


@pytest.mark.parametrize("args", [[], ["x"], [[]], "x", 5, True])
def test_arguments_that_are_no_object_are_told_so(args: Any) -> None:
    with pytest.raises(tools.BadArguments, match="must be an object"):
        tools.check_arguments(tools.TOOLS[0], args)
