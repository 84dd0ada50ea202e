"""The way of the spans to one backend: its cursor, its connection, its backoff.

A batch is sent, then the cursor moves: after a kill in between, that one batch is sent twice,
and nothing is lost.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import sqlite3
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bdh_otel import database
from bdh_otel.endpoints import Endpoint
from bdh_otel.reader import StoredSpan, spans_after
from bdh_otel.sampler import Sampler
from bdh_otel.store import SpanStore
from bdh_otel.transport import Answer, Transport, connect

if TYPE_CHECKING:
    from bdh_otel.otlp import Encoder, Origin

log = logging.getLogger(__name__)

BATCH = 512
#: How far back a new endpoint's export reaches, in seconds.
BACKFILL = 3_600.0
FIRST_BACKOFF = 5.0
MAX_BACKOFF = 300.0
MAX_RETRY_AFTER = 3_600.0
#: Single spans refused in a row after which it is the endpoint, and not the spans.
_MAX_REFUSALS = 20


@dataclass(slots=True)
class Progress:
    """What a lane did since it was last asked: spans accepted and refused for good, spans that
    still wait (roughly, where it is many), and when a failing endpoint is due (Unix time)."""

    sent: int = 0
    failed: int = 0
    waiting: int = 0
    retry_at: float | None = None


@dataclass(slots=True)
class _Cursor:
    seq: int
    failures: int = 0
    retry_at: float = 0.0


class Lane:
    """Sends the store at ``path`` to ``endpoint``. :meth:`run` is for one thread at a time."""

    def __init__(self, path: Path, endpoint: Endpoint, sampler: Sampler, encoder: Encoder) -> None:
        self.endpoint = endpoint
        self._path = path
        self._sampler = sampler
        self._encoder = encoder
        self._store: SpanStore | None = None
        self._transport: Transport | None = None
        self._down = False
        self._partial = False
        self._lock = threading.Lock()
        self._progress = Progress()

    def run(self, deadline: float, *, force: bool = False) -> None:
        """Send batches until none is left, one fails, or ``deadline`` (``time.monotonic()``) has
        passed; a request that runs then may take its time. Never raises."""
        try:
            store = self._opened()
            cursor = load_cursor(store, self.endpoint)
            # A retry time beyond any that is ever set comes from a clock that was wrong.
            held = 0 < cursor.retry_at - time.time() <= MAX_RETRY_AFTER
            if force or not held:
                self._send(store, cursor, deadline)
            left = waiting(store.connection, cursor.seq)
            with self._lock:
                self._progress.retry_at = cursor.retry_at if cursor.failures else None
                self._progress.waiting = left
        except Exception as error:
            log.warning("[bdh-bridge] spans can't be exported now: %s", described(error))
            self._close_store()
            with self._lock:
                self._progress.retry_at = time.time() + FIRST_BACKOFF

    def progress(self) -> Progress:
        """What has happened since the last call."""
        with self._lock:
            done = self._progress
            self._progress = Progress(0, 0, done.waiting, done.retry_at)
        return done

    def close(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            with contextlib.suppress(Exception):
                transport.close()
        self._close_store()

    def _send(self, store: SpanStore, cursor: _Cursor, deadline: float) -> None:
        refusals = 0
        size = BATCH
        while time.monotonic() < deadline:
            spans = spans_after(store.connection, cursor.seq, size, ended=True)
            if not spans:
                break
            kept = [span for span in spans if self._sampler.keeps(span.trace_id, span.flags)]
            answer = self._request(store, kept)
            accepted = refused = 0
            if answer.outcome == "accepted":
                refused = min(answer.rejected, len(kept))  # a peer may claim more
                accepted = len(kept) - refused
                size, refusals = min(BATCH, size * 2), 0
                self._accepted(refused, len(kept))
            elif answer.outcome == "refused" and len(spans) > 1:
                # One bad span, or too many bytes: halve until it stands alone.
                size = len(spans) // 2
                continue
            elif answer.outcome == "refused" and refusals < _MAX_REFUSALS:
                refused, refusals = 1, refusals + 1
                log.warning("[bdh-bridge] a span was refused for good: %s", answer.detail)
            else:
                self._failed(store, cursor, answer)
                break
            cursor.seq, cursor.failures, cursor.retry_at = spans[-1].seq, 0, 0.0
            save_cursor(store, self.endpoint, cursor, sent=accepted, refused=refused)
            with self._lock:
                self._progress.sent += accepted
                self._progress.failed += refused

    def _request(self, store: SpanStore, spans: list[StoredSpan]) -> Answer:
        if not spans:
            return Answer("accepted")
        if self._transport is None:
            try:
                self._transport = connect(self.endpoint)
            except (OSError, ValueError) as error:  # a certificate that can't be read
                return Answer("later", f"{type(error).__name__} in the TLS settings")
        body = self._encoder.encode(spans, origins(store.connection, spans))
        # Never less than the operator allows: a receiver that is cut short may have taken it.
        return self._transport.send(body, self.endpoint.timeout)

    def _failed(self, store: SpanStore, cursor: _Cursor, answer: Answer) -> None:
        cursor.failures += 1
        cursor.retry_at = time.time() + backoff(cursor.failures, answer.retry_after)
        save_cursor(store, self.endpoint, cursor, error=answer.detail)
        if not self._down:
            self._down = True
            log.warning(
                "[bdh-bridge] spans can't be sent to %s (%s); they wait in the store",
                self.endpoint.shown,
                answer.detail,
            )

    def _accepted(self, rejected: int, offered: int) -> None:
        if self._down:
            self._down = False
            log.warning("[bdh-bridge] spans are sent to %s again", self.endpoint.shown)
        if rejected and not self._partial:
            log.warning(
                "[bdh-bridge] %s took %d of %d spans of a batch and rejected the rest for good",
                self.endpoint.shown,
                offered - rejected,
                offered,
            )
        self._partial = rejected > 0

    def _opened(self) -> SpanStore:
        if self._store is None or not self._store.is_current():
            self._close_store()
            self._store = SpanStore(self._path)
        return self._store

    def _close_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(sqlite3.Error):
                store.close()


def backoff(failures: int, retry_after: float | None) -> float:
    """Seconds until the next attempt: what the peer asked for, or 5 s doubled up to 5 minutes,
    spread by a fifth so that many machines don't come at once."""
    if retry_after is not None:
        return min(MAX_RETRY_AFTER, max(retry_after, 1.0))
    delay = min(MAX_BACKOFF, FIRST_BACKOFF * 2.0 ** min(failures - 1, 10))
    return delay * random.uniform(0.8, 1.2)  # noqa: S311 - no secret


def load_cursor(store: SpanStore, endpoint: Endpoint) -> _Cursor:
    """Where the endpoint's export stands; a new one starts an hour back."""
    row = store.connection.execute(
        "SELECT seq, failures, retry_at FROM cursors WHERE endpoint = ?", (endpoint.key,)
    ).fetchone()
    if row is not None:
        return _Cursor(*row)
    since = int((time.time() - BACKFILL) * 1e9)
    first = store.connection.execute(
        "SELECT min(seq) FROM spans WHERE start_ns >= ?", (since,)
    ).fetchone()[0]
    last = store.connection.execute("SELECT max(seq) FROM spans").fetchone()[0]
    cursor = _Cursor(first - 1 if first is not None else last or 0)
    save_cursor(store, endpoint, cursor)
    return cursor


def save_cursor(
    store: SpanStore,
    endpoint: Endpoint,
    cursor: _Cursor,
    *,
    sent: int = 0,
    refused: int = 0,
    error: str | None = None,
) -> None:
    with database.transaction(store.connection) as connection:
        connection.execute(
            "INSERT INTO cursors"
            " (endpoint, seq, sent, refused, failures, retry_at, last_error, updated)"
            " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)"
            " ON CONFLICT (endpoint) DO UPDATE SET seq = ?2, sent = sent + ?3,"
            " refused = refused + ?4, failures = ?5, retry_at = ?6, last_error = ?7, updated = ?8",
            (
                endpoint.key,
                cursor.seq,
                sent,
                refused,
                cursor.failures,
                cursor.retry_at,
                error,
                time.time(),
            ),
        )


def origins(connection: sqlite3.Connection, spans: list[StoredSpan]) -> dict[int, Origin]:
    """The processes that made ``spans``, by :attr:`StoredSpan.resource`."""
    from bdh_otel.otlp import Origin

    numbers = {span.resource for span in spans}
    rows = connection.execute(
        "SELECT id, attributes, scope FROM resources WHERE id IN (SELECT value FROM json_each(?))",
        (json.dumps(sorted(numbers)),),
    )
    return {row["id"]: Origin(json.loads(row["attributes"]), row["scope"]) for row in rows}


def waiting(connection: sqlite3.Connection, seq: int) -> int:
    """Ended spans after ``seq``: exact up to a bound, since counting reads them."""
    bound = 20 * BATCH
    counted = connection.execute(
        "SELECT count(*) FROM (SELECT 1 FROM spans WHERE seq > ? AND end_ns IS NOT NULL LIMIT ?)",
        (seq, bound),
    ).fetchone()[0]
    if counted < bound:
        return int(counted)
    return int(connection.execute("SELECT max(seq) FROM spans").fetchone()[0]) - seq


def described(error: Exception) -> str:
    """A store's own sentence; else the class only, since a message may quote what was sent."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) if isinstance(error, database.StoreError) else type(error).__name__
