"""Stores, disk, outbox, worker and clock, each spoiled for real."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bdh_bridge import __version__
from bdh_bridge.operator.doctor import files
from bdh_bridge.worker.lock import WorkerLock
from bdh_otel import database, names
from bdh_otel.store import SCHEMA
from bdh_otel.tracer import Tracer
from tests.operator.conftest import Home
from tests.support.outbox import accept, open_outbox


def make_spans(home: Home) -> Path:
    tracer = Tracer(home.paths.spans, {})
    for _ in range(200):
        tracer.start_span(names.TURN).end()
    tracer.flush(10)
    tracer.shutdown()
    return home.paths.spans


def stores(home: Home) -> list[tuple[str, str, str]]:
    return home.doctor().checks("stores")


def test_files_and_folder_that_others_may_read(home: Home) -> None:
    path = make_spans(home)
    assert stores(home)[0][:1] == ("ok",)
    path.chmod(0o644)
    home.paths.directory.chmod(0o755)
    found = stores(home)
    assert [level for level, _, _ in found] == ["failed", "failed"]
    assert found[0][2] == f"run: chmod 700 {home.paths.directory}"
    assert found[1][2] == f"run: chmod 600 {path}"


def test_a_damaged_file(home: Home) -> None:
    path = make_spans(home)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(8192))
    [(level, text, mend)] = stores(home)
    assert (level, "damaged" in text) == ("failed", True)
    assert "move it away" in mend


def test_a_file_of_somebody_else_and_one_of_a_newer_version(home: Home) -> None:
    path = make_spans(home)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version={len(SCHEMA.migrations) + 1}")
    assert stores(home)[0][2] == "upgrade bdh-hermes-bridge"
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    path.chmod(0o600)
    assert "is not a span store file" in stores(home)[0][1]


def test_files_of_other_parts_are_looked_at_too(home: Home) -> None:
    make_spans(home)
    other = home.paths.directory / "other.sqlite3"
    with contextlib.closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.executemany("INSERT INTO t VALUES (?)", [("x" * 500,)] * 200)
        connection.commit()
    other.chmod(0o600)
    assert any(text.startswith("other.sqlite3") for _, text, _ in stores(home))
    other.chmod(0o640)
    assert stores(home)[-1][2] == f"run: chmod 600 {other}"
    other.chmod(0o600)
    other.write_bytes(other.read_bytes()[:4096] + os.urandom(60_000))
    assert (stores(home)[-1][0], "damaged" in stores(home)[-1][1]) == ("failed", True)


def test_a_file_that_was_set_aside(home: Home) -> None:
    aside = database.set_aside(make_spans(home))
    found = stores(home)
    assert any(level == "warning" and str(aside) in text for level, text, _ in found)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_folder_that_can_not_be_written_to(home: Home) -> None:
    make_spans(home)
    home.paths.directory.chmod(0o500)
    try:
        assert "can't be written to" in stores(home)[0][1]
    finally:
        home.paths.directory.chmod(0o700)


def _mounted(script: str, *arguments: str) -> subprocess.CompletedProcess[str] | None:
    """Run ``script`` where it may mount things; None where the system forbids that."""
    if shutil.which("unshare") is None:
        return None
    probe = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False)
    if probe.returncode:
        return None
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_folder_on_a_file_system_that_is_read_only(home: Home) -> None:
    """Root may write to every folder, but not there."""
    script = (
        'mount -t tmpfs none "$1" && mkdir -m 700 "$1/bdh-bridge" && mount -o remount,ro "$1" && '
        f'{sys.executable} -m bdh_bridge.cli --home "$1" doctor --json'
    )
    done = _mounted(script, str(home.path))
    if done is None or not done.stdout:
        pytest.skip("no file system can be mounted here")
    found = json.loads(done.stdout)["checks"]
    [check] = [c for c in found if c["name"] == "stores" and c["level"] == "failed"]
    assert "can't be written to by this user" in check["text"]


def test_a_disk_that_is_nearly_full(home: Home) -> None:
    doctor = f"{sys.executable} -m bdh_bridge.cli --home '$1' doctor --json".replace("'", '"')
    done = _mounted(f'mount -t tmpfs -o size=20m none "$1" && {doctor}', str(home.path))
    if done is None or not done.stdout:
        pytest.skip("no file system can be mounted here")
    assert re.search(r'"name": "disk", "level": "failed", "text": "20 MiB free', done.stdout)


def test_a_disk_that_gets_full(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "DISK_SCARCE", 1 << 62)
    assert home.doctor().checks("disk")[0][0] == "warning"
    monkeypatch.setattr(files, "DISK_FULL", 1 << 62)
    assert home.doctor().checks("disk")[0][0] == "failed"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="known on Linux only")
def test_stores_on_a_network_mount(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real mount table; only the kind of this machine's own disk is made a network one."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    kinds = frozenset(line.partition(" - ")[2].split(" ")[0] for line in mounts)
    monkeypatch.setattr(database, "_NETWORK_FILESYSTEMS", kinds)
    home.paths.directory.mkdir(mode=0o700)
    level, text, _ = home.doctor().checks("mount")[0]
    assert (level, "network file system" in text) == ("warning", True)


def set_states(home: Home, *states: str) -> None:
    outbox = open_outbox(home.path)
    for state in states:
        write_id = accept(outbox, state)
        if state != "pending":
            with contextlib.closing(sqlite3.connect(home.paths.outbox)) as connection:
                connection.execute("UPDATE writes SET state = ? WHERE id = ?", (state, write_id))
                connection.commit()
    outbox.close()


def test_an_outbox_that_needs_decisions(home: Home) -> None:
    set_states(home, "quarantined", "in_doubt", "failed", "pending", "delivered")
    found = home.doctor().checks("outbox")
    texts = " / ".join(text for level, text, _ in found if level == "warning")
    assert "1 quarantined" in texts
    assert "1 in doubt" in texts
    assert "1 failed" in texts
    assert found[-1][0] == "ok"


def test_an_outbox_that_is_full_waits_long_or_spools(home: Home) -> None:
    set_states(home, "pending", "pending")
    with contextlib.closing(sqlite3.connect(home.paths.outbox)) as connection:
        connection.execute("UPDATE writes SET accepted_at = accepted_at - 7300")
        connection.commit()
    level, text, _ = home.doctor().checks("outbox")[-1]
    assert (level, "2 wait, the oldest for 2.0 h" in text) == ("warning", True)
    home.set(BDH_OUTBOX_MAX_ROWS="2")
    assert home.doctor().checks("outbox")[-1][0] == "failed"
    with contextlib.closing(sqlite3.connect(home.paths.outbox)) as connection:
        connection.execute("BEGIN IMMEDIATE")  # another process holds the lock for too long
        from bdh_bridge.outbox.store import Outbox, Spooled
        from tests.support.outbox import new_write

        outbox = Outbox(home.paths.outbox, spool=home.paths.outbox_spool)
        assert isinstance(outbox.accept(new_write()), Spooled)
        outbox.close()
    assert any("in spool files" in text for _, text, _ in home.doctor().checks("outbox"))


def test_the_worker(home: Home) -> None:
    set_states(home, "pending")
    assert "not running, and 1 write waits" in home.doctor().checks("worker")[0][1]
    home.set(BDH_WORKER="off")
    assert "BDH_WORKER=off" in home.doctor().checks("worker")[0][1]
    lock = WorkerLock(home.paths.worker_lock)
    assert lock.acquire(wait=1, version="0.9.0", mode="process")
    try:
        level, text, mend = home.doctor().checks("worker")[0]
        assert (level, "version 0.9.0" in text) == ("warning", True)
        assert "worker stop" in mend
    finally:
        lock.release()
    assert lock.acquire(wait=1, version=__version__, mode="process")
    try:
        assert home.doctor().checks("worker")[0][:2] == ("ok", f"runs, pid {os.getpid()}")
    finally:
        lock.release()
    home.paths.worker_lock.unlink()
    home.paths.worker_lock.symlink_to("/dev/null")
    assert home.doctor().checks("worker")[0][0] == "failed"


def test_an_outbox_that_can_not_be_read_is_not_called_empty(home: Home) -> None:
    set_states(home, "pending")
    home.paths.outbox.chmod(0o644)
    done = home.doctor()
    assert done.checks("outbox")[0][:2] == ("failed", "it can't be read")
    assert "chmod 600" in next(mend for level, _, mend in done.checks("stores") if level != "ok")
    assert "nothing waits" not in done.checks("worker")[0][1]


def test_a_clock_that_was_set_back(home: Home) -> None:
    path = make_spans(home)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        ahead = time.time_ns() + 86_400 * 10**9
        connection.execute("UPDATE spans SET start_ns = ?", (ahead,))
        connection.commit()
    level, text, _ = home.doctor().checks("clock")[0]
    assert (level, "set back" in text) == ("warning", True)


def test_a_check_that_breaks_off_is_a_line_and_not_the_end(home: Home) -> None:
    home.paths.directory.parent.mkdir(exist_ok=True)
    home.paths.directory.write_text("a file where the folder belongs")
    done = home.doctor()
    assert done.status == 2
    assert done.checks("clock")
    assert "Traceback" not in done.err
