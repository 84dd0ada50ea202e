"""A stand-in for a Borgee server: what a plugin sees of one, on loopback, and nothing else of it.

It speaks the plugin protocol (BPP) over WebSocket: takes a plugin's connection, delivers messages
to it, and keeps what the agent sends and edits. There are no people, no permissions and no storage
behind it. It runs in a thread of its own; every method may be called from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

AGENT_ID = "agent-1"


@dataclass(frozen=True, slots=True)
class Posted:
    """A message that the agent sent, as the channel holds it."""

    message_id: str
    channel_id: str
    reply_to_id: str | None
    versions: tuple[str, ...]
    """Its text as it was sent, and after every edit."""

    @property
    def content(self) -> str:
        return self.versions[-1]


@dataclass(frozen=True, slots=True)
class Action:
    """A semantic action as it arrived."""

    name: str
    payload: dict[str, Any]
    frame_bytes: int


class StandInServer:
    """Serves the agent with this ``key`` on a free port (or ``port``) until closed."""

    def __init__(self, key: str, port: int = 0) -> None:
        self.key = key
        self.actions: list[Action] = []
        self.frames: list[dict[str, Any]] = []
        self.posted: dict[str, Posted] = {}
        self.edits: list[tuple[str, str]] = []
        """Id and new content of every edit, oldest first."""
        self.connections = 0
        self.disabled = False
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

    # ── What people do ──────────────────────────────────────────────────────────────────────

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
                with contextlib.suppress(ConnectionClosed):  # a plugin that has just died
                    await connection.send(text)

        self._call(broadcast())

    # ── What they see ───────────────────────────────────────────────────────────────────────

    def posts(self, channel_id: str) -> list[Posted]:
        """The agent's messages in a channel, in the order of their sending."""
        return [post for post in list(self.posted.values()) if post.channel_id == channel_id]

    def contents(self, channel_id: str | None = None) -> list[str]:
        """The agent's messages as they stand now, in the order of their sending."""
        return [
            post.content
            for post in list(self.posted.values())
            if channel_id is None or post.channel_id == channel_id
        ]

    def wait(self, wanted: Callable[[], Any], seconds: float = 30) -> Any:
        """Wait until ``wanted()`` is truthy, and return it. Raises: TimeoutError."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not (found := wanted()):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"not seen within {seconds} s; posted: {self.contents()}")
                self._changed.wait(min(left, 0.2))
            return found

    def wait_for_post(self, text: str, seconds: float = 30) -> Posted:
        """The agent's message that holds ``text``. Raises: TimeoutError."""
        found: Posted = self.wait(
            lambda: next((p for p in list(self.posted.values()) if text in p.content), None),
            seconds,
        )
        return found

    def is_online(self) -> bool:
        """Whether a plugin is connected and has identified itself."""
        return bool(self._open and self.asked("get_me"))

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

    def __enter__(self) -> Self:
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
        """Refuse what is no plugin with the agent's key; None lets it in."""
        if request.headers.get("Authorization") != f"Bearer {self.key}":
            return refusal(401)
        return None if request.path == "/ws/plugin" else refusal(404)

    async def _connection(self, connection: ServerConnection) -> None:
        self._open.add(connection)
        self.connections += 1
        try:
            async for raw in connection:
                frame = json.loads(raw)
                with self._changed:
                    self.frames.append(frame)
                    self._changed.notify_all()
                await self._take(connection, frame, raw)
        except ConnectionClosed:
            pass
        finally:
            self._open.discard(connection)
            with self._changed:
                self._changed.notify_all()

    async def _take(
        self, connection: ServerConnection, frame: dict[str, Any], raw: str | bytes
    ) -> None:
        if frame["type"] == "ping":
            await connection.send('{"type":"pong"}')
        elif frame["type"] == "semantic_action":
            size = len(raw) if isinstance(raw, bytes) else len(raw.encode())
            action = Action(frame["action"], json.loads(frame["payload"]), size)
            with self._changed:
                self.actions.append(action)
                self._changed.notify_all()
            await self._act(connection, action, frame["nonce"])

    async def _act(self, connection: ServerConnection, action: Action, nonce: str) -> None:
        """Do what is asked and answer."""
        await connection.send(json.dumps(succeeded(nonce, self._result(action))))

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
                        payload.get("reply_to_id"),
                        (payload["content"],),
                    )
                    self.posted[post.message_id] = post
                    return {"message_id": post.message_id}
                case "edit_message":
                    post = self.posted[payload["message_id"]]
                    post = replace(post, versions=(*post.versions, payload["content"]))
                    self.edits.append((post.message_id, post.content))
                    self.posted[post.message_id] = post
                    return None
                case "delete_message":
                    self.posted.pop(payload["message_id"], None)
                    return None
                case "read_channel_history":
                    return []
                case _:
                    return None


def succeeded(nonce: str, result: Any) -> dict[str, Any]:
    """The answer to an action that was carried out."""
    return {
        "type": "semantic_action_result",
        "nonce": nonce,
        "status": "ok",
        "payload": "" if result is None else json.dumps(result),
        "error": "",
    }


def refusal(status: int, headers: dict[str, str] | None = None) -> Response:
    """An answer to an upgrade that is not accepted."""
    return Response(status, "refused", Headers(headers or {}), b"refused")
