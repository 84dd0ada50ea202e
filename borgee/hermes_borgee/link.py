"""The connection to Borgee: one SDK client after another.

The SDK reconnects by itself after an ordinary disconnect. What it calls terminal (a proxy's 503
at a reconnect, a malformed frame, a protocol close) ends its client for good; here the reason is
classified, the dead client closed, and a new one built after a pause, unless the reason is final.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from borgee_plugin_sdk import (
    BorgeeError,
    BorgeePluginClient,
    ConfigApplyContext,
    ConfigApplyResult,
    ConfigApplyStatus,
    ConfigUpdate,
    ConnectionStatus,
    FaultReason,
    NotOnlineError,
    User,
    create_borgee_plugin,
)
from borgee_plugin_sdk import BorgeePluginOptions as Options

from hermes_borgee.config import BorgeeConfig
from hermes_borgee.failures import LinkFailure, LinkKind, link_failure
from hermes_borgee.pace import Pace

log = logging.getLogger(__name__)


#: What a probe raises if the server gave no answer, or none that makes sense.
_NO_ANSWER = (BorgeeError, TimeoutError, TypeError, ValueError)


class LinkState(StrEnum):
    CONNECTING = "connecting"
    ONLINE = "online"
    RECONNECTING = "reconnecting"
    """The SDK tries again by itself."""
    WAITING = "waiting"
    """A new client is built after a pause."""
    DISABLED = "disabled"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. Tests shorten them."""

    probe_every: float = 30.0
    """How often a quiet server is asked for a sign of life."""
    probe_wait: float = 15.0
    probe_misses: int = 2
    retry_first: float = 1.0
    retry_most: float = 60.0
    disabled_retry: float = 60.0
    action: float = 30.0
    heartbeat: float = 30.0
    sdk_retry_first: float = 0.5
    sdk_retry_most: float = 30.0


class Link:
    """Keeps one connection up.

    ``on_delivery(delivery)`` is awaited for one event after the other. ``on_state(state,
    failure)`` hears of every change. ``on_final(failure)`` is called once when trying again
    can't help.
    """

    def __init__(
        self,
        config: BorgeeConfig,
        *,
        on_delivery: Callable[[Any], Awaitable[None]],
        on_state: Callable[[LinkState, LinkFailure | None], Awaitable[None]],
        on_final: Callable[[LinkFailure], Awaitable[None]],
        on_stop_turn: Callable[[str], Awaitable[dict[str, bool]]],
        timing: Timing | None = None,
    ) -> None:
        self._config = config
        self._timing = timing or Timing()
        self._on_delivery = on_delivery
        self._on_state = on_state
        self._on_final = on_final
        self._on_stop_turn = on_stop_turn
        self._client: BorgeePluginClient | None = None
        self._pace: Pace | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._silent = False
        self._settled = asyncio.Event()
        """Set while waiting makes no sense: online, or over for good."""
        self._me: User | None = None
        self.state = LinkState.CONNECTING
        self.failure: LinkFailure | None = None

    @property
    def online(self) -> bool:
        return self.state is LinkState.ONLINE and self._client is not None

    @property
    def _waits_for_inbox(self) -> bool:
        """Whether frames are held back: an answer may be among them."""
        return self._pace is not None and self._pace.waiting

    @property
    def agent_id(self) -> str:
        return self._me.id if self._me else ""

    @property
    def agent_name(self) -> str:
        return self._me.display_name if self._me else ""

    @property
    def client(self) -> BorgeePluginClient:
        """The client to send through. Raises: NotOnlineError while there is none."""
        if self._client is None or self.state not in (LinkState.ONLINE, LinkState.RECONNECTING):
            raise NotOnlineError("there is no connection to Borgee")
        return self._client

    async def wait_online(self, seconds: float) -> bool:
        """Wait for a connection, at most so many seconds. False at once when it is over."""
        try:
            async with asyncio.timeout(seconds):
                await self._settled.wait()
        except TimeoutError:
            return False
        return self.online

    async def start(self) -> None:
        """Connect for the first time and keep the connection up. Raises: LinkFailure."""
        client = await self._connect()
        self._tasks = [
            asyncio.create_task(self._keep(client), name="borgee-link"),
            asyncio.create_task(self._probe(), name="borgee-probe"),
        ]

    async def close(self) -> None:
        """End the connection. Idempotent."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._drop_client()
        if self.state is not LinkState.FAILED:
            self.state = LinkState.CLOSED
        self._settled.set()

    # ── One client ──────────────────────────────────────────────────────────────────────────

    async def _connect(self) -> BorgeePluginClient:
        """A new, connected client. Raises: LinkFailure."""
        timing = self._timing
        try:
            client = create_borgee_plugin(
                Options(
                    base_url=self._config.base_url,
                    api_key=self._config.api_key.get_secret_value(),
                    plugin_id="hermes",
                    allow_insecure_loopback=self._config.allow_insecure_loopback,
                    action_timeout=timing.action,
                    heartbeat_interval=timing.heartbeat,
                    reconnect_base=timing.sdk_retry_first,
                    reconnect_max=timing.sdk_retry_most,
                    config_update_handler=_reject_config,
                    stop_turn_handler=self._on_stop_turn,  # type: ignore[arg-type]
                )
            )
        except ValueError as error:
            raise LinkFailure(LinkKind.CONFIG, str(error), final=True) from error
        self._pace = Pace(client)
        try:
            await client.connect()
            me = await client.get_me()
            if me.role != "agent":
                raise LinkFailure(
                    LinkKind.AUTH, "BORGEE_API_KEY is a person's key, not an agent's", final=True
                )
            if me.disabled:
                raise LinkFailure(LinkKind.DISABLED, "the agent is disabled in Borgee")
        except asyncio.CancelledError:
            await _close(client)
            raise
        except Exception as error:
            # Also a client that has given up must be closed, or its tasks stay.
            await _close(client)
            raise link_failure(error) from error
        self._client, self._me, self._silent = client, me, False
        await self._change(LinkState.ONLINE)
        return client

    async def _drop_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await _close(client)

    async def _serve(self, client: BorgeePluginClient) -> LinkFailure:
        """Deliver until the client has ended. Returns why it did."""
        states = asyncio.create_task(self._watch(client), name="borgee-states")
        try:
            async for delivery in client.deliveries():
                await self._on_delivery(delivery)
        finally:
            states.cancel()
            await asyncio.gather(states, return_exceptions=True)
        if self._silent:
            return LinkFailure(LinkKind.SILENT, "the server gave no sign of life")
        if self.failure is not None and self.failure.kind is LinkKind.DISABLED:
            return self.failure
        try:
            await client.connect()  # raises the error that ended the client
        except Exception as error:
            return link_failure(error)
        return LinkFailure(LinkKind.NETWORK, "the connection ended")

    async def _watch(self, client: BorgeePluginClient) -> None:
        async for state in client.state_changes():
            if state.status is ConnectionStatus.ONLINE:
                await self._change(LinkState.ONLINE)
            elif state.status is ConnectionStatus.RECONNECTING:
                await self._change(LinkState.RECONNECTING, self.failure)

    # ── From one client to the next ─────────────────────────────────────────────────────────

    async def _keep(self, client: BorgeePluginClient) -> None:
        failures = 0
        while True:
            try:
                failure = await self._serve(client)
            except Exception as error:
                failure = _unexpected(error)
            while True:
                if failure.final:
                    await self._change(LinkState.FAILED, failure)
                    await self._drop_client()
                    await self._on_final(failure)
                    return
                failures += 1
                disabled = failure.kind is LinkKind.DISABLED
                await self._change(LinkState.DISABLED if disabled else LinkState.WAITING, failure)
                await self._drop_client()
                await asyncio.sleep(self._pause(failure, failures))
                try:
                    client = await self._connect()
                except Exception as error:
                    failure = error if isinstance(error, LinkFailure) else _unexpected(error)
                    continue
                failures = 0
                break

    def _pause(self, failure: LinkFailure, failures: int) -> float:
        timing = self._timing
        if failure.kind is LinkKind.DISABLED:
            return timing.disabled_retry
        backoff: float = min(timing.retry_most, timing.retry_first * 2 ** min(failures - 1, 16))
        jittered = backoff * (0.5 + random.random() / 2)  # noqa: S311 - no secret
        return max(jittered, failure.retry_after or 0.0)

    async def _probe(self) -> None:
        """Notice a peer that has gone silent, and an agent that was disabled."""
        misses = 0
        while True:
            await asyncio.sleep(self._timing.probe_every)
            client = self._client
            if client is None or not self.online or self._waits_for_inbox:
                misses = 0
                continue
            try:
                async with asyncio.timeout(self._timing.probe_wait):
                    me = await client.get_me()
                misses = 0
            except Exception as error:
                # A disconnect on the way is no miss, and no end of the probe: the SDK notices it.
                missed = isinstance(error, _NO_ANSWER) and not isinstance(error, NotOnlineError)
                misses = misses + 1 if missed and self.online and client is self._client else 0
                if misses >= self._timing.probe_misses:
                    misses = 0
                    self._silent = True
                    log.warning("[bdh-bridge] borgee: the server is silent; connecting anew")
                    await _close(client)
                continue
            if me.disabled and client is self._client:
                self.failure = LinkFailure(LinkKind.DISABLED, "the agent is disabled in Borgee")
                await _close(client)

    async def _change(self, state: LinkState, failure: LinkFailure | None = None) -> None:
        if state is self.state and failure is self.failure:
            return
        previous, self.state, self.failure = self.state, state, failure
        if state in (LinkState.ONLINE, LinkState.FAILED, LinkState.DISABLED):
            self._settled.set()
        else:
            self._settled.clear()
        if previous is not state:
            level = logging.INFO if state is LinkState.ONLINE else logging.WARNING
            reason = f": {failure.message}" if failure else ""
            log.log(level, "[bdh-bridge] borgee: %s%s", state.value, reason)
        await self._on_state(state, failure)


def _unexpected(error: Exception) -> LinkFailure:
    """Whatever broke the intake: it must not stay deaf behind an open connection."""
    log.error("[bdh-bridge] borgee: the intake broke; connecting anew", exc_info=error)
    return LinkFailure(LinkKind.NETWORK, f"the intake broke off ({type(error).__name__})")


def _reject_config(update: ConfigUpdate, context: ConfigApplyContext) -> ConfigApplyResult:
    """Borgee's model, prompt and tool settings are not Hermes'."""
    log.info("[bdh-bridge] borgee: a configuration from the server was rejected")
    return ConfigApplyResult(ConfigApplyStatus.REJECTED, FaultReason.UNKNOWN)


async def _close(client: BorgeePluginClient) -> None:
    with contextlib.suppress(Exception):
        await client.close()
