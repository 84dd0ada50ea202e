"""The worker's smaller parts."""

from __future__ import annotations

import os
import stat
import threading
import time

import pytest

from bdh_bridge.worker import bell
from bdh_bridge.worker.bell import Bell, ring
from bdh_bridge.worker.clock import ClockGuard
from bdh_bridge.worker.code import CodeStamp
from bdh_bridge.worker.duties import Duties, Duty
from bdh_bridge.worker.environment import minimal_environment


def test_a_ring_wakes_the_one_who_waits(tmp_path):
    path = tmp_path / ("long-" * 40) / "bell"  # longer than any socket's path may be
    path.parent.mkdir()
    listener = Bell(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    started = time.monotonic()
    threading.Timer(0.1, ring, [path]).start()
    assert listener.wait(60)
    assert time.monotonic() - started < bell.SAFETY_POLL
    assert not listener.wait(0)
    listener.close()


def test_rings_are_remembered_until_heard_and_never_block(tmp_path):
    path = tmp_path / "bell"
    assert not ring(path)
    listener = Bell(path)
    # Three times what the pipe holds.
    assert all(ring(path) for _ in range(200_000))
    assert listener.wait(0)
    assert not listener.wait(0)
    listener.close()
    assert not ring(path)


def test_a_closed_bell_writes_to_nobody(tmp_path):
    listener = Bell(tmp_path / "bell")
    inner = listener._inner_write
    listener.close()
    listener.close()
    read, write = os.pipe()
    os.dup2(write, inner)  # the number belongs to somebody else by now
    listener.ring()
    os.set_blocking(read, False)
    with pytest.raises(BlockingIOError):
        os.read(read, 1)
    for descriptor in {read, write, inner}:
        os.close(descriptor)


@pytest.mark.parametrize("kind", ["file", "link", "folder missing"])
def test_without_a_fifo_it_is_a_slow_clock(tmp_path, kind):
    path = tmp_path / "bell"
    other = tmp_path / "other"
    other.write_text("precious")
    if kind == "file":
        path.write_text("precious")
    elif kind == "link":
        path.symlink_to(other)
    else:
        path = tmp_path / "missing" / "bell"
    assert not ring(path)
    listener = Bell(path)
    assert not listener.wait(0.01)
    listener.ring()
    assert listener.wait(60)
    listener.close()
    assert other.read_text() == "precious"


def test_a_jump_of_the_clock_is_seen_once_and_drift_is_not():
    wall, steady = [1_000.0], [0.0]
    guard = ClockGuard(lambda: wall[0], lambda: steady[0])

    def after(seconds: float, jump: float = 0.0) -> float:
        steady[0] += seconds
        wall[0] += seconds + jump
        return guard.jump()

    assert after(60) == 0
    assert after(60, 5) == 0
    assert after(1, 3_600) == pytest.approx(3_605)
    assert after(1) == 0
    assert after(86_400, -7_200) == pytest.approx(-7_200)
    assert after(1) == 0


def test_duties_run_at_their_own_pace_and_survive_each_other():
    now, ran = [0.0], []

    def fails() -> bool:
        ran.append("fails")
        raise RuntimeError

    def works() -> bool:
        ran.append("works")
        return ran.count("works") < 2

    duties = Duties([Duty("fails", 10, fails), Duty("works", 5, works)], clock=lambda: now[0])
    assert duties.run_due() == 5
    assert ran == ["fails", "works"]
    assert duties.unfinished
    now[0] = 5
    assert duties.run_due() == 5
    assert ran == ["fails", "works", "works"]
    assert not duties.unfinished


def test_changed_code_is_noticed(tmp_path):
    source = tmp_path / "a.py"
    source.write_text("x = 1")
    stamp = CodeStamp((tmp_path,), interval=0)
    assert not stamp.changed()
    (tmp_path / "notes.txt").write_text("not code")
    assert not stamp.changed()
    os.utime(source, (1, 1))
    assert stamp.changed()


def test_the_code_is_not_looked_at_all_the_time(tmp_path):
    stamp = CodeStamp((tmp_path,), interval=3_600)
    (tmp_path / "new.py").write_text("")
    assert not stamp.changed()


def test_the_environment_holds_what_is_used_and_no_more():
    given = {
        "PATH": "/bin", "HOME": "/h", "HERMES_HOME": "/h/.hermes", "LC_CTYPE": "C", "TZ": "UTC",
        "BDH_API_TOKEN": "t", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "HTTPS_PROXY": "http://p",
        "no_proxy": "localhost", "SSL_CERT_FILE": "/c", "OPENROUTER_API_KEY": "k",
    }  # fmt: skip
    others = {"AWS_SECRET_ACCESS_KEY": "s", "PYTHONPATH": "/x", "LD_PRELOAD": "/y", "BDHX": "z"}
    assert minimal_environment({**given, **others}) == given
