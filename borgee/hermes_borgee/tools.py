"""What the model can do in Borgee: toolset ``borgee``.

Hermes calls a tool synchronously in the agent's thread; the call is handed to the gateway's event
loop, where the connection lives, and cancelled there when it takes too long.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import json
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from hermes_borgee import live
from hermes_borgee.constants import KEY_VARIABLE

if TYPE_CHECKING:
    from borgee_plugin_sdk import BorgeePluginClient

TOOLSET = "borgee"
#: Seconds for one call, everything included.
CALL_TIMEOUT = 35.0
_MAX_TEXT = 100_000

Action = Callable[["BorgeePluginClient", dict[str, Any]], Awaitable[Any]]


class BadArguments(ValueError):
    """The model's arguments don't fit. ``str()`` tells it what to change."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    properties: dict[str, dict[str, Any]]
    required: tuple[str, ...]
    action: Action
    destroys: bool = False
    """Offered only with ``borgee.allow_destructive_tools: true``."""

    @property
    def schema(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "parameters": {
                "type": "object",
                "properties": self.properties,
                "required": list(self.required),
                "additionalProperties": False,
            },
        }


def register_tools(ctx: Any) -> None:
    """Register every tool; what is available is asked anew for each turn."""
    for tool in TOOLS:
        ctx.register_tool(
            name=tool.name,
            toolset=TOOLSET,
            schema=tool.schema,
            handler=_handler(tool),
            check_fn=_destructive_available if tool.destroys else available,
            requires_env=[KEY_VARIABLE],
            emoji="💬",
        )


def available() -> bool:
    """Whether an adapter of this process is connected and the key is set."""
    return bool(os.environ.get(KEY_VARIABLE)) and live.current() is not None


def _destructive_available() -> bool:
    found = live.current()
    return available() and found is not None and found[0].allows_destruction


def _handler(tool: Tool) -> Callable[..., str]:
    def handle(args: dict[str, Any] | None = None, **_: Any) -> str:
        return json.dumps(call(tool, {} if args is None else args), ensure_ascii=False)

    return handle


def call(tool: Tool, args: dict[str, Any]) -> dict[str, Any]:
    """Run one tool. Returns its result or ``{"error": …}``; never raises."""
    found = live.current()
    if found is None:
        return {"error": "Borgee is not connected"}
    adapter, loop = found
    from hermes_borgee.failures import send_failure

    if tool.destroys and not adapter.allows_destruction:
        return {"error": "not allowed: borgee.allow_destructive_tools is off"}
    try:
        if asyncio.get_running_loop() is loop:
            return {"error": "this tool can't be called on the gateway's event loop"}
    except RuntimeError:
        pass
    try:
        check_arguments(tool, args)
        link = adapter.link
        assert link is not None
        # The coroutine is made on the loop, so that a closed loop leaves none behind.
        future = asyncio.run_coroutine_threadsafe(_run(tool, link.client, args), loop)
    except BadArguments as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": send_failure(error).message}
    try:
        return {"result": future.result(CALL_TIMEOUT)}
    except concurrent.futures.TimeoutError:
        future.cancel()
        return {"error": f"no answer within {CALL_TIMEOUT:g} s; the outcome is unknown"}
    except (TypeError, ValueError) as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": send_failure(error).message}


async def _run(tool: Tool, client: BorgeePluginClient, args: dict[str, Any]) -> Any:
    result = await tool.action(client, args)
    return True if result is None else _plain(result)


def check_arguments(tool: Tool, args: dict[str, Any]) -> None:
    """Hold ``args`` against the tool's schema. Raises: BadArguments."""
    if not isinstance(args, dict):  # a model writes whatever it likes
        raise BadArguments("the arguments must be an object")
    for name in args:
        if name not in tool.properties:
            if tool.name == "borgee_channel_update" and name in ("parent_id", "channel_type"):
                raise BadArguments(f"{name} can't be changed: a channel's placement is permanent")
            raise BadArguments(f"{name}: no such argument")
    for name in tool.required:
        if name not in args:
            hint = "; null is the Default group" if name == "parent_id" else ""
            raise BadArguments(f"{name} is required{hint}")
    for name, value in args.items():
        _check_value(name, value, tool.properties[name])


def _check_value(name: str, value: Any, rule: dict[str, Any]) -> None:
    types = rule["type"] if isinstance(rule["type"], list) else [rule["type"]]
    if value is None:
        if "null" not in types:
            raise BadArguments(f"{name} must not be null")
        return
    if isinstance(value, bool):
        fits = "boolean" in types
    elif isinstance(value, int):
        fits = "integer" in types
        low, high = rule.get("minimum", value), rule.get("maximum", value)
        if fits and not low <= value <= high:
            raise BadArguments(f"{name} must be from {low} to {high}")
    elif isinstance(value, str):
        fits = "string" in types
        if fits and rule.get("minLength") and not value.strip():
            raise BadArguments(f"{name} must not be empty")
        if fits and len(value) > rule.get("maxLength", _MAX_TEXT):
            raise BadArguments(f"{name} is too long")
        if fits and value not in rule.get("enum", [value]):
            raise BadArguments(f"{name} must be one of: {', '.join(rule['enum'])}")
    else:
        fits = False
    if not fits:
        raise BadArguments(f"{name} must be of type {' or '.join(types)}")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "items"):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


# ── The tools ───────────────────────────────────────────────────────────────────────────────


def _text(meaning: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "description": meaning, **more}


_GUILD = _text("Server id, guild_id of the Borgee conversation")
_CHANNEL = _text("Channel id")
_TASK = _text("Task id")
_VISIBILITY = _text("Who sees the channel", enum=["public", "private"])
_TASK_FIELDS = {
    "title": _text("Title", maxLength=500),
    "description": {"type": "string", "description": "Details, in Markdown"},
    "assignee_id": _text("User or agent who does it"),
}


def _picked(args: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: args[name] for name in names if name in args}


TOOLS = (
    Tool(
        "borgee_channel_create",
        "Create a text channel in a Borgee server. Where it is placed can't be changed later.",
        {
            "guild_id": _GUILD,
            "name": _text("Name of the channel", maxLength=100),
            "parent_id": {
                "type": ["string", "null"],
                "description": "Zone id from borgee_list_zones; null for the Default group",
            },
            "topic": {"type": "string", "description": "Topic"},
            "visibility": _VISIBILITY,
        },
        ("guild_id", "name", "parent_id"),
        lambda client, args: client.create_channel(
            args["name"],
            guild_id=args["guild_id"],
            parent_id=args["parent_id"],
            **_picked(args, "topic", "visibility"),
        ),
    ),
    Tool(
        "borgee_channel_update",
        "Rename a channel, change who sees it, or archive it. Its placement can't be changed.",
        {
            "channel_id": _CHANNEL,
            "name": _text("New name", maxLength=100),
            "visibility": _VISIBILITY,
            "archived": {"type": "boolean", "description": "Archive or bring back"},
        },
        ("channel_id",),
        lambda client, args: _update_channel(client, args),
    ),
    Tool(
        "borgee_list_zones",
        "List the named Zones of a Borgee server, ordered by id. next_after is null on the last "
        "page; else pass it as after for the next one.",
        {
            "guild_id": _GUILD,
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": 50,
                "description": "Zones on the page; 20 unless given",
            },
            "after": _text("next_after of the page before"),
        },
        ("guild_id",),
        lambda client, args: client.list_zones(
            args["guild_id"], limit=args.get("limit", 20), after=args.get("after")
        ),
    ),
    Tool(
        "borgee_list_channels",
        "List the channels that the agent can see.",
        {},
        (),
        lambda client, args: client.list_channels(),
    ),
    Tool(
        "borgee_channel_set_topic",
        "Set a channel's topic.",
        {"channel_id": _CHANNEL, "topic": {"type": "string", "description": "Topic; may be empty"}},
        ("channel_id", "topic"),
        lambda client, args: client.set_topic(args["channel_id"], args["topic"]),
    ),
    Tool(
        "borgee_channel_delete",
        "Delete a channel with all its messages, for good.",
        {"channel_id": _CHANNEL},
        ("channel_id",),
        lambda client, args: client.delete_channel(args["channel_id"]),
        destroys=True,
    ),
    Tool(
        "borgee_read_history",
        "Read messages of a channel that the agent is a member of.",
        {
            "channel_id": _CHANNEL,
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": 100,
                "description": "Messages; 20 unless given",
            },
            "before": _text("Only messages before this message id"),
            "after": _text("Only messages after this message id"),
        },
        ("channel_id",),
        lambda client, args: client.read_history(
            args["channel_id"],
            limit=args.get("limit", 20),
            before=args.get("before"),
            after=args.get("after"),
        ),
    ),
    Tool(
        "borgee_task_create",
        "Create a task in a channel.",
        {"channel_id": _CHANNEL, **_TASK_FIELDS},
        ("channel_id", "title"),
        lambda client, args: client.create_task(
            args["channel_id"], args["title"], **_picked(args, "description", "assignee_id")
        ),
    ),
    Tool(
        "borgee_task_list",
        "List the tasks of a channel or of a server; give exactly one of the two ids.",
        {"channel_id": _CHANNEL, "guild_id": _GUILD},
        (),
        lambda client, args: client.list_tasks(**_picked(args, "channel_id", "guild_id")),
    ),
    Tool(
        "borgee_task_get",
        "Read one task.",
        {"task_id": _TASK},
        ("task_id",),
        lambda client, args: client.get_task(args["task_id"]),
    ),
    Tool(
        "borgee_task_update",
        "Change a task; give at least one field.",
        {"task_id": _TASK, "status": _text("New status"), **_TASK_FIELDS},
        ("task_id",),
        lambda client, args: client.update_task(
            args["task_id"], **_picked(args, "status", "assignee_id", "title", "description")
        ),
    ),
)


async def _update_channel(client: BorgeePluginClient, args: dict[str, Any]) -> Any:
    changes = _picked(args, "name", "visibility", "archived")
    if not changes:
        raise BadArguments("give at least one of name, visibility, archived")
    return await client.update_channel(args["channel_id"], **changes)
