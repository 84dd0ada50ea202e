"""Sending stored spans on, by the worker: one cursor per endpoint in the span store.

Spans wait in the store, so a backend that is down costs nothing but time, and holds up no other
one. A batch is sent, then the cursor moves: after a kill in between, that one batch is sent
twice, and nothing is lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import random
import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bdh_otel import database
from bdh_otel.endpoints import Endpoint, Sampler, disabled, endpoints, resource_attributes
from bdh_otel.reader import StoredSpan, spans_after
from bdh_otel.store import SpanStore
from bdh_otel.transport import Answer, Transport, connect

if TYPE_CHECKING:
    from bdh_otel.otlp import Origin

log = logging.getLogger(__name__)

BATCH = 512
#: How far back a new endpoint's export reaches, in seconds.
BACKFILL = 3_600.0
_FIRST_BACKOFF = 5.0
_MAX_BACKOFF = 300.0
_MAX_RETRY_AFTER = 3_600.0
#: Single spans refused in a row after which it is the endpoint, and not the spans.
_MAX_REFUSALS = 20


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What one run did, over all endpoints.

    ``sent`` spans were accepted; ``failed`` will never be (refused, and left out from now on);
    ``waiting`` ended spans are yet to be sent, counted for each endpoint (roughly, where it is
    many). ``retry_at`` is the Unix time at which the first failing endpoint is due, None if none
    is failing. ``busy``: another process was exporting, so nothing was done.
    """

    sent: int = 0
    failed: int = 0
    waiting: int = 0
    retry_at: float | None = None
    busy: bool = False


@dataclass(slots=True)
class _Cursor:
    seq: int
    failures: int = 0
    retry_at: float = 0.0


class Exporter:
    """Exports the store at ``path`` to what ``environment`` configures (``OTEL_*``).

    ``export_content`` lets content attributes leave the machine; the caller has made sure that
    the operator asked for it twice. Not for use by two threads at once.
    """

    def __init__(
        self, path: Path, environment: Mapping[str, str], *, export_content: bool = False
    ) -> None:
        self.endpoints = [] if disabled(environment) else endpoints(environment)
        self._path = path
        self._sampler = Sampler(environment)
        self._content = export_content
        self._extra = resource_attributes(environment)
        self._transports: dict[str, Transport] = {}
        self._store: SpanStore | None = None
        self._down: set[str] = set()

    @property
    def enabled(self) -> bool:
        """False if there is nowhere to send spans to."""
        return bool(self.endpoints)

    def run_once(self, deadline: float | None = None, *, force: bool = False) -> ExportResult:
        """Send what is due until ``deadline`` (``time.monotonic()``; default: in 30 s).

        ``force`` also tries endpoints that are backing off. Never raises.
        """
        deadline = time.monotonic() + 30.0 if deadline is None else deadline
        try:
            if not self.enabled or not self._path.exists():
                return ExportResult()
            with self._alone() as alone:
                return self._run(deadline, force) if alone else ExportResult(busy=True)
        except Exception as error:
            log.warning("[bdh-bridge] spans can't be exported now: %s", _described(error))
            self._close_store()
            return ExportResult(retry_at=time.time() + _FIRST_BACKOFF)

    def close(self) -> None:
        for transport in self._transports.values():
            with contextlib.suppress(Exception):
                transport.close()
        self._transports.clear()
        self._close_store()

    def _run(self, deadline: float, force: bool) -> ExportResult:
        if self._store is None or not self._store.is_current():
            self._close_store()
            self._store = SpanStore(self._path)
        store = self._store
        sent = failed = waiting = 0
        due: list[float] = []
        for endpoint in self.endpoints:
            cursor = _load(store, endpoint)
            # A retry time beyond any that is ever set comes from a clock that was wrong.
            held = 0 < cursor.retry_at - time.time() <= _MAX_RETRY_AFTER
            if force or not held:
                accepted, refused = self._send(store, endpoint, cursor, deadline)
                sent, failed = sent + accepted, failed + refused
            if cursor.failures:
                due.append(cursor.retry_at)
            waiting += _waiting(store, cursor.seq)
        return ExportResult(sent, failed, waiting, min(due, default=None))

    def _send(
        self, store: SpanStore, endpoint: Endpoint, cursor: _Cursor, deadline: float
    ) -> tuple[int, int]:
        """Batches to one endpoint; moves ``cursor``. Returns how many were accepted, refused."""
        sent = failed = refusals = 0
        size = BATCH
        while (left := deadline - time.monotonic()) > 0:
            spans = spans_after(store.connection, cursor.seq, size, ended=True)
            if not spans:
                break
            kept = [span for span in spans if self._sampler.keeps(span.trace_id, span.flags)]
            answer = self._request(store, endpoint, kept, min(endpoint.timeout, left))
            accepted = refused = 0
            if answer.outcome == "accepted":
                accepted, refused = len(kept) - answer.rejected, answer.rejected
                size, refusals = min(BATCH, size * 2), 0
                self._recovered(endpoint)
            elif answer.outcome == "refused" and len(spans) > 1:
                # One bad span, or too many bytes: halve until it stands alone.
                size = len(spans) // 2
                continue
            elif answer.outcome == "refused" and refusals < _MAX_REFUSALS:
                refused, refusals = 1, refusals + 1
                log.warning("[bdh-bridge] a span was refused for good: %s", answer.detail)
            else:
                self._failed(store, endpoint, cursor, answer)
                break
            cursor.seq, cursor.failures, cursor.retry_at = spans[-1].seq, 0, 0.0
            _save(store, endpoint, cursor, sent=accepted, refused=refused)
            sent, failed = sent + accepted, failed + refused
        return sent, failed

    def _request(
        self, store: SpanStore, endpoint: Endpoint, spans: list[StoredSpan], timeout: float
    ) -> Answer:
        from bdh_otel.otlp import Encoder

        if not spans:
            return Answer("accepted")
        transport = self._transports.get(endpoint.key)
        if transport is None:
            try:
                transport = self._transports[endpoint.key] = connect(endpoint)
            except (OSError, ValueError) as error:  # a certificate that can't be read
                return Answer("later", f"{type(error).__name__} in the TLS settings")
        encoder = Encoder(content=self._content, extra=self._extra)
        return transport.send(encoder.encode(spans, _origins(store, spans)), timeout)

    def _failed(
        self, store: SpanStore, endpoint: Endpoint, cursor: _Cursor, answer: Answer
    ) -> None:
        cursor.failures += 1
        delay = min(_MAX_BACKOFF, _FIRST_BACKOFF * 2 ** min(cursor.failures - 1, 10))
        delay *= random.uniform(0.8, 1.2)  # noqa: S311 - so that many machines don't come at once
        if answer.retry_after is not None:
            delay = min(_MAX_RETRY_AFTER, max(answer.retry_after, 1.0))
        cursor.retry_at = time.time() + delay
        _save(store, endpoint, cursor, error=answer.detail)
        if endpoint.key not in self._down:
            self._down.add(endpoint.key)
            log.warning(
                "[bdh-bridge] spans can't be sent to %s (%s); they wait in the store",
                endpoint.shown,
                answer.detail,
            )

    def _recovered(self, endpoint: Endpoint) -> None:
        if endpoint.key in self._down:
            self._down.discard(endpoint.key)
            log.warning("[bdh-bridge] spans are sent to %s again", endpoint.shown)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """True if no other process exports this store: two would send everything twice."""
        path = self._path.with_name(f"{self._path.name}.export")
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(handle)

    def _close_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(sqlite3.Error):
                store.close()


def _load(store: SpanStore, endpoint: Endpoint) -> _Cursor:
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
    _save(store, endpoint, cursor)
    return cursor


def _save(
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


def _origins(store: SpanStore, spans: list[StoredSpan]) -> dict[int, Origin]:
    from bdh_otel.otlp import Origin

    numbers = {span.resource for span in spans}
    rows = store.connection.execute(
        "SELECT id, attributes, scope FROM resources WHERE id IN (SELECT value FROM json_each(?))",
        (json.dumps(sorted(numbers)),),
    )
    return {row["id"]: Origin(json.loads(row["attributes"]), row["scope"]) for row in rows}


def _waiting(store: SpanStore, seq: int) -> int:
    """Ended spans after ``seq``: exact up to a bound, since counting reads them."""
    bound = 20 * BATCH
    counted = store.connection.execute(
        "SELECT count(*) FROM (SELECT 1 FROM spans WHERE seq > ? AND end_ns IS NOT NULL LIMIT ?)",
        (seq, bound),
    ).fetchone()[0]
    if counted < bound:
        return int(counted)
    return int(store.connection.execute("SELECT max(seq) FROM spans").fetchone()[0]) - seq


def _described(error: Exception) -> str:
    """A store's own sentence; else the class only, since a message may quote what was sent."""
    return str(error) if isinstance(error, database.StoreError) else type(error).__name__
