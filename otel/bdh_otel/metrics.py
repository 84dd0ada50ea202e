"""The metrics of one home: running totals in a small file of their own.

The totals go on over the lives of many workers. What has been tallied of the span store is
noted in the same transaction as the totals themselves, so that no span counts twice or is left
out, whoever does the tallying. The file belongs to no hot path: agents never open it.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bdh_otel import attributes as attr
from bdh_otel import database
from bdh_otel import instruments as metric
from bdh_otel.instruments import Instrument
from bdh_otel.reader import SpanReader
from bdh_otel.tally import Observation, observations

_BATCH = 1_000
#: Series of one instrument; what would be one more counts for a series without attributes.
MAX_SERIES = 1_000


@dataclass(frozen=True, slots=True)
class Series:
    """One instrument with one set of attributes.

    ``value`` is the total of a counter or what a gauge shows. Of a histogram it is the sum, and
    ``buckets`` counts the values up to each bound (one more bucket than bounds); ``low`` and
    ``high`` are its extremes.
    """

    instrument: Instrument
    attributes: Mapping[str, attr.Value]
    value: float
    buckets: tuple[int, ...] = ()
    low: float | None = None
    high: float | None = None

    @property
    def count(self) -> int:
        """How many values a histogram holds."""
        return sum(self.buckets)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All series at one moment; times in Unix nanoseconds. ``instance`` names the home's totals
    as long as their file exists."""

    instance: str
    start_ns: int
    time_ns: int
    series: tuple[Series, ...]


def _version_1(connection: sqlite3.Connection) -> None:
    connection.execute(
        "CREATE TABLE series (name TEXT NOT NULL, attributes TEXT NOT NULL, value REAL NOT NULL,"
        " buckets TEXT, low REAL, high REAL, PRIMARY KEY (name, attributes)) WITHOUT ROWID"
    )
    connection.execute(
        "CREATE TABLE tallied (instance TEXT NOT NULL, start_ns INTEGER NOT NULL,"
        " seq INTEGER NOT NULL, span_id TEXT NOT NULL)"
    )
    connection.execute(
        "INSERT INTO tallied VALUES (?, ?, 0, '')", (str(uuid.uuid4()), time.time_ns())
    )
    # Of each process, how many of its lost spans are in the total already.
    connection.execute("CREATE TABLE lost (process TEXT PRIMARY KEY, dropped INTEGER NOT NULL)")
    # Delta temporality: what each backend has been told so far.
    connection.execute(
        "CREATE TABLE told (endpoint TEXT PRIMARY KEY, time_ns INTEGER NOT NULL,"
        " series TEXT NOT NULL)"
    )


SCHEMA = database.Schema("metric store", 0x4244484D, (_version_1,))


class MetricStore:
    """The totals in the file at ``path``. Thread-safe.

    Raises: :class:`bdh_otel.database.StoreError` from every method.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._connection = database.connect(path, SCHEMA)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def tally(self, spans: SpanReader, deadline: float | None = None) -> bool:
        """Add what is new in the span store; False if ``deadline`` (``time.monotonic()``) passed
        first. Raises FileNotFoundError while there is no span store."""
        while True:
            with self._transaction() as connection:
                seq = self._position(connection, spans)
                fresh = spans.after(seq, limit=_BATCH, ended=True)
                batch = _Batch(connection)
                for span in fresh:
                    for observation in observations(span):
                        batch.add(observation)
                if fresh:
                    connection.execute(
                        "UPDATE tallied SET seq = ?, span_id = ?",
                        (fresh[-1].seq, fresh[-1].span_id),
                    )
                else:
                    self._add_lost(connection, spans, batch)
                batch.write()
            if not fresh:
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False

    def show(self, instrument: Instrument, values: Iterable[tuple[dict[str, Any], float]]) -> None:
        """What a gauge, or a counter that is kept elsewhere, shows now; its other series show 0."""
        with self._transaction() as connection:
            connection.execute("UPDATE series SET value = 0 WHERE name = ?", (instrument.name,))
            for attributes, value in values:
                connection.execute(
                    "INSERT INTO series (name, attributes, value) VALUES (?1, ?2, ?3)"
                    " ON CONFLICT (name, attributes) DO UPDATE SET value = value + ?3",
                    (instrument.name, _key(attributes), value),
                )

    def snapshot(self) -> Snapshot:
        with self._transaction() as connection:
            instance, start_ns = connection.execute(
                "SELECT instance, start_ns FROM tallied"
            ).fetchone()
            rows = connection.execute("SELECT * FROM series ORDER BY name, attributes").fetchall()
        return Snapshot(instance, start_ns, time.time_ns(), tuple(_series(rows)))

    def position(self) -> int:
        """Sequence number of the span that was tallied last."""
        with self._transaction() as connection:
            return int(connection.execute("SELECT seq FROM tallied").fetchone()[0])

    def told(self, endpoint: str) -> Snapshot | None:
        """What a backend that wants differences has been told last."""
        with self._transaction() as connection:
            row = connection.execute(
                "SELECT time_ns, series FROM told WHERE endpoint = ?", (endpoint,)
            ).fetchone()
        if row is None:
            return None
        return Snapshot("", 0, row["time_ns"], tuple(_series(json.loads(row["series"]))))

    def note_told(self, endpoint: str, snapshot: Snapshot) -> None:
        rows = [
            {
                "name": one.instrument.name,
                "attributes": _key(one.attributes),
                "value": one.value,
                "buckets": json.dumps(one.buckets) if one.buckets else None,
                "low": one.low,
                "high": one.high,
            }
            for one in snapshot.series
        ]
        with self._transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO told VALUES (?, ?, ?)",
                (endpoint, snapshot.time_ns, json.dumps(rows)),
            )

    def _position(self, connection: sqlite3.Connection, spans: SpanReader) -> int:
        """Where the tally stands; the beginning, if the span store is another one by now."""
        seq, span_id = connection.execute("SELECT seq, span_id FROM tallied").fetchone()
        if not seq:
            return 0
        there = spans.rows("SELECT span_id FROM spans WHERE seq = ?", (seq,))
        if spans.last_seq() < seq or (there and there[0][0] != span_id):
            return 0
        return int(seq)

    def _add_lost(self, connection: sqlite3.Connection, spans: SpanReader, batch: _Batch) -> None:
        for row in spans.rows("SELECT instance, dropped FROM resources WHERE dropped > 0"):
            known = connection.execute(
                "SELECT dropped FROM lost WHERE process = ?", (row["instance"],)
            ).fetchone()
            more = row["dropped"] - (known[0] if known else 0)
            if more > 0:
                batch.add(Observation(metric.SPANS_DROPPED, {}, float(more)))
                connection.execute(
                    "INSERT OR REPLACE INTO lost VALUES (?, ?)", (row["instance"], row["dropped"])
                )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                with database.transaction(self._connection) as connection:
                    yield connection
            except sqlite3.Error as error:
                raise database.classify(self.path, error) from error


@dataclass(slots=True)
class _Total:
    value: float = 0.0
    buckets: list[int] | None = None
    low: float | None = None
    high: float | None = None


class _Batch:
    """Observations of one transaction, put together before they are written."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._totals: dict[tuple[str, str], _Total] = {}

    def add(self, observed: Observation) -> None:
        instrument, attributes, value = observed
        total = self._total(instrument, attributes)
        total.value += value
        if instrument.bounds:
            total.buckets = total.buckets or [0] * (len(instrument.bounds) + 1)
            total.buckets[bisect.bisect_left(instrument.bounds, value)] += 1
            total.low = value if total.low is None else min(total.low, value)
            total.high = value if total.high is None else max(total.high, value)

    def write(self) -> None:
        self._connection.executemany(
            "INSERT OR REPLACE INTO series VALUES (?, ?, ?, ?, ?, ?)",
            [
                (
                    name,
                    key,
                    one.value,
                    json.dumps(one.buckets) if one.buckets else None,
                    one.low,
                    one.high,
                )
                for (name, key), one in self._totals.items()
            ],
        )

    def _total(self, instrument: Instrument, attributes: Mapping[str, Any]) -> _Total:
        place = (instrument.name, _key(attributes))
        if (total := self._totals.get(place)) is not None:
            return total
        row = self._connection.execute(
            "SELECT value, buckets, low, high FROM series WHERE name = ? AND attributes = ?", place
        ).fetchone()
        if row is not None:
            buckets = json.loads(row["buckets"]) if row["buckets"] else None
            total = _Total(row["value"], buckets, row["low"], row["high"])
        elif attributes and self._crowded(instrument):
            return self._total(instrument, {})
        else:
            total = _Total()
        self._totals[place] = total
        return total

    def _crowded(self, instrument: Instrument) -> bool:
        stored = self._connection.execute(
            "SELECT count(*) FROM series WHERE name = ?", (instrument.name,)
        ).fetchone()[0]
        pending = sum(name == instrument.name for name, _ in self._totals)
        return int(stored) + pending >= MAX_SERIES


def _key(attributes: Mapping[str, Any]) -> str:
    return json.dumps(dict(attributes), sort_keys=True, ensure_ascii=False)


def _series(rows: Iterable[Any]) -> Iterable[Series]:
    for row in rows:
        instrument = metric.TABLE.get(row["name"])
        if instrument is not None:  # else of a version that knew another one
            yield Series(
                instrument,
                json.loads(row["attributes"]),
                row["value"],
                tuple(json.loads(row["buckets"] or "[]")),
                row["low"],
                row["high"],
            )
