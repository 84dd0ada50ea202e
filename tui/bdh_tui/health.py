"""What the status bar watches, all the time: store, outbox, graph."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from textual.message import Message

from bdh_otel.database import StoreError
from bdh_otel.reader import SpanReader, Status

if TYPE_CHECKING:
    from bdh_bridge.outbox.store import OutboxStats
    from bdh_bridge.settings import Loaded
    from bdh_tui.sources import Source

#: Seconds between looks: store and outbox; the graph while nobody looks at it, and while
#: somebody does.
STORE_EVERY = 3.0
GRAPH_EVERY, GRAPH_WATCHED_EVERY = 10.0, 2.0
#: Seconds for an answer, and the longest wait between tries of a graph that is away.
GRAPH_TIMEOUT, GRAPH_LONGEST_WAIT = 4.0, 60.0
#: Answers of the graph that are kept for its charts.
HISTORY = 900


@dataclass
class Health:
    """What was seen last. Times are Unix seconds; ``graph_error`` is empty while it answers."""

    store: Status | None = None
    store_error: str = ""
    outbox: OutboxStats | None = None
    outbox_error: str = ""
    graph: dict[str, Any] | None = None
    graph_error: str = ""
    graph_seen: float = 0.0
    graph_retry_at: float = 0.0
    graph_took: float = 0.0
    vault: str = ""
    lag: float = 0.0
    stats: deque[tuple[float, dict[str, Any]]] = field(
        default_factory=lambda: deque(maxlen=HISTORY)
    )


class HealthChanged(Message):
    def __init__(self, part: str) -> None:
        super().__init__()
        self.part = part


class Watch:
    """Two threads, since a graph that hangs must not hide the outbox. ``post`` is thread-safe."""

    def __init__(self, loaded: Loaded, source: Source, post: Callable[[Message], object]) -> None:
        self.health = Health(vault=loaded.settings.vault_id)
        self.graph_watched = False
        self.looked = False
        """Store and outbox have been looked at once."""
        self._loaded, self._source, self._post = loaded, source, post
        self._stop = threading.Event()
        self._hurry = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for name, target in (("store", self._watch_stores), ("graph", self._watch_graph)):
            thread = threading.Thread(target=target, name=f"bdh-tui-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        self._stop.set()
        self._hurry.set()

    def ask_graph_now(self, vault: str | None = None) -> None:
        """Don't wait for the next look; with ``vault``, look at that one from now on."""
        if vault is not None and vault != self.health.vault:
            self.health.vault = vault
            self.health.stats.clear()
            self.health.graph = None
        self._hurry.set()

    def _watch_stores(self) -> None:
        reader = SpanReader(self._source.store)
        outbox = None
        while not self._stop.is_set():
            health = self.health
            try:
                health.store, health.store_error = reader.status(), ""
            except FileNotFoundError:
                health.store, health.store_error = None, ""
            except StoreError as error:
                health.store_error = str(error)
            if not self._source.read_only:
                outbox = self._look_at_outbox(outbox)
            self.looked = True
            self._say("store")
            self._stop.wait(STORE_EVERY)
        reader.close()
        if outbox is not None:
            outbox.close()

    def _look_at_outbox(self, outbox: Any) -> Any:
        from bdh_bridge.outbox.store import Outbox

        paths, health = self._loaded.paths, self.health
        try:
            if not paths.outbox.exists():  # looking must not make one
                health.outbox, health.outbox_error = None, ""
                return outbox
            outbox = outbox or Outbox(paths.outbox, spool=paths.outbox_spool)
            health.outbox, health.outbox_error = outbox.stats(), ""
        except (StoreError, OSError) as error:
            health.outbox_error = str(error)
        return outbox

    def _watch_graph(self) -> None:
        from bdh_bridge.graph.client import GraphClient, GraphError

        settings, health = self._loaded.settings, self.health
        client = GraphClient(settings.api_url, settings.api_token)
        failures = 0
        while not self._stop.is_set():
            vault, began = health.vault, time.monotonic()
            self._hurry.clear()
            try:
                answer = dict(client.stats(timeout=GRAPH_TIMEOUT, vault_id=vault))
                if vault == health.vault:
                    health.graph, health.graph_error, failures = answer, "", 0
                    health.graph_seen = time.time()
                    health.graph_took = time.monotonic() - began
                    health.stats.append((health.graph_seen, answer))
                wait = GRAPH_WATCHED_EVERY if self.graph_watched else GRAPH_EVERY
            except GraphError as error:
                failures += 1
                health.graph_error = f"{error.kind.replace('_', ' ')}: {error}"
                wait = min(GRAPH_LONGEST_WAIT, 2.0 * 2 ** min(failures, 6))
            health.graph_retry_at = time.time() + wait
            self._say("graph")
            self._hurry.wait(wait)
        client.close()

    def _say(self, part: str) -> None:
        # At the end of the application nobody takes messages any more.
        with contextlib.suppress(Exception):
            self._post(HealthChanged(part))
