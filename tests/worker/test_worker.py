"""The worker as a process: started once, woken, stopped, killed, and never in anyone's way."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bdh_bridge.outbox.store import Spooled
from bdh_bridge.worker import launch
from bdh_bridge.worker.launch import LaunchOutcome, ensure_worker, worker_command
from bdh_bridge.worker.lock import WorkerLock, is_held, read_holder
from bdh_bridge.worker.service import Worker
from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.database import StoreError
from bdh_otel.reader import SpanReader, StoredSpan
from tests.support import faulty_graph as behave
from tests.support.faulty_graph import FaultyGraph
from tests.support.outbox import TRACEPARENT, new_write, wait_until
from tests.worker.conftest import Home, clean_environ

TRACE_ID = TRACEPARENT.split("-")[1]
MakeHome = Callable[..., Home]


@pytest.fixture
def graph() -> Iterator[FaultyGraph]:
    with FaultyGraph(behave.learns) as running:
        yield running


@pytest.fixture
def home(make_home: MakeHome, graph) -> Home:
    return make_home(BDH_API_URL=graph.url)


@pytest.fixture(autouse=True)
def _no_memory_of_other_tests():
    launch._started_at.clear()
    launch._warned.clear()


def deliver_spans(home: Home) -> list[StoredSpan]:
    """The deliveries that are in the span store by now."""
    reader = SpanReader(home.paths.spans)
    try:
        return [span for span in reader.after(0, 1_000) if span.name == names.DELIVER]
    except (FileNotFoundError, StoreError):  # the worker is just making it
        return []
    finally:
        reader.close()


def test_writes_are_delivered_in_order_by_a_process_of_its_own(home, graph):
    for number in range(20):
        home.accept(f"q{number}")
    assert ensure_worker(home.loaded()).outcome is LaunchOutcome.STARTED
    wait_until(home.settled)
    assert [request.json["query"] for request in graph.requests] == [f"q{n}" for n in range(20)]
    assert home.count("delivered") == 20
    pid = home.worker_pid()
    assert pid not in (None, os.getpid())


def test_a_running_worker_is_woken_by_the_next_write(home, graph):
    home.accept("first")
    ensure_worker(home.loaded())
    wait_until(lambda: home.count("delivered") == 1)
    pid = home.worker_pid()
    home.accept("second")
    assert ensure_worker(home.loaded()).outcome is LaunchOutcome.ALREADY_RUNNING
    wait_until(lambda: home.count("delivered") == 2)
    assert home.worker_pid() == pid


def test_nothing_to_do_starts_nothing(home):
    assert ensure_worker(home.loaded()).outcome is LaunchOutcome.NOT_NEEDED
    home.accept("elsewhere", destination="http://127.0.0.1:1")
    assert ensure_worker(home.loaded()).outcome is LaunchOutcome.NOT_NEEDED
    assert not is_held(home.paths.worker_lock)


def test_switched_off_starts_nothing_and_delivers_by_hand(home, graph):
    home.set(BDH_WORKER="off")
    home.accept()
    assert ensure_worker(home.loaded()).outcome is LaunchOutcome.DISABLED
    done = home.run("outbox", "deliver")
    assert (done.status, done.out) == (0, "1 delivered\n")
    assert sum(graph.learned.values()) == 1


def test_a_worker_that_can_not_be_started_says_once_what_to_do(home, monkeypatch, caplog):
    home.accept()
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            launch._started_at.clear()
            assert ensure_worker(home.loaded()).outcome is LaunchOutcome.FAILED
    assert caplog.text.count("bdh-bridge outbox deliver") == 1
    assert home.count("pending") == 1


def test_ten_starts_at_one_moment_make_one_worker(home, graph):
    for number in range(10):
        home.accept(f"q{number}")
    processes = [
        subprocess.Popen(worker_command(home.path), env=clean_environ()) for _ in range(10)
    ]
    for process in processes:
        process.wait(60)
    wait_until(home.settled)
    assert sorted(graph.learned.items()) == sorted((f"q{n}", 1) for n in range(10))
    assert home.log().count("started") == 1


class _LastMomentLock(WorkerLock):
    """A host commits a row when the worker has just found nothing to do, and still holds the lock:
    the host sees a worker that runs, and starts none."""

    def __init__(self, path: Path, commit: Callable[[], object]) -> None:
        super().__init__(path)
        self._commit: Callable[[], object] | None = commit

    def release(self) -> None:
        commit, self._commit = self._commit, None
        if commit is not None:
            commit()
        super().release()


def test_no_row_falls_between_a_worker_that_ends_and_the_next(home, graph):
    def commit() -> None:
        home.accept("at the last moment")
        assert ensure_worker(home.loaded()).outcome is LaunchOutcome.ALREADY_RUNNING

    lock = _LastMomentLock(home.paths.worker_lock, commit)
    home.accept("first")
    assert lock.acquire(wait=0, version="1", mode="command")
    Worker(home.loaded(), lock, mode="command", linger=0.0).run()
    assert graph.learned == {"first": 1, "at the last moment": 1}
    assert not is_held(home.paths.worker_lock)


def test_it_is_detached_and_its_environment_is_minimal(home, graph):
    # Environment and process group are visible in /proc only.
    if not Path("/proc/self/environ").exists():
        pytest.skip("no /proc here")
    host = f"""
import os, sys
from pathlib import Path
from bdh_bridge.settings import load
from bdh_bridge.worker.launch import ensure_worker
print(ensure_worker(load(Path({str(home.path)!r}))).outcome)
"""
    home.accept()
    environ = clean_environ({"SOME_SECRET": "hunter2", "BDH_API_TOKEN": "t", "LC_ALL": "C.UTF-8"})
    out = subprocess.check_output([sys.executable, "-c", host], env=environ, text=True)
    assert out.strip() == "started"
    wait_until(home.settled)
    pid = home.worker_pid()
    assert pid is not None
    seen = dict(
        entry.split("=", 1)
        for entry in Path(f"/proc/{pid}/environ").read_text().split("\0")
        if entry
    )
    assert "SOME_SECRET" not in seen
    assert seen["BDH_API_TOKEN"] == "t"
    assert seen["LC_ALL"] == "C.UTF-8"
    assert os.getsid(pid) == pid
    assert str(Path(f"/proc/{pid}/cwd").readlink()) == "/"
    assert {str(Path(f"/proc/{pid}/fd/{n}").readlink()) for n in (0, 1, 2)} == {"/dev/null"}
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    assert int(stat[1]) not in (os.getpid(),)  # its parent is not the host
    assert int(stat[4]) == 0  # no terminal


def test_starting_leaves_no_zombie(home):
    home.accept()
    before = set(_children())
    assert ensure_worker(home.loaded()).outcome is LaunchOutcome.STARTED
    wait_until(lambda: not set(_children()) - before)
    wait_until(home.settled)


def _children() -> list[int]:
    out = subprocess.run(["ps", "-eo", "pid=,ppid=,comm="], capture_output=True, text=True).stdout
    rows = (line.split(None, 2) for line in out.splitlines())
    return [int(p) for p, parent, name in rows if int(parent) == os.getpid() and name != "ps"]


def test_sigterm_lets_the_request_in_flight_finish(home, graph):
    go_on = threading.Event()

    def slow(server: FaultyGraph, connection) -> None:
        request = behave.read_request(connection)
        server.requests.append(request)
        go_on.wait(60)
        connection.sendall(server.learn(request))

    home.set(BDH_WRITE_TIMEOUT="60")
    graph.behave = slow
    home.accept("in flight")
    home.accept("not begun")
    ensure_worker(home.loaded())
    wait_until(lambda: len(graph.requests) == 1)
    pid = home.worker_pid()
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    time.sleep(0.3)
    assert is_held(home.paths.worker_lock)
    go_on.set()
    wait_until(lambda: not is_held(home.paths.worker_lock))
    assert (home.count("delivered"), home.count("pending")) == (1, 1)
    assert len(graph.requests) == 1


def test_after_kill_in_mid_request_the_write_is_quarantined_not_repeated(home, graph):
    home.set(BDH_WRITE_TIMEOUT="60")
    graph.behave = behave.learns_and_hangs
    home.accept("doubtful")
    home.accept("next")
    ensure_worker(home.loaded())
    wait_until(lambda: len(graph.requests) == 1)
    home.end_worker()
    graph.behave = behave.learns
    launch._started_at.clear()
    assert ensure_worker(home.loaded()).outcome is LaunchOutcome.STARTED
    wait_until(home.settled)
    assert (home.count("quarantined"), home.count("delivered")) == (1, 1)
    assert graph.learned == {"doubtful": 1, "next": 1}
    wait_until(lambda: len(deliver_spans(home)) == 2)
    [died] = [span for span in deliver_spans(home) if span.failed]
    assert died.trace_id == TRACE_ID
    assert died.attributes[attr.DELIVERY_STATE] == "quarantined"
    assert died.attributes[attr.ERROR_TYPE] == "worker_died"


def test_after_kill_in_mid_request_a_server_with_keys_settles_it(make_home):
    with FaultyGraph(behave.learns_and_hangs, keys=True) as graph:
        home = make_home(BDH_API_URL=graph.url, BDH_WRITE_TIMEOUT="60")
        home.accept("doubtful")
        ensure_worker(home.loaded())
        wait_until(lambda: len(graph.requests) == 1)
        home.end_worker()
        graph.behave = behave.learns
        launch._started_at.clear()
        ensure_worker(home.loaded())
        wait_until(lambda: home.count("delivered") == 1)
        assert graph.learned == {"doubtful": 1}
        assert len({request.headers["idempotency-key"] for request in graph.requests}) == 1


def test_another_instance_is_not_asked_about_an_old_doubt(make_home):
    with FaultyGraph(behave.learns_and_closes, keys=True) as graph:
        home = make_home(BDH_API_URL=graph.url)
        home.accept("doubtful")
        ensure_worker(home.loaded())
        wait_until(lambda: home.count("in_doubt") == 1)
        graph.restart(same_instance=False)
        graph.behave = behave.learns
        wait_until(lambda: home.count("quarantined") == 1)
        assert graph.learned == {"doubtful": 1}


def test_a_server_that_comes_back_gets_everything(home, graph):
    graph.go_down()
    for number in range(5):
        home.accept(f"q{number}")
    ensure_worker(home.loaded())
    wait_until(lambda: "refused" in json.dumps(home.run("outbox", "list", "--json").json))
    graph.start()
    wait_until(home.settled)
    assert graph.learned == {f"q{n}": 1 for n in range(5)}


def test_a_spooled_write_is_taken_in_and_delivered(home, graph):
    with home.outbox.handle.use(1):
        results: list[object] = []
        write = new_write("spooled", destination=graph.url)
        thread = threading.Thread(target=lambda: results.append(home.outbox.accept(write)))
        thread.start()
        thread.join(20)
    assert isinstance(results[0], Spooled)
    assert ensure_worker(home.loaded()).outcome is LaunchOutcome.STARTED
    wait_until(lambda: graph.learned == {"spooled": 1})


def test_a_new_token_in_the_homes_file_counts_at_once(home, graph):
    home.set(BDH_API_TOKEN="first")
    home.accept()
    ensure_worker(home.loaded())
    wait_until(home.settled)
    home.set(BDH_API_TOKEN="second")
    home.accept()
    ensure_worker(home.loaded())
    wait_until(lambda: len(graph.requests) == 2)
    tokens = [request.headers["authorization"] for request in graph.requests]
    assert tokens == ["Bearer first", "Bearer second"]


def test_a_delivery_is_a_span_of_the_turns_trace(home, graph):
    write_id = home.accept(vault_id="alpine")
    ensure_worker(home.loaded())
    wait_until(lambda: bool(deliver_spans(home)))
    [stored] = deliver_spans(home)
    assert (stored.trace_id, stored.parent_id) == (TRACE_ID, TRACEPARENT.split("-")[2])
    span = stored.attributes
    assert span[attr.WRITE_ID] == write_id
    assert span[attr.DELIVERY_OUTCOME] == "delivered"
    assert span[attr.DELIVERY_ATTEMPT] == 1
    assert span[attr.DELIVERY_NEW_CONCEPTS] == 1
    assert span[attr.DELIVERY_HEBBIAN_UPDATES] == 2
    assert span[attr.CONVERSATION_ID] == "session-1"
    assert span[attr.TURN_ID] == "turn-1"


def test_a_late_delivery_is_linked_instead(home, graph):
    home.accept()
    with home.outbox.handle.use(1) as connection:
        connection.execute("UPDATE writes SET created_at = created_at - 1000")
    ensure_worker(home.loaded())
    wait_until(home.settled)

    wait_until(lambda: bool(deliver_spans(home)))
    [span] = deliver_spans(home)
    assert span.trace_id != TRACE_ID
    assert [link.trace_id for link in span.links] == [TRACE_ID]


def test_a_damaged_outbox_does_not_stop_a_running_worker(home, graph):
    home.accept("before")
    ensure_worker(home.loaded())
    wait_until(home.settled)
    pid = home.worker_pid()
    home.outbox.close()
    for path in (home.paths.outbox, home.paths.outbox.with_name("outbox.sqlite3-wal")):
        path.write_bytes(b"nonsense" * 20_000)
    home.accept("after")
    ensure_worker(home.loaded())
    wait_until(lambda: graph.learned["after"] == 1)
    assert home.worker_pid() == pid
    kept = [p.name for p in home.paths.directory.glob("outbox.sqlite3.corrupt-*")]
    assert len([name for name in kept if not name.endswith(("-wal", "-shm"))]) == 1


def test_as_a_thread_it_has_the_same_states(home, graph):
    home.set(BDH_WORKER="thread")
    home.accept()
    assert ensure_worker(home.loaded()).outcome is LaunchOutcome.STARTED
    wait_until(home.settled)
    holder = read_holder(home.paths.worker_lock)
    assert holder is not None
    assert (holder.pid, holder.mode) == (os.getpid(), "thread")
    assert ensure_worker(home.loaded()).outcome is LaunchOutcome.ALREADY_RUNNING
    done = home.run("worker", "stop")
    assert done.status == 2
    assert "thread" in done.err
    # Its lock file is what it lives by: without it, it ends.
    home.paths.worker_lock.unlink()
    home.accept("once more")
    wait_until(
        lambda: not any(t.name == "bdh-bridge-worker" for t in threading.enumerate()), seconds=60
    )


def test_under_a_systemd_unit_it_asks_for_a_scope_of_its_own(home, graph, tmp_path):
    # No user manager runs where tests run, so a stand-in on the PATH notes how it was called.
    stand_in = tmp_path / "bin" / "systemd-run"
    stand_in.parent.mkdir()
    stand_in.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/called\n'
        'while [ "$1" != "--" ]; do shift; done; shift; exec "$@"\n'
    )
    stand_in.chmod(0o700)
    home.accept()
    environ = clean_environ()
    environ |= {"INVOCATION_ID": "x", "PATH": f"{stand_in.parent}:{environ['PATH']}"}
    subprocess.run(worker_command(home.path), env=environ, check=True, timeout=60)
    wait_until(home.settled)
    called = (tmp_path / "called").read_text()
    assert called.startswith("--user --scope ")
    assert "--in-scope" in called


def test_without_a_user_manager_it_runs_all_the_same(home, graph, tmp_path):
    environ = clean_environ({"INVOCATION_ID": "x"})
    environ.pop("XDG_RUNTIME_DIR", None)
    environ.pop("DBUS_SESSION_BUS_ADDRESS", None)
    home.accept()
    subprocess.run(worker_command(home.path), env=environ, check=True, timeout=60)
    wait_until(home.settled)
    assert sum(graph.learned.values()) == 1


def test_from_a_checkout_it_needs_no_installed_package(home, graph, tmp_path):
    """As in a cloned plugin: the folders are linked elsewhere, and nothing else is importable."""
    root = Path(launch.__file__).resolve().parents[2]
    clone = tmp_path / "clone"
    clone.mkdir()
    import shutil

    for package in ("bdh_bridge", "otel/bdh_otel"):
        shutil.copytree(
            root / package, clone / package, ignore=shutil.ignore_patterns("__pycache__", "data")
        )
    home.accept()
    command = [sys.executable, "-P", str(clone / "bdh_bridge/worker/main.py")]
    subprocess.run(
        [*command, "--home", str(home.path)], env=clean_environ(), check=True, timeout=60
    )
    wait_until(home.settled)
    pid = home.worker_pid()
    if Path("/proc").exists():
        assert str(clone) in Path(f"/proc/{pid}/cmdline").read_text()


def test_a_home_that_is_gone_is_not_made_again(tmp_path):
    home = tmp_path / "gone"
    # The detached process holds the pipe, too: run() returns when it has ended.
    subprocess.run(
        worker_command(home), env=clean_environ(), check=True, timeout=60, stdout=subprocess.PIPE
    )
    assert not home.exists()


def test_a_lock_is_free_again_however_its_holder_died(tmp_path):
    path = tmp_path / "worker.lock"
    code = f"""
import os, signal
from pathlib import Path
from bdh_bridge.worker.lock import WorkerLock
assert WorkerLock(Path({str(path)!r})).acquire(wait=0, version="1", mode="process")
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    holder = read_holder(path)
    assert holder is not None
    assert holder.pid is None
    assert not is_held(path)
    lock = WorkerLock(path)
    assert lock.acquire(wait=0, version="1", mode="process")
    assert is_held(path)
    assert not WorkerLock(path).acquire(wait=0.05, version="1", mode="process")
    assert lock.still_ours()
    path.unlink()
    assert not lock.still_ours()
    lock.release()
