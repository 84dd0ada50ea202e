"""A real Borgee server as far as its plugin protocol goes: WebSocket on loopback.

It answers what a plugin asks, pushes events, and can misbehave in every way that counts: refuse
the upgrade with any status, fall silent, close with any code, send malformed frames, deny a
permission, lose an answer. It runs in a thread of its own, so that tests and gateways of any kind
can use it; every method may be called from any thread.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

AGENT_ID = "agent-1"
KEY = "bgr_test_key"


@dataclass(frozen=True, slots=True)
class Posted:
    """A message that the agent sent, as the channel holds it."""

    message_id: str
    channel_id: str
    content: str
    reply_to_id: str | None


@dataclass(frozen=True, slots=True)
class Action:
    """A semantic action as it arrived."""

    name: str
    payload: dict[str, Any]
    frame_bytes: int


#: Decides about an action: a result, an error code, ``deny(...)``, or ``LOST``.
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


class BppServer:
    """Serves on a free port (or ``port``) of the loopback interface until closed."""

    def __init__(self, port: int = 0) -> None:
        self.status: int | None = None
        """Answer upgrades with this HTTP status instead of accepting them."""
        self.headers: dict[str, str] = {}
        self.silent = False
        """Read everything, answer nothing."""
        self.disabled = False
        self.answers: dict[str, Answer] = {}
        self.actions: list[Action] = []
        self.frames: list[dict[str, Any]] = []
        self.posted: dict[str, Posted] = {}
        self.edits: list[tuple[str, str]] = []
        self.connections = 0
        self.upgrades = 0
        self.echo = False
        """Broadcast the agent's own messages back to it, before the answer."""
        self._ids = itertools.count(1)
        self._changed = threading.Condition()
        self._open: set[ServerConnection] = set()
        self._loop = asyncio.new_event_loop()
        self._server: Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._call(self._serve(port))

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = next(iter(self._server.sockets)).getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # ── What tests do ───────────────────────────────────────────────────────────────────────

    def push(self, body: str, **fields: Any) -> str:
        """Deliver a message to every connected plugin. Returns its id."""
        frame = self.message(body, **fields)
        self.send(frame)
        return str(frame["message_id"])

    def message(self, body: str, **fields: Any) -> dict[str, Any]:
        """An ``inbound_message`` frame; ``fields`` replace what it would hold."""
        return {
            "type": "inbound_message",
            "agent_id": AGENT_ID,
            "channel_id": "chan-1",
            "channel_type": "channel",
            "kind": "message",
            "message_id": f"in-{next(self._ids)}",
            "author_id": "user-1",
            "author_name": "Ada",
            "body": body,
            "content_type": "text/plain",
            "msg_type": "text",
            "created_at": int(time.time() * 1000),
            "emoji": "",
            "reactor_id": "",
            "reaction_added": False,
            **fields,
        }

    def send(self, frame: dict[str, Any] | str) -> None:
        """Send a frame (or raw text) to every connected plugin."""
        text = frame if isinstance(frame, str) else json.dumps(frame)

        async def broadcast() -> None:
            for connection in list(self._open):
                await connection.send(text)

        self._call(broadcast())

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
        return self.wait(
            lambda: next(
                (f for f in self.frames if f["type"] == "response" and f["id"] == request_id), None
            )
        )

    def wait(self, wanted: Callable[[], Any], seconds: float = 30) -> Any:
        """Wait until ``wanted()`` is truthy, and return it."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not (found := wanted()):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"not seen within {seconds} s; posted: {self.contents()}")
                self._changed.wait(min(left, 0.2))
            return found

    def contents(self, channel_id: str | None = None) -> list[str]:
        """The agent's messages as they stand now, in the order of their sending."""
        return [
            post.content
            for post in list(self.posted.values())
            if channel_id is None or post.channel_id == channel_id
        ]

    def wait_for_post(self, text: str, seconds: float = 30) -> Posted:
        """The agent's message that holds ``text``."""
        found: Posted = self.wait(
            lambda: next((p for p in list(self.posted.values()) if text in p.content), None),
            seconds,
        )
        return found

    def wait_online(self, seconds: float = 60) -> None:
        """Until a plugin has identified itself."""
        self.wait(lambda: self._open and self.asked("get_me"), seconds)

    def asked(self, name: str) -> list[Action]:
        return [action for action in list(self.actions) if action.name == name]

    def close(self) -> None:
        async def stop() -> None:
            assert self._server is not None
            self._server.close(close_connections=True)
            await self._server.wait_closed()

        self._call(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def __enter__(self) -> BppServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # ── What plugins see ────────────────────────────────────────────────────────────────────

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _serve(self, port: int) -> None:
        self._server = await serve(
            self._connection,
            "127.0.0.1",
            port,
            process_request=self._upgrade,
            ping_interval=None,
            max_size=8 << 20,
            close_timeout=1,
        )

    def _upgrade(self, connection: ServerConnection, request: Request) -> Response | None:
        self.upgrades += 1
        status = self.status
        if status is None and request.headers.get("Authorization") != f"Bearer {KEY}":
            status = 401
        if status is None and request.path != "/ws/plugin":
            status = 404
        if status is None:
            return None
        return Response(status, "refused", Headers(self.headers), b"refused")

    async def _connection(self, connection: ServerConnection) -> None:
        self._open.add(connection)
        self.connections += 1
        try:
            async for raw in connection:
                frame = json.loads(raw)
                with self._changed:
                    self.frames.append(frame)
                    self._changed.notify_all()
                if self.silent:
                    continue
                if frame["type"] == "ping":
                    await connection.send('{"type":"pong"}')
                elif frame["type"] == "semantic_action":
                    size = len(raw) if isinstance(raw, bytes) else len(raw.encode())
                    await self._act(connection, frame, size)
        except ConnectionClosed:
            pass
        finally:
            self._open.discard(connection)
            with self._changed:
                self._changed.notify_all()

    async def _act(self, connection: ServerConnection, frame: dict[str, Any], size: int) -> None:
        action = Action(frame["action"], json.loads(frame["payload"]), size)
        with self._changed:
            self.actions.append(action)
            self._changed.notify_all()
        custom = self.answers.get(action.name)
        result = custom(action) if custom else self._result(action)
        nonce = frame["nonce"]
        if result is LOST:
            self._result(action)
            return
        if isinstance(result, Denied):
            reply: dict[str, Any] = {
                "type": "permission_denied",
                "agent_id": AGENT_ID,
                "request_id": nonce,
                "attempted_action": action.name,
                "required_capability": result.capability,
                "current_scope": result.scope,
                "denied_at": 0,
            }
        elif isinstance(result, Failed):
            reply = {
                "type": "semantic_action_result",
                "nonce": nonce,
                "status": "error",
                "payload": "",
                "error": result.code,
            }
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
            reply = {
                "type": "semantic_action_result",
                "nonce": nonce,
                "status": "ok",
                "payload": "" if result is None else json.dumps(result),
                "error": "",
            }
        await connection.send(json.dumps(reply))

    def _result(self, action: Action) -> Any:
        payload = action.payload
        with self._changed:
            self._changed.notify_all()
            match action.name:
                case "get_me":
                    return {
                        "id": AGENT_ID,
                        "display_name": "Hermes",
                        "role": "agent",
                        "permissions": ["message.send"],
                        "disabled": self.disabled,
                    }
                case "send_message":
                    post = Posted(
                        f"out-{next(self._ids)}",
                        payload["channel_id"],
                        payload["content"],
                        payload.get("reply_to_id"),
                    )
                    self.posted[post.message_id] = post
                    return {"message_id": post.message_id}
                case "edit_message":
                    post = self.posted[payload["message_id"]]
                    self.edits.append((post.message_id, payload["content"]))
                    self.posted[post.message_id] = Posted(
                        post.message_id, post.channel_id, payload["content"], post.reply_to_id
                    )
                    return None
                case "delete_message":
                    self.posted.pop(payload["message_id"], None)
                    return None
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
                case "read_channel_history":
                    return []
                case _:
                    return None
