"""The real adapter in the test's own process, against a real server, with a handler of the test's.

Hermes' base class, its session store and its locks are the real ones; what stands in is the
gateway runner: the object that the adapter reads a few attributes of.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from gateway.config import GatewayConfig, PlatformConfig
from gateway.platform_registry import PlatformEntry, platform_registry
from gateway.session import SessionStore

from bdh_otel import database
from hermes_borgee import inbox
from hermes_borgee.adapter import BorgeeAdapter
from hermes_borgee.config import inbox_path
from hermes_borgee.evidence import note_model_call
from hermes_borgee.link import Timing
from hermes_borgee.receipts import Outcome, Receipt, Status
from tests.support.borgee import until
from tests.support.receipts import plain

FAST = Timing(
    probe_every=5.0,
    probe_wait=2.0,
    retry_first=0.05,
    retry_most=0.2,
    disabled_retry=0.2,
    action=2.0,
    sdk_retry_first=0.05,
    sdk_retry_most=0.1,
)

# Hermes knows a plugin's platform only once it is registered.
platform_registry.register(
    PlatformEntry("borgee", "Borgee", adapter_factory=BorgeeAdapter, check_fn=lambda: True)
)


class Runner:
    """What the adapter asks of Hermes' gateway runner."""

    def __init__(self) -> None:
        self.adapters: dict[Any, Any] = {}
        self._startup_restore_in_progress = False
        self._draining = False
        self._external_drain_active = False
        self._running_agents: dict[str, Any] = {}
        self.evicted: list[str] = []

    def _evict_cached_agent(self, session_key: str) -> None:
        self.evicted.append(session_key)

    def _profile_name_for_source(self, source: Any) -> None:
        return None


class Bench:
    """An adapter, what its handler saw, and gates to hold a turn by its text."""

    def __init__(self, home: Path, timing: Timing = FAST) -> None:
        self.home = home
        self.runner = Runner()
        self.seen: list[str] = []
        self.events: list[Any] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.errors: dict[str, BaseException] = {}
        self.calls_model = True
        self.answer: Callable[[Any], str | None] = lambda event: f"Answer to: {event.text}"
        self.on_busy: Callable[[Any, str], Awaitable[bool]] | None = None
        self.fatal: list[str] = []
        self.adapter = BorgeeAdapter(PlatformConfig(enabled=True), home=home, timing=timing)
        self.store = SessionStore(home / "sessions", GatewayConfig())
        self.adapter.gateway_runner = self.runner
        self.adapter.set_message_handler(self._handle)
        self.adapter.set_busy_session_handler(self._busy)
        self.adapter.set_session_store(self.store)
        self.adapter.set_fatal_error_handler(self._fatal)

    async def start(self) -> bool:
        """Connect, then stand in the runner's map, in the order in which Hermes does it."""
        connected: bool = await self.adapter.connect()
        if connected:
            self.runner.adapters[self.adapter.platform] = self.adapter
        return connected

    async def stop(self) -> None:
        for gate in self.gates.values():
            gate.set()
        await self.adapter.cancel_background_tasks()
        await self.adapter.disconnect()

    def hold(self, text: str) -> asyncio.Event:
        self.gates[text] = asyncio.Event()
        return self.gates[text]

    def make_session(self, channel_id: str = "chan-1", kind: str = "channel") -> str:
        """A session of Hermes with a history. Returns its key."""
        source = self.adapter.build_source(
            chat_id=channel_id, chat_type=kind, user_id="user-1", user_name="Ada"
        )
        self.store.config.group_sessions_per_user = False
        key: str = self.store.get_or_create_session(source).session_key
        return key

    async def receipts(self) -> list[Receipt]:
        assert self.adapter._desk is not None
        return await self.adapter._desk.actor.run(inbox.select)

    async def states(self) -> list[tuple[str, str, str]]:
        """Text, status and outcome of every receipt."""
        return [(r.source_body, r.status.value, r.outcome) for r in await self.receipts()]

    async def until_state(self, text: str, *statuses: str) -> Receipt:
        async with asyncio.timeout(60):
            while True:
                for receipt in await self.receipts():
                    if receipt.source_body == text and receipt.status.value in statuses:
                        return receipt
                await asyncio.sleep(0.02)

    async def until_seen(self, text: str) -> None:
        await until(lambda: text in self.seen)

    async def _handle(self, event: Any) -> str | None:
        if event.text in self.errors:
            raise self.errors[event.text]
        if self.calls_model and not event.text.startswith("/"):
            # As in Hermes: the turn runs in a pool thread, with a copy of the context.
            context = contextvars.copy_context()
            await asyncio.get_running_loop().run_in_executor(None, context.run, note_model_call)
        self.seen.append(event.text)
        self.events.append(event)
        if event.text in self.gates:
            await self.gates[event.text].wait()
        return self.answer(event)

    async def _busy(self, event: Any, session_key: str) -> bool:
        return await self.on_busy(event, session_key) if self.on_busy else False

    async def _fatal(self, adapter: Any) -> None:
        self.fatal.append(adapter.fatal_error_code)


@contextlib.contextmanager
def raw_inbox(home: Path) -> Iterator[sqlite3.Connection]:
    """The inbox of a home beside the adapter, or without one."""
    connection = database.connect(inbox_path(home), inbox.SCHEMA)
    with contextlib.closing(connection):
        yield connection


def left_behind(home: Path, status: Status, session_key: str, name: str) -> int:
    """A receipt as a killed process leaves it. Returns its number."""
    with raw_inbox(home) as connection:
        number = inbox.commit(connection, plain(name, session_key))
        assert number is not None
        if status is not Status.PENDING:
            receipt = inbox.claim(connection, number)
            assert receipt is not None
            if status is not Status.CLAIMED:
                inbox.start(connection, receipt)
            if status is Status.IN_DOUBT:
                inbox.mark_in_doubt(connection, Outcome.PROCESS_DIED)
        return number


@contextlib.asynccontextmanager
async def running(home: Path, timing: Timing = FAST) -> AsyncIterator[Bench]:
    bench = Bench(home, timing)
    try:
        assert await bench.start(), bench.adapter.fatal_error_message
        yield bench
    finally:
        await bench.stop()
