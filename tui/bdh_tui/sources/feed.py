"""Sources that bring spans from elsewhere into a private store of this process."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import threading
import uuid
from pathlib import Path

from bdh_otel import database
from bdh_otel.process import this_process
from bdh_otel.retention import Bounds, prune
from bdh_otel.store import SpanStore
from bdh_tui.sources import Source
from bdh_tui.sources.wire import Batch

#: The private store keeps the newest ones.
BOUNDS = Bounds(rows=300_000, bytes=512 << 20)
_PRUNE_EVERY = 20_000
_SLICE = 1_000


class FeedSource(Source):
    """A source with a store of its own, deleted at the end. Subclasses call :meth:`take`."""

    read_only = True

    def __init__(self, label: str) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="bdh-tui-"))  # 0700
        super().__init__(self._directory / "spans.sqlite3")
        self.label = label
        self.unreadable = 0
        self._lock = threading.Lock()
        self._store: SpanStore | None = SpanStore(self.store)
        self._resource = self._store.register(str(uuid.uuid4()), this_process(), "", {})
        self._since_prune = 0
        self._trouble = ""

    def take(self, batch: Batch) -> None:
        """Store what was understood; a span that is there already stays as it is.

        Raises: :class:`bdh_otel.database.StoreError` if nothing was kept.
        """
        with self._lock:
            store = self._store
            if store is None:
                raise database.StoreUnavailable(self.store, "closed", "start again")
            self.unreadable += batch.unreadable
            try:
                for start in range(0, len(batch.rows), _SLICE):
                    part = batch.rows[start : start + _SLICE]
                    if not store.insert(part, self._resource):
                        # Pruned away together with the spans it had made.
                        self._resource = store.register(str(uuid.uuid4()), this_process(), "", {})
                        store.insert(part, self._resource)
                self._since_prune += len(batch.rows)
                if self._since_prune >= _PRUNE_EVERY:
                    self._since_prune = 0
                    prune(store, BOUNDS, time_limit=0.5)
            except sqlite3.Error as error:
                raise database.classify(self.store, error) from error

    def stop(self) -> None:
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()
            shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def trouble(self) -> str:
        return self._trouble
