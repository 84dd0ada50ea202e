"""A real Hermes gateway with the Borgee platform: its home, its process, and its model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from hermes_borgee.config import inbox_path
from tests.support.bpp_server import KEY, BppServer
from tests.support.model_server import Handler, ModelServer

PLUGINS = ("borgee", "bdh-hermes-bridge")


def make_home(home: Path, url: str, *, model_url: str = "", **borgee: Any) -> Path:
    """A Hermes home that is set up for Borgee."""
    home.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {
        "group_sessions_per_user": False,
        "display": {"busy_input_mode": "queue"},
        "streaming": {"enabled": True},
        "plugins": {"enabled": list(PLUGINS)},
        "security": {"allow_lazy_installs": False, "tirith_enabled": False},
        "agent": {"api_max_retries": 1},
        "kanban": {"dispatch_in_gateway": False},  # its threads are none of these tests' business
        "borgee": {
            "enabled": True,
            "base_url": url,
            "allow_insecure_loopback": True,
            **borgee,
        },
    }
    if model_url:
        document["model"] = {
            "default": "fake",
            "provider": "custom",
            "base_url": model_url,
            "api_key": "sk-fake",
            "context_length": 128_000,
        }
    (home / "config.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    env = home / ".env"
    env.write_text(f"BORGEE_API_KEY={KEY}\n", encoding="utf-8")
    env.chmod(0o600)
    return home


async def until(wanted: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait on the event loop until ``wanted()`` is truthy, and return it."""
    async with asyncio.timeout(seconds):
        while not (found := wanted()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return found


class Model:
    """A model that answers ``Answer to: <message>``, can be held, and can call tools.

    ``tools`` maps a word of the user's message to a tool call ``(name, arguments)``.
    """

    def __init__(self) -> None:
        self.tools: dict[str, tuple[str, dict[str, Any]]] = {}
        self.asked: list[str] = []
        """The user's message of every turn, in the order of arrival."""
        self.offered: list[set[str]] = []
        self.systems: list[str] = []
        self.results: list[str] = []
        self._gates: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self._server = ModelServer(self._reply)
        self.url = self._server.url

    def hold(self, word: str) -> threading.Event:
        """Answer messages that hold ``word`` only after the returned event is set."""
        gate = threading.Event()
        self._gates[word] = gate
        return gate

    def times(self, text: str) -> int:
        """How often a turn was begun for a message that holds ``text``."""
        return sum(text in asked for asked in list(self.asked))

    def close(self) -> None:
        for gate in self._gates.values():
            gate.set()
        self._server.close()

    def _reply(self, handler: Handler) -> None:
        body = handler.asked.body
        messages = body.get("messages", [])
        user = _text(next((m for m in reversed(messages) if m["role"] == "user"), {}))
        after_tool = bool(messages) and messages[-1]["role"] == "tool"
        with self._lock:
            if after_tool:
                self.results.append(_text(messages[-1]))
            elif body.get("tools"):  # Hermes also asks for titles of conversations, without tools
                self.asked.append(user)
                self.offered.append({tool["function"]["name"] for tool in body["tools"]})
                self.systems.append(_text(messages[0]))
        if not after_tool:
            for word, gate in list(self._gates.items()):
                if word in user:
                    gate.wait(60)
        call = next((c for word, c in self.tools.items() if word in user), None)
        text = f"Answer to: {_plain(user)}"
        if call is not None and not after_tool:
            delta: dict[str, Any] = {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "index": 0,
                        "id": f"call-{len(self.asked)}",
                        "type": "function",
                        "function": {"name": call[0], "arguments": json.dumps(call[1])},
                    }
                ],
            }
            deltas, reason = [delta], "tool_calls"
        else:
            middle = len(text) // 2
            deltas = [
                {"role": "assistant", "content": text[:middle]},
                {"content": text[middle:]},
            ]
            reason = "stop"
        usage = {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}
        if not body.get("stream"):
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            plain = {"id": "c", "object": "chat.completion", "model": "fake"}
            whole = {**plain, "choices": [choice], "usage": usage}
            handler.send(200, json.dumps(whole).encode())
            return
        events = [
            {"id": "c", "model": "fake", "choices": [{"index": 0, "delta": delta}]}
            for delta in deltas
        ]
        events.append(
            {
                "id": "c",
                "model": "fake",
                "choices": [{"index": 0, "delta": {}, "finish_reason": reason}],
                "usage": usage,
            }
        )
        stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        handler.send(
            200, (stream + "data: [DONE]\n\n").encode(), {"Content-Type": "text/event-stream"}
        )


def _plain(user: str) -> str:
    """The message without the author's name and without what Hermes puts around it."""
    first = user.strip().splitlines()[0] if user.strip() else ""
    return first.partition("] ")[2] if first.startswith("[") else first


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


class Gateway:
    """``hermes gateway run`` in a process of its own."""

    def __init__(self, home: Path, **environ: str) -> None:
        self.home = home
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("BDH_", "OTEL_", "HERMES_", "BORGEE_"))
        }
        self.environ = {
            **inherited,
            "BDH_OTEL_STRICT": "1",
            "PYTHONFAULTHANDLER": "1",
            "HERMES_HOME": str(home),
            # Locks of other homes of this user are none of a test's business.
            "XDG_STATE_HOME": str(home / "state"),
            **environ,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.output = home / "gateway.out"

    def start(self, *command: str) -> None:
        arguments = command or ("-m", "hermes_cli.main", "gateway", "run")
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                env=self.environ,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)

    def stop(self, seconds: float = 60) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)

    def log(self) -> str:
        files = [self.output, *sorted((self.home / "logs").glob("*.log"))]
        return "".join(f.read_text(errors="replace") for f in files if f.exists())

    def tails(self) -> str:
        """The end of each log: what the agent's threads say is not in the gateway's."""
        files = [self.output, *sorted((self.home / "logs").glob("*.log"))]
        return "\n".join(
            f"── {file.name}\n{file.read_text(errors='replace')[-3000:]}"
            for file in files
            if file.exists()
        )

    def stacks(self) -> str:
        """What every thread of the gateway is doing. It ends the gateway."""
        if self.process is None or self.process.poll() is not None:
            return ""
        before = self.output.stat().st_size
        self.process.send_signal(signal.SIGABRT)  # PYTHONFAULTHANDLER writes all stacks
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        return self.output.read_text(errors="replace")[before:]

    def rows(self, sql: str, *values: Any) -> list[sqlite3.Row]:
        """Read from the inbox beside the running gateway."""
        path = inbox_path(self.home)
        if not path.exists():
            return []
        with contextlib.closing(sqlite3.connect(path.as_uri() + "?mode=ro", uri=True)) as db:
            db.row_factory = sqlite3.Row
            try:
                return db.execute(sql, values).fetchall()
            except sqlite3.OperationalError:
                return []

    def statuses(self, text: str = "") -> list[str]:
        """Status of the receipts whose body holds ``text``, in the order of arrival."""
        rows = self.rows(
            "SELECT status FROM receipts WHERE source_body LIKE ? ORDER BY ingest_seq",
            f"%{text}%",
        )
        return [row["status"] for row in rows]

    def wait(self, wanted: Callable[[], Any], seconds: float = 60) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := wanted()):
            if self.process is not None and self.process.poll() is not None:
                raise AssertionError(f"the gateway ended:\n{self.tails()}")
            if time.monotonic() > deadline:
                receipts = [dict(r) for r in self.rows("SELECT * FROM receipts")]
                raise AssertionError(
                    f"not seen within {seconds} s; receipts {receipts}\n"
                    f"{self.tails()}\n{self.stacks()}"
                )
            time.sleep(0.05)
        return found


@contextlib.contextmanager
def running_gateway(home: Path, server: BppServer, **environ: str) -> Iterator[Gateway]:
    """A gateway that is connected to ``server``."""
    gateway = Gateway(home, **environ)
    try:
        gateway.start()
        gateway.wait(lambda: "borgee connected" in gateway.log().lower(), 90)
        yield gateway
    finally:
        gateway.close()
