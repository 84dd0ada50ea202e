"""Accepting: on disk or refused, within its time, whatever state the file is in."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import stat
import threading
import time
from pathlib import Path

import pytest

from bdh_bridge.outbox.store import Accepted, NewWrite, Outbox, Refused, Spooled, State
from bdh_otel.database import LooseMode, StoreError
from tests.support.outbox import accept, new_write, open_outbox, queue_of, upkeep_of

ROOT = os.geteuid() == 0


@pytest.fixture
def outbox(tmp_path) -> Outbox:
    return open_outbox(tmp_path)


def spool_files(outbox: Outbox) -> list[Path]:
    return sorted(outbox.spool.directory.glob("*.json"))


def test_an_accepted_write_is_committed_with_all_it_needs(outbox, tmp_path):
    write = new_write("Where is the relay?", vault_id="alpine")
    result = outbox.accept(write)
    assert isinstance(result, Accepted)
    other = sqlite3.connect(outbox.path)
    other.row_factory = sqlite3.Row
    row = other.execute("SELECT * FROM writes").fetchone()
    other.close()
    assert row["id"] == result.id
    assert row["state"] == "pending"
    for name in ("query", "user_prompt", "source", "destination", "vault_id", "traceparent"):
        assert row[name] == getattr(write, name)
    assert row["session_id"] == "session-1"
    assert row["created_at"] == pytest.approx(write.created_ns / 1e9)


def test_files_are_the_owners_alone_and_commits_are_full(outbox):
    accept(outbox)
    assert stat.S_IMODE(outbox.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(outbox.path.parent.stat().st_mode) == 0o700
    with outbox.handle.use(1) as connection:
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_stats_count_rows_bytes_and_age(outbox):
    for _ in range(3):
        accept(outbox, "abc", user_prompt="de")
    stats = outbox.stats()
    assert stats.by_state == {State.PENDING: 3}
    assert (stats.open_rows, stats.bytes, stats.spooled) == (3, 15, 0)
    assert stats.oldest_pending_age is not None
    assert stats.oldest_pending_age >= 0


def test_over_the_row_bound_the_newest_is_refused_and_nothing_dropped(tmp_path, caplog):
    outbox = open_outbox(tmp_path, max_rows=2)
    with caplog.at_level(logging.WARNING):
        results = [outbox.accept(new_write(f"q{i}")) for i in range(4)]
    assert [type(result) for result in results] == [Accepted, Accepted, Refused, Refused]
    assert isinstance(results[2], Refused)
    assert results[2].reason == "too_many_rows"
    assert outbox.stats().open_rows == 2
    assert len([r for r in caplog.records if "was not kept" in r.message]) == 1


def test_over_the_byte_bound_the_newest_is_refused(tmp_path):
    outbox = open_outbox(tmp_path, max_bytes=1_000)
    accept(outbox, user_prompt="x" * 2_000)
    result = outbox.accept(new_write())
    assert isinstance(result, Refused)
    assert result.reason == "too_many_bytes"


def test_a_locked_database_costs_a_bounded_wait_and_a_spool_file(outbox):
    accept(outbox, "first")
    blocker = sqlite3.connect(outbox.path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    started = time.monotonic()
    result = outbox.accept(new_write("second"))
    waited = time.monotonic() - started
    blocker.execute("ROLLBACK")
    blocker.close()
    assert isinstance(result, Spooled)
    assert 0.1 < waited < 5
    [path] = spool_files(outbox)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

    assert outbox.has_work("http://127.0.0.1:9")
    assert upkeep_of(outbox).take_in_spool() == 1
    assert spool_files(outbox) == []
    writes = [queue_of(outbox).next_write("http://127.0.0.1:9")]
    assert [write and write.query for write in writes] == ["first"]
    assert outbox.stats().by_state == {State.PENDING: 2}


def test_another_thread_that_holds_the_connection_costs_no_more(outbox):
    accept(outbox)
    with outbox.handle.use(1):
        result: list[object] = []
        thread = threading.Thread(target=lambda: result.append(outbox.accept(new_write())))
        thread.start()
        thread.join(20)
    assert [type(each) for each in result] == [Spooled]


def test_taking_in_twice_inserts_once(outbox):
    with outbox.handle.use(1):
        spooled = []
        thread = threading.Thread(target=lambda: spooled.append(outbox.accept(new_write())))
        thread.start()
        thread.join(20)
    [path] = spool_files(outbox)
    content = path.read_bytes()
    assert upkeep_of(outbox).take_in_spool() == 1
    # As if the process had died between the commit and the removal.
    path.write_bytes(content)
    assert upkeep_of(outbox).take_in_spool() == 1
    assert outbox.stats().by_state == {State.PENDING: 1}


def test_a_spool_file_that_makes_no_sense_is_kept_aside(outbox):
    outbox.spool.directory.mkdir(parents=True)
    bad = {
        "1.json": b"{",
        "2.json": b"[]",
        "3.json": json.dumps({"id": "x", "accepted_at": 1, "write": {"query": 3}}).encode(),
        "4.json": b"\xff",
    }
    for name, content in bad.items():
        (outbox.spool.directory / name).write_bytes(content)
    (outbox.spool.directory / "5.json").symlink_to("/etc/passwd")
    assert upkeep_of(outbox).take_in_spool() == 0
    kept = {path.name for path in outbox.spool.directory.iterdir()}
    assert {f"{number}.unreadable" for number in range(1, 5)} <= kept
    assert outbox.stats().by_state == {}


def test_a_full_database_spools_and_recovers(outbox):
    accept(outbox, "small", user_prompt="")
    with outbox.handle.use(1) as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages}")
    result = outbox.accept(new_write(user_prompt="x" * 50_000))
    assert isinstance(result, Spooled)
    assert "free some disk space" in result.detail
    with outbox.handle.use(1) as connection:
        connection.execute("PRAGMA max_page_count=1000000")
    assert upkeep_of(outbox).take_in_spool() == 1
    assert outbox.stats().by_state == {State.PENDING: 2}


def test_with_no_place_at_all_the_write_is_refused_and_the_turn_goes_on(tmp_path, caplog):
    # A file where the folder should be: neither the database nor the spool can be made.
    (tmp_path / "bdh-bridge").write_text("")
    outbox = open_outbox(tmp_path)
    with caplog.at_level(logging.WARNING):
        result = outbox.accept(new_write())
    assert isinstance(result, Refused)
    assert result.reason == "unavailable"
    assert "bdh-bridge" in caplog.text


@pytest.mark.skipif(ROOT, reason="root may write anywhere")
def test_a_read_only_folder_refuses(tmp_path):
    directory = tmp_path / "bdh-bridge"
    directory.mkdir(mode=0o500)
    result = open_outbox(tmp_path).accept(new_write())
    assert isinstance(result, Refused)


def test_a_damaged_file_is_set_aside_never_deleted(outbox, caplog):
    accept(outbox, "precious")
    outbox.close()
    damaged = b"this is no database at all" * 400
    outbox.path.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        accept(outbox, "after")
    [kept] = outbox.path.parent.glob("outbox.sqlite3.corrupt-*")
    assert kept.read_bytes() == damaged
    assert outbox.stats().by_state == {State.PENDING: 1}
    assert "was damaged" in caplog.text
    assert str(kept) in caplog.text


def test_damage_found_in_the_middle_is_set_aside_as_well(outbox):
    for number in range(300):
        accept(outbox, f"q{number}")
    outbox.close()
    content = bytearray(outbox.path.read_bytes())
    content[4096 * 2 :] = b"\xa5" * (len(content) - 4096 * 2)
    outbox.path.write_bytes(content)
    accept(outbox, "after")
    assert len(list(outbox.path.parent.glob("outbox.sqlite3.corrupt-*"))) == 1
    assert outbox.stats().open_rows == 1


def test_two_processes_set_a_damaged_file_aside_once(outbox, tmp_path):
    accept(outbox)
    other = open_outbox(tmp_path)
    accept(other)
    outbox.close()
    other.close()
    outbox.path.write_bytes(b"x" * 10_000)
    results: list[object] = []
    threads = [
        threading.Thread(target=lambda box=box: results.append(box.accept(new_write())))
        for box in (outbox, other)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    kept = [p for p in outbox.path.parent.glob("outbox.sqlite3.corrupt-*") if p.stat().st_size]
    assert [p.read_bytes() for p in kept] == [b"x" * 10_000]
    upkeep_of(outbox).take_in_spool()
    assert all(isinstance(result, Accepted | Spooled) for result in results)
    assert outbox.stats().open_rows == 2


@pytest.mark.parametrize("replacement", ["removed", "replaced"])
def test_a_file_that_vanished_takes_no_rows_with_it(outbox, tmp_path, replacement):
    accept(outbox, "before")
    if replacement == "removed":
        for path in outbox.path.parent.glob("outbox.sqlite3*"):
            path.unlink()
    else:
        outbox.path.rename(outbox.path.with_name("moved"))
    accept(outbox, "after")
    other = open_outbox(tmp_path)
    assert other.stats().open_rows == 1


def test_a_file_that_others_may_read_is_refused_but_the_write_is_kept(outbox):
    accept(outbox)
    outbox.close()
    outbox.path.chmod(0o644)
    result = outbox.accept(new_write())
    assert isinstance(result, Spooled)
    assert "chmod 600" in result.detail
    with pytest.raises(LooseMode):
        outbox.stats()
    outbox.path.chmod(0o600)
    assert upkeep_of(outbox).take_in_spool() == 1


def test_a_foreign_database_is_refused_and_left_alone(outbox):
    outbox.path.parent.mkdir()
    foreign = sqlite3.connect(outbox.path)
    foreign.execute("CREATE TABLE theirs (x)")
    foreign.commit()
    foreign.close()
    outbox.path.chmod(0o600)
    before = outbox.path.read_bytes()
    assert isinstance(outbox.accept(new_write()), Spooled)
    with pytest.raises(StoreError, match="outbox file of the bridge"):
        outbox.stats()
    assert outbox.path.read_bytes() == before


def test_the_child_of_a_fork_has_a_connection_of_its_own(outbox):
    accept(outbox, "parent")
    child = os.fork()
    if child == 0:
        ok = isinstance(outbox.accept(new_write("child")), Accepted)
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    accept(outbox, "parent again")
    assert outbox.stats().open_rows == 3


def test_text_that_is_no_text_does_no_harm(outbox):
    accept(outbox, "lone \ud800 surrogate, nul \x00 and \U0001f4a1", user_prompt="\udfff")
    write = queue_of(outbox).next_write("http://127.0.0.1:9")
    assert write is not None
    assert write.query == "lone ? surrogate, nul \x00 and \U0001f4a1"


def test_many_threads_lose_nothing(outbox):
    def work(number: int) -> None:
        for i in range(20):
            assert isinstance(outbox.accept(new_write(f"{number}-{i}")), Accepted | Spooled)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    upkeep_of(outbox).take_in_spool()
    assert outbox.stats().open_rows == 120


def test_accept_never_raises(outbox):
    result = outbox.accept(NewWrite(query=3, user_prompt="", source="", destination=""))  # type: ignore[arg-type]
    assert isinstance(result, Refused | Spooled)


def test_a_newer_version_that_migrated_the_file_is_noticed(outbox):
    accept(outbox)
    assert outbox.is_current_schema()
    newer = sqlite3.connect(outbox.path)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    assert not outbox.is_current_schema()
