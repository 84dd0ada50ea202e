"""The core that the durable queues share: compare-and-set, counts, slices, on a real file."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bdh_otel import database, state_table
from bdh_otel.state_table import Sql, StateTable, drop_slice, new_token, storable

JOBS = StateTable("jobs", key="id", state="stage")
WAITS, RUNS, DONE = "waits", "runs", "done"


def _schema(connection: sqlite3.Connection) -> None:
    connection.execute(
        "CREATE TABLE jobs (id INTEGER PRIMARY KEY, stage TEXT NOT NULL, claim_token TEXT UNIQUE,"
        " updated_at REAL NOT NULL, attempts INTEGER NOT NULL DEFAULT 0, note TEXT) STRICT"
    )


SCHEMA = database.Schema("jobs", 0x4A4F4253, (_schema,))


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(database.connect(tmp_path / "jobs.sqlite3", SCHEMA)) as connection:
        connection.execute("INSERT INTO jobs (id, stage, updated_at) VALUES (1, 'waits', 1.0)")
        yield connection


def row(jobs: sqlite3.Connection) -> dict[str, object]:
    return dict(jobs.execute("SELECT * FROM jobs WHERE id = 1").fetchone())


def test_a_row_moves_from_the_states_that_are_expected_only(jobs: sqlite3.Connection) -> None:
    before = row(jobs)
    assert not JOBS.move(jobs, 1, {RUNS, DONE}, DONE, now=2.0, note="no")
    assert not JOBS.move(jobs, 1, set(), DONE, now=2.0)
    assert not JOBS.move(jobs, 2, {WAITS}, DONE, now=2.0)
    assert row(jobs) == before
    moved = JOBS.move(jobs, 1, {WAITS}, RUNS, now=2.0, note="'); --", attempts=Sql("attempts + 1"))
    assert moved
    assert row(jobs) | {"claim_token": None} == {
        "id": 1, "stage": RUNS, "claim_token": None, "updated_at": 2.0, "attempts": 1,
        "note": "'); --",
    }  # fmt: skip


def test_only_the_claim_that_holds_a_row_moves_it(jobs: sqlite3.Connection) -> None:
    mine, stolen = new_token(), new_token()
    assert mine != stolen
    assert JOBS.move(jobs, 1, {WAITS}, RUNS, now=2.0, claim_token=mine)
    assert not JOBS.move(jobs, 1, {RUNS}, DONE, now=3.0, token=stolen)
    assert not JOBS.move(jobs, 1, {RUNS}, DONE, now=3.0, token="")
    assert JOBS.move(jobs, 1, {RUNS}, DONE, now=3.0, token=mine, claim_token=None)
    assert row(jobs)["claim_token"] is None


def test_a_row_that_changed_since_it_was_seen_stays(jobs: sqlite3.Connection) -> None:
    assert JOBS.move(jobs, 1, {WAITS}, WAITS, now=2.0)
    assert not JOBS.move(jobs, 1, {WAITS}, DONE, now=3.0, seen=1.0)
    assert JOBS.move(jobs, 1, {WAITS}, DONE, now=3.0, seen=2.0)


def test_of_many_at_once_one_wins(jobs: sqlite3.Connection, tmp_path: Path) -> None:
    won: list[int] = []

    def claim(number: int) -> None:
        connection = database.connect(tmp_path / "jobs.sqlite3", SCHEMA, busy_timeout=60)
        with contextlib.closing(connection), database.transaction(connection):
            if JOBS.move(connection, 1, {WAITS}, RUNS, now=2.0, claim_token=new_token()):
                won.append(number)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(won) == 1


def test_counts_and_slices(jobs: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_table, "SLICE", 4)
    jobs.executemany(
        "INSERT INTO jobs (stage, updated_at) VALUES ('done', ?)", [(float(n),) for n in range(10)]
    )
    assert JOBS.counts(jobs) == {WAITS: 1, DONE: 10}
    dropped = [
        drop_slice(jobs, "jobs", "id", "stage = 'done' AND updated_at < ?", 6) for _ in range(3)
    ]
    assert dropped == [4, 2, 0]
    assert JOBS.counts(jobs) == {WAITS: 1, DONE: 4}


def test_half_surrogates_are_made_storable(jobs: sqlite3.Connection) -> None:
    assert JOBS.move(jobs, 1, {WAITS}, WAITS, now=2.0, note=storable("a\ud800b"))
    assert row(jobs)["note"] == "a?b"
