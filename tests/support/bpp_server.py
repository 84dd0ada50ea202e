"""A Borgee server that can misbehave in every way that counts, over real WebSockets on loopback.

The demo's stand-in, and what it has not: it refuses the upgrade with any status, falls silent,
closes with any code, denies a permission, loses an answer, echoes, asks the plugin.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response

from bdh_bridge.demo.borgee.server import (
    AGENT_ID,
    Action,
    Posted,
    StandInServer,
    refusal,
    succeeded,
)

__all__ = ["AGENT_ID", "KEY", "LOST", "Action", "BppServer", "Denied", "Failed", "Posted"]

KEY = "bgr_test_key"

#: Decides about an action: a result, ``Failed(…)``, ``Denied(…)``, or ``LOST``.
Answer = Callable[[Action], Any]


class LOST:
    """The server acts but its answer never arrives."""


@dataclass(frozen=True, slots=True)
class Denied:
    capability: str
    scope: str = "channel"


@dataclass(frozen=True, slots=True)
class Failed:
    code: str


class BppServer(StandInServer):
    """Serves on a free port (or ``port``) of the loopback interface until closed."""

    def __init__(self, port: int = 0) -> None:
        self.status: int | None = None
        """Answer upgrades with this HTTP status instead of accepting them."""
        self.headers: dict[str, str] = {}
        self.silent = False
        """Read everything, answer nothing."""
        self.answers: dict[str, Answer] = {}
        self.upgrades = 0
        self.echo = False
        """Broadcast the agent's own messages back to it, before the answer."""
        super().__init__(KEY, port)

    def drop(self, code: int | None = None) -> None:
        """Close every connection with ``code``; None tears the transport down without a close."""

        async def close() -> None:
            for connection in list(self._open):
                if code is None:
                    connection.transport.abort()
                else:
                    await connection.close(code)

        self._call(close())

    def request(self, data: dict[str, Any]) -> dict[str, Any]:
        """A server request to the plugin; waits for its response."""
        request_id = f"req-{next(self._ids)}"
        self.send({"type": "request", "id": request_id, "data": data})
        response: dict[str, Any] = self.wait(
            lambda: next(
                (f for f in self.frames if f["type"] == "response" and f["id"] == request_id), None
            )
        )
        return response

    def wait_online(self, seconds: float = 60) -> None:
        """Until a plugin has identified itself."""
        self.wait(self.is_online, seconds)

    # ── What plugins see ────────────────────────────────────────────────────────────────────

    def _upgrade(self, connection: ServerConnection, request: Request) -> Response | None:
        self.upgrades += 1
        if self.status is not None:
            return refusal(self.status, self.headers)
        return super()._upgrade(connection, request)

    async def _take(
        self, connection: ServerConnection, frame: dict[str, Any], raw: str | bytes
    ) -> None:
        if not self.silent:
            await super()._take(connection, frame, raw)

    async def _act(self, connection: ServerConnection, action: Action, nonce: str) -> None:
        custom = self.answers.get(action.name)
        result = custom(action) if custom else self._result(action)
        if result is LOST:
            self._result(action)
            return
        if isinstance(result, Denied):
            reply = {
                "type": "permission_denied",
                "agent_id": AGENT_ID,
                "request_id": nonce,
                "attempted_action": action.name,
                "required_capability": result.capability,
                "current_scope": result.scope,
                "denied_at": 0,
            }
        elif isinstance(result, Failed):
            reply = {**succeeded(nonce, None), "status": "error", "error": result.code}
        else:
            if self.echo and action.name == "send_message":
                own = self.message(
                    action.payload["content"],
                    channel_id=action.payload["channel_id"],
                    author_id=AGENT_ID,
                    author_name="Hermes",
                    message_id=result["message_id"],
                )
                await connection.send(json.dumps(own))
            reply = succeeded(nonce, result)
        await connection.send(json.dumps(reply))

    def _result(self, action: Action) -> Any:
        payload = action.payload
        match action.name:
            case "create_channel":
                return {"id": f"chan-{next(self._ids)}", **payload}
            case "update_channel":
                return {"id": payload["channel_id"], "parent_id": None, **payload}
            case "list_zones":
                zones = [{"id": f"zone-{n:02}", "name": f"Zone {n}"} for n in range(3)]
                after, limit = payload.get("after") or "", payload.get("limit", 20)
                page = [zone for zone in zones if zone["id"] > after][:limit]
                more = bool(page) and len(page) == limit and page[-1] != zones[-1]
                return {"zones": page, "next_after": page[-1]["id"] if more else None}
            case "list_channels":
                return [{"id": "chan-1", "name": "general", "parent_id": None}]
            case _:
                return super()._result(action)
