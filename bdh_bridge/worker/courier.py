"""The duty of delivery: takes the next write, asks the server how it is, sends, records."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from bdh_bridge.outbox.queue import Claim, Queue
from bdh_bridge.outbox.states import State, Write
from bdh_bridge.outbox.transitions import Result, Transition
from bdh_bridge.outbox.upkeep import Upkeep
from bdh_bridge.settings import Settings
from bdh_bridge.worker.delivery import Client, Health
from bdh_bridge.worker.trace import DeliveryTrace
from bdh_otel.database import StoreUnavailable
from bdh_otel.logs import in_logs

log = logging.getLogger(__name__)

#: Seconds after which a backlog is left for a moment, to see what else there is.
SLICE = 5.0


class Courier:
    """``settings`` is asked before every write, so that a new token counts at once."""

    def __init__(
        self,
        queue: Queue,
        upkeep: Upkeep,
        trace: DeliveryTrace,
        settings: Callable[[], Settings],
    ) -> None:
        self._queue = queue
        self._upkeep = upkeep
        self._trace = trace
        self._settings = settings
        self._client: Client | None = None
        self._client_of: tuple[str, str, float] | None = None
        self.handled = 0
        """Attempts made."""
        self.busy_since: float | None = None
        """Monotonic time at which the attempt under way began."""

    def run(self, stop: threading.Event) -> float | None:
        """Deliver what is due, for :data:`SLICE` seconds or so. Returns the seconds until there is
        something to do again, 0.0 if there still is; None: nothing waits.

        Raises: a :class:`~bdh_otel.database.StoreError`.
        """
        for transition in [*self._upkeep.recover(), *self._upkeep.close_windows()]:
            self._trace.record(transition)
        began = time.monotonic()
        while not stop.is_set():
            if time.monotonic() - began > SLICE:
                return 0.0
            settings = self._settings()
            write = self._queue.next_write(settings.api_url)
            if write is None:
                return self._queue.seconds_until_next(settings.api_url)
            self.busy_since = time.monotonic()
            try:
                with in_logs(self._trace.turn_of(write)):
                    self._attempt(write, self._client_for(settings), stop)
            finally:
                self.busy_since = None
                self.handled += 1
        return None

    def abort(self) -> None:
        """End the request in flight; safe from any thread."""
        if self._client is not None:
            self._client.abort()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _attempt(self, write: Write, client: Client, stop: threading.Event) -> None:
        started_ns = time.time_ns()
        health = client.health()
        settling = write.state is not State.PENDING
        if health.problem is not None and (
            health.unreachable or settling or self._queue.honours_keys(write)
        ):
            # Nothing was sent. Where the server is known to honour keys, a write does not go out
            # before its instance is known: a doubt could not be settled any more.
            waited = self._queue.postpone(write, replace(health.problem, state=State.PENDING))
            self._trace.record(waited, started_ns)
            self._expire(write)
            return
        if settling and not _same_server(write, health):
            self._trace.record(
                self._queue.give_up_settling(
                    write, "other_instance", "the server that was asked is not there any more"
                ),
                started_ns,
            )
            return
        claim = self._queue.claim(write, health.server)
        if claim is None:
            return
        result = client.deliver(claim.write)
        transition = self._finish(claim, result, stop)
        if transition is None:
            log.warning("[bdh-bridge] write %s was taken over while it was sent", write.id)
            return
        self._trace.record(transition, started_ns)
        if result.state is State.PENDING:
            self._expire(write)

    def _expire(self, write: Write) -> None:
        for transition in self._upkeep.expire(write):
            self._trace.record(transition)

    def _finish(self, claim: Claim, result: Result, stop: threading.Event) -> Transition | None:
        """Record the result, as long as it takes: the server has it, only this process knows."""
        while True:
            try:
                return self._queue.finish(claim, result)
            except StoreUnavailable as error:
                if stop.is_set():
                    raise
                log.warning("[bdh-bridge] %s; the result of %s is kept", error, claim.write.id)
                stop.wait(1.0)

    def _client_for(self, settings: Settings) -> Client:
        token = settings.api_token.get_secret_value()
        wanted = (settings.api_url, token, settings.write_timeout)
        if self._client is None or self._client_of != wanted:
            self.close()
            self._client = Client(settings.api_url, token, timeout=settings.write_timeout)
            self._client_of = wanted
        return self._client


def _same_server(write: Write, health: Health) -> bool:
    return health.server is not None and health.server.instance == write.server_instance
