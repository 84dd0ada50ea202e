"""Turns whose process died, or that never end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.abandoned import close_abandoned
from bdh_otel.process import Process, is_alive, this_process
from bdh_otel.reader import SpanReader, StoredSpan
from bdh_otel.store import SpanStore
from bdh_otel.tracer import Tracer


def turn_of(reader: SpanReader) -> StoredSpan:
    (turn,) = (span for span in reader.after(0) if span.name == names.TURN)
    return turn


def test_a_killed_process_leaves_a_closed_turn(store_path: Path, reader: SpanReader) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time, pathlib\n"
            "from bdh_otel.tracer import Tracer\n"
            "tracer = Tracer(pathlib.Path(sys.argv[1]))\n"
            "turn = tracer.start_span('bdh.turn', attributes={'bdh.turn.id': 't'})\n"
            "turn.save_provisional()\n"
            "tracer.start_span('bdh.route', parent=turn).end()\n"
            "assert tracer.flush(10)\n"
            "print('ready', flush=True)\n"
            "time.sleep(600)",
            str(store_path),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        store = SpanStore(store_path)
        assert close_abandoned(store) == 0
        before = turn_of(reader)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    assert close_abandoned(store) == 1
    turn = turn_of(reader)
    assert turn.attributes == {attr.TURN_ID: "t", attr.TURN_CLOSE_REASON: "process_died"}
    assert turn.seq > before.seq
    assert turn.span_id == before.span_id
    # It ends when it was last heard of.
    (route,) = (span for span in reader.after(0) if span.name == names.ROUTE)
    assert turn.end_ns == route.end_ns
    assert close_abandoned(store) == 0
    store.close()


def test_a_turn_that_hangs_expires_and_its_own_end_comes_too_late(
    tracer: Tracer, reader: SpanReader, store_path: Path
) -> None:
    turn = tracer.start_span(names.TURN)
    turn.save_provisional()
    assert tracer.flush(10)
    store = SpanStore(store_path)
    assert close_abandoned(store, expiry=3_600) == 0
    assert close_abandoned(store, expiry=3_600, now=time.time() + 3_700) == 1
    closed = turn_of(reader)
    assert closed.attributes[attr.TURN_CLOSE_REASON] == "expired"
    turn.set_attribute(attr.TURN_CLOSE_REASON, "end_of_turn")
    turn.end()
    assert tracer.flush(10)
    assert turn_of(reader) == closed
    store.close()


@pytest.mark.parametrize(("alive", "closed"), [(True, 0), (None, 0), (False, 1)])
def test_only_certain_death_closes_a_young_turn(
    tracer: Tracer, store_path: Path, alive: bool | None, closed: int
) -> None:
    tracer.start_span(names.TURN).save_provisional()
    assert tracer.flush(10)
    asked: list[Process] = []

    def answer(process: Process) -> bool | None:
        asked.append(process)
        return alive

    store = SpanStore(store_path)
    assert close_abandoned(store, answer) == closed
    assert [process.pid for process in asked] == [os.getpid()]
    store.close()


def test_liveness() -> None:
    me = this_process()
    assert is_alive(me)
    assert is_alive(replace(me, pid=2**22 + 5)) is False
    assert is_alive(replace(me, space="another-boot pid:[1]", host="elsewhere")) is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_liveness_knows_reused_ids_and_reboots() -> None:
    me = this_process()
    assert is_alive(replace(me, start="1")) is False
    assert is_alive(replace(me, space="another-boot pid:[1]")) is False
    boot = me.space.partition(" ")[0]
    assert is_alive(replace(me, space=f"{boot} pid:[1]")) is None


def test_liveness_without_proc_goes_by_the_start_time() -> None:
    """As on macOS, where ``ps`` tells how long a process has run."""
    me = replace(this_process(), start="")
    assert is_alive(me)
    assert is_alive(replace(me, seen=me.seen - 10**7)) is False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="zombies are read from /proc")
def test_a_zombie_is_dead() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    )
    me = this_process()
    stat = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8")
    child = replace(me, pid=process.pid, start=stat.rpartition(")")[2].split()[19])
    assert is_alive(child)
    process.kill()
    end = time.monotonic() + 60
    while is_alive(child):
        assert time.monotonic() < end
        time.sleep(0.01)
    process.communicate()
    assert is_alive(child) is False
