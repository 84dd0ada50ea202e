"""What processes share: breakers and pauses, over real processes and jumping clocks."""

from __future__ import annotations

import logging
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bdh_bridge.state import (
    FIRST_WAIT,
    LONGEST_RETRY_AFTER,
    LONGEST_WAIT,
    PROBE_LEASE,
    Pause,
    SharedState,
)
from bdh_otel.database import StoreError

KEY = "graph:http://localhost:8643"
Start = Callable[..., SharedState]


class Clocks:
    """A wall clock that jumps at will, and a monotonic one that doesn't."""

    def __init__(self) -> None:
        self.wall, self.ticks = 1_800_000_000.0, 50.0

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.ticks += seconds


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bdh-bridge" / "state.sqlite3"


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def opened() -> Iterator[list[SharedState]]:
    states: list[SharedState] = []
    yield states
    for state in states:
        state.close()


@pytest.fixture
def start(path: Path, clocks: Clocks, opened: list[SharedState]) -> Start:
    """A new process, as far as this store can tell: nothing remembered but the file."""

    def start(chance: float = 0.0) -> SharedState:
        state = SharedState(
            path,
            clock=lambda: clocks.wall,
            stopwatch=lambda: clocks.ticks,
            chance=lambda: chance,
        )
        opened.append(state)
        return state

    return start


def fail(state: SharedState, times: int = 3, retry_after: float | None = None) -> None:
    for _ in range(times):
        state.record_failure(KEY, retry_after=retry_after)


def test_an_unknown_peer_may_be_called(start: Start) -> None:
    decision = start().breaker_allows(KEY)
    assert (decision.allowed, decision.reason, decision.failures) == (True, "closed", 0)


def test_the_third_failure_in_a_row_opens_the_circuit_for_all(start: Start) -> None:
    state, other = start(), start()
    fail(state, 2)
    assert state.breaker_allows(KEY).allowed
    state.record_success(KEY)
    fail(state, 2)
    assert other.breaker_allows(KEY).reason == "closed"
    fail(other, 1)
    decision = state.breaker_allows(KEY)
    assert (decision.allowed, decision.reason, decision.failures) == (False, "open", 3)
    assert 0 < decision.retry_in <= FIRST_WAIT
    assert state.breaker_allows("provider:other").allowed


def test_one_process_probes_and_its_success_closes_the_circuit(
    start: Start, clocks: Clocks
) -> None:
    state, other = start(), start()
    fail(state)
    clocks.pass_by(FIRST_WAIT)
    assert state.breaker_allows(KEY).reason == "probe"
    waiting = other.breaker_allows(KEY)
    assert (waiting.reason, state.breaker_allows(KEY).reason) == ("open", "open")
    assert 0 < waiting.retry_in <= PROBE_LEASE
    state.record_success(KEY)
    assert other.breaker_allows(KEY).reason == "closed"
    assert other.breakers() == []


def test_each_failed_probe_doubles_the_wait_up_to_the_bound(start: Start, clocks: Clocks) -> None:
    state = start()
    fail(state)
    waits: list[float] = []
    for _ in range(12):
        waits.append(state.breaker_allows(KEY).retry_in)
        clocks.pass_by(waits[-1])
        assert state.breaker_allows(KEY).reason == "probe"
        state.record_failure(KEY)
    assert waits[:4] == pytest.approx([5, 10, 20, 40])
    assert waits[-1] == pytest.approx(LONGEST_WAIT)


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999])
def test_chance_only_shortens_the_wait_a_little(start: Start, chance: float) -> None:
    state = start(chance)
    fail(state)
    wait = state.breaker_allows(KEY).retry_in
    assert 0.75 * FIRST_WAIT <= wait <= FIRST_WAIT


def test_stragglers_do_not_lengthen_the_wait(start: Start, clocks: Clocks) -> None:
    state = start()
    fail(state, 30)
    decision = state.breaker_allows(KEY)
    assert decision.failures == 3
    assert decision.retry_in == pytest.approx(FIRST_WAIT)


def test_the_lease_of_a_probe_that_was_never_recorded_ends(start: Start, clocks: Clocks) -> None:
    state = start()
    fail(state)
    clocks.pass_by(FIRST_WAIT)
    assert start().breaker_allows(KEY).reason == "probe"  # and then it crashes
    clocks.pass_by(PROBE_LEASE - 0.1)
    assert state.breaker_allows(KEY).reason == "open"
    clocks.pass_by(0.2)
    assert state.breaker_allows(KEY).reason == "probe"
    assert start().breaker_allows(KEY).reason == "open"


@pytest.mark.parametrize(
    ("retry_after", "wait"),
    [
        (60.0, 60.0),
        (1e9, LONGEST_RETRY_AFTER),
        (float("inf"), LONGEST_RETRY_AFTER),
    ],
)
def test_a_peer_that_names_its_time_is_left_alone_at_once(
    start: Start, clocks: Clocks, retry_after: float, wait: float
) -> None:
    state = start()
    state.record_failure(KEY, retry_after=retry_after)
    assert state.breaker_allows(KEY).retry_in == pytest.approx(wait)
    clocks.pass_by(wait)
    assert state.breaker_allows(KEY).reason == "probe"


@pytest.mark.parametrize("retry_after", [0.0, -5.0, float("nan"), None])
def test_a_senseless_time_is_just_a_failure(start: Start, retry_after: float | None) -> None:
    state = start()
    state.record_failure(KEY, retry_after=retry_after)
    decision = state.breaker_allows(KEY)
    assert (decision.reason, decision.failures) == ("closed", 1)


def test_a_longer_time_named_while_open_counts(start: Start) -> None:
    state = start()
    fail(state)
    state.record_failure(KEY, retry_after=120)
    assert state.breaker_allows(KEY).retry_in == pytest.approx(120)


@pytest.mark.parametrize("jump", [-86_400.0 * 365, -3_600.0, -10.0, 10.0, 86_400.0 * 365])
def test_no_jump_of_the_clock_keeps_the_circuit_open(
    start: Start, clocks: Clocks, jump: float
) -> None:
    state = start()
    fail(state)
    assert state.breaker_allows(KEY).reason == "open"
    clocks.wall += jump
    clocks.pass_by(FIRST_WAIT)
    assert state.breaker_allows(KEY).reason == "probe"


def test_a_failure_noted_by_a_clock_of_the_future_holds_no_later_process(
    start: Start, clocks: Clocks
) -> None:
    clocks.wall += 1e9
    fail(start())
    clocks.wall -= 1e9
    assert start().breaker_allows(KEY).reason == "probe"


def test_a_small_step_back_in_mid_wait_is_outlived_by_a_process_that_saw_it(
    start: Start, clocks: Clocks
) -> None:
    state = start()
    fail(state, 1, retry_after=100)
    state.breaker_allows(KEY)
    clocks.pass_by(90)
    clocks.wall -= 80  # the wall clock says 10 s have passed
    assert state.breaker_allows(KEY).retry_in == pytest.approx(10)
    newcomer = start()
    assert newcomer.breaker_allows(KEY).retry_in == pytest.approx(90)
    clocks.pass_by(10)
    assert state.breaker_allows(KEY).reason == "probe"


def test_the_lease_survives_no_jump_either(start: Start, clocks: Clocks) -> None:
    state = start()
    fail(state)
    clocks.pass_by(FIRST_WAIT)
    state.breaker_allows(KEY)
    clocks.wall -= 10
    assert start().breaker_allows(KEY).reason == "probe"


def test_slewing_is_no_jump(start: Start, clocks: Clocks) -> None:
    state = start()
    fail(state)
    clocks.wall -= 0.5
    assert state.breaker_allows(KEY).reason == "open"


PROBE = """
import sys
from pathlib import Path
from bdh_bridge.state import SharedState
state = SharedState(Path(sys.argv[1]), busy_timeout=20.0)
print("ready", flush=True)
sys.stdin.readline()
print(state.breaker_allows("k").reason, flush=True)
sys.stdin.readline()
"""


def test_of_many_processes_one_probes(path: Path) -> None:
    import time

    past = SharedState(path, clock=lambda: time.time() - 1_000)
    for _ in range(3):
        past.record_failure("k")
    past.close()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROBE, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(5)
    ]
    try:
        for process in processes:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        reasons = [process.stdout.readline().strip() for process in processes if process.stdout]
    finally:
        for process in processes:
            process.communicate("\n", timeout=60)
    assert sorted(reasons) == ["open"] * 4 + ["probe"]


def test_threads_of_one_process_share_an_object(path: Path) -> None:
    state = SharedState(path, busy_timeout=20.0)

    def work() -> None:
        for number in range(20):
            state.record_failure(f"k{number}")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [breaker.failures for breaker in state.breakers()] == [3] * 20
    state.close()


# Pauses


def test_pause_and_resume(start: Start, clocks: Clocks) -> None:
    state, other = start(), start()
    assert state.paused("s") is None
    state.pause("s")
    assert other.paused("s") == Pause("s", clocks.wall, None)
    assert other.paused("t") is None
    state.pause("all", 60)
    assert other.paused("t") == Pause("all", clocks.wall, clocks.wall + 60)
    assert other.paused("s") == other.paused("t")
    assert {pause.scope for pause in other.pauses()} == {"all", "s"}
    assert state.resume("all")
    assert not state.resume("all")
    assert other.paused("t") is None
    clocks.pass_by(1e9)
    assert other.paused("s")


def test_a_pause_ends_by_itself(start: Start, clocks: Clocks) -> None:
    state = start()
    state.pause("all", 60)
    clocks.pass_by(59.9)
    assert state.paused("s")
    clocks.pass_by(0.2)
    assert state.paused("s") is None
    assert state.pauses() == []
    state.pause("s", 5)  # sweeps what is over
    assert [pause.scope for pause in state.pauses()] == ["s"]


def test_a_clock_set_back_neither_ends_a_pause_nor_makes_it_endless(
    start: Start, clocks: Clocks
) -> None:
    start().pause("all", 60)
    start().pause("s")
    clocks.wall -= 1e8
    assert start().paused("x")
    clocks.pass_by(61)
    assert start().paused("x") is None
    assert start().paused("s")


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_pause_of_no_time_is_a_mistake(start: Start, seconds: float) -> None:
    with pytest.raises(ValueError):
        start().pause("all", seconds)


# A store that fails


def test_the_file_is_for_the_owner_alone(path: Path, start: Start) -> None:
    start().paused("s")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def _break_by_bytes(path: Path) -> None:
    path.write_bytes(b"this is no database " * 500)
    path.chmod(0o600)


def _break_by_directory(path: Path) -> None:
    path.mkdir()


def _break_by_mode(path: Path) -> None:
    path.touch()
    path.chmod(0o644)


def _break_by_parent(path: Path) -> None:
    path.parent.rmdir()
    path.parent.write_text("")


@pytest.mark.parametrize(
    "damage", [_break_by_bytes, _break_by_directory, _break_by_mode, _break_by_parent]
)
def test_an_unusable_store_stops_nothing(
    path: Path,
    damage: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
    clocks: Clocks,
    start: Start,
) -> None:
    caplog.set_level(logging.WARNING)
    path.parent.mkdir()
    damage(path)
    state = start()
    for _ in range(4):
        state.record_failure(KEY)
        state.record_success(KEY)
        assert state.breaker_allows(KEY).reason == "closed"
        assert state.paused("s") is None
        clocks.pass_by(5)
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith("[bdh-bridge] ")
    # An order that can't be carried out is not passed over in silence.
    orders: tuple[Callable[[], object], ...] = (
        state.pause,
        state.resume,
        state.pauses,
        state.breakers,
    )
    for order in orders:
        with pytest.raises(StoreError):
            order()


def test_a_mended_store_is_used_again(path: Path, start: Start, clocks: Clocks) -> None:
    path.parent.mkdir()
    path.mkdir()
    state = start()
    fail(state)
    path.rmdir()
    clocks.pass_by(2)
    fail(state)
    assert state.breaker_allows(KEY).reason == "open"


def test_a_store_that_failed_is_left_alone_for_a_moment(
    path: Path, start: Start, clocks: Clocks
) -> None:
    path.parent.mkdir()
    path.mkdir()
    state = start()
    state.record_failure(KEY)
    path.rmdir()
    fail(state)
    assert not path.exists()
    clocks.pass_by(2)
    fail(state)
    assert path.exists()


def test_a_deleted_store_starts_anew_for_everybody(path: Path, start: Start) -> None:
    state, other = start(), start()
    fail(state)
    assert other.breaker_allows(KEY).reason == "open"
    for file in path.parent.iterdir():
        file.unlink()
    assert state.breaker_allows(KEY).reason == "closed"
    fail(other)
    assert state.breaker_allows(KEY).reason == "open"


def test_a_held_lock_is_not_waited_for(
    path: Path, start: Start, clocks: Clocks, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    state = start()
    fail(state, 2)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    state.record_failure(KEY)  # would hang here for as long as the lock is held
    with pytest.raises(StoreError):
        state.pause()
    assert len(caplog.records) == 1
    holder.execute("ROLLBACK")
    holder.close()
    clocks.pass_by(2)
    assert state.breaker_allows(KEY).failures == 2
    state.record_failure(KEY)
    assert state.breaker_allows(KEY).reason == "open"


def test_a_pause_outlasts_a_store_that_fails(path: Path, start: Start, clocks: Clocks) -> None:
    state = start()
    state.pause("s", 60)
    assert state.paused("s")
    for file in path.parent.iterdir():
        file.unlink()
    path.mkdir()
    assert state.paused("s")
    assert state.paused("t") is None
    clocks.pass_by(61)
    assert state.paused("s") is None
