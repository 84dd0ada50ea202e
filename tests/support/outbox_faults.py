"""Real hosts, a real worker, a graph, and somebody who kills them at random moments.

Hosts accept writes and say so on a pipe; what they said is compared at the end with what the
outbox holds and with what the graph has learned, counted on its side.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bdh_bridge.outbox.review import Review, Selection
from bdh_bridge.outbox.states import State
from bdh_bridge.outbox.store import Outbox
from bdh_bridge.settings import load
from bdh_bridge.worker.launch import ensure_worker, worker_command
from bdh_bridge.worker.lock import is_held, read_holder
from tests.support import faulty_graph as behave
from tests.support.embedded_graph import EmbeddedGraph, embedded_graph, sample_vault
from tests.support.faulty_graph import Behaviour, FaultyGraph
from tests.support.outbox import open_outbox

HOST = """
import sys, time
from pathlib import Path
from bdh_bridge.outbox.store import Accepted, NewWrite, Outbox, Spooled
from bdh_bridge.settings import load
from bdh_bridge.worker.launch import ensure_worker

home, name, count, pause = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
loaded = load(home)
paths, settings = loaded.paths, loaded.settings
outbox = Outbox(paths.outbox, spool=paths.outbox_spool, max_rows=settings.outbox_max_rows)
for number in range(count):
    query = f"What did {name} decide in meeting {number}?"
    result = outbox.accept(NewWrite(
        query=query, user_prompt=f"In meeting {number}, {name} decided: " + "words " * 60,
        source="assistant_response", destination=settings.api_url,
    ))
    if isinstance(result, Accepted | Spooled):
        print(result.id, query, flush=True)
    ensure_worker(loaded)
    time.sleep(pause)
"""


@dataclass
class Report:
    """``lost``: acknowledged, but neither learned nor visibly waiting for a decision.
    ``learned_twice``: counted by the graph. ``doubtful``: quarantined or unconfirmed."""

    graph: str
    acknowledged: int = 0
    by_state: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    learned_twice: list[str] = field(default_factory=list)
    doubtful: int = 0
    doubtful_learned: int = 0
    hosts_killed: int = 0
    workers_killed: int = 0
    graph_faults: int = 0
    seconds: float = 0.0


class Target(Protocol):
    """A graph under test."""

    url: str

    def disturb(self, chance: random.Random) -> None:
        """Something bad happens to the server."""

    def heal(self) -> None:
        """From now on it works."""

    def learned(self) -> Counter[str]:
        """How often it learned each write, by query (or by key, see :attr:`by_key`)."""

    by_key: bool
    timeout: float
    """``BDH_WRITE_TIMEOUT`` for it, in seconds."""


class Faulty:
    """Answers badly to every second write, and restarts now and then."""

    by_key = False
    timeout = 0.5  # it hangs often

    def __init__(self, graph: FaultyGraph, chance: random.Random) -> None:
        self.graph = graph
        self.url = graph.url
        graph.behave = self._behave
        self._chance = chance
        self._healthy = False

    def _behave(self, graph: FaultyGraph, connection: object) -> None:
        healthy = self._healthy or self._chance.random() < 0.5
        chosen = behave.learns if healthy else self._chance.choice(FAULTS)
        chosen(graph, connection)  # type: ignore[arg-type]

    def disturb(self, chance: random.Random) -> None:
        self.graph.go_down()
        time.sleep(chance.uniform(0.0, 0.5))
        self.graph.start()

    def heal(self) -> None:
        self._healthy = True

    def learned(self) -> Counter[str]:
        return self.graph.learned


#: In every phase of a request; some learn all the same.
FAULTS: tuple[Behaviour, ...] = (
    behave.answers(429, b"", retry_after="0"),
    behave.answers(503, {"error": "consolidating"}),
    behave.answers(500, {"error": "out of memory"}),
    behave.learns_and_answers(500, {"error": "after the fact"}),
    behave.answers(200, b"<html>garbage"),
    behave.learns_and_answers(200, b"\xff\x00 garbage"),
    behave.answers_half,
    behave.answers_half_a_header,
    behave.hangs_before_reading,
    behave.hangs_after_reading,
    behave.learns_and_hangs,
    behave.closes_after_reading,
    behave.learns_and_closes,
    behave.resets_at_once,
)


class Embedded:
    """The embedded graph, killed, stopped for a while, and started again with what it knew."""

    by_key = True
    timeout = 3.0  # it computes

    def __init__(self, vault: Path) -> None:
        self._stack = contextlib.ExitStack()
        self._vault = sample_vault(vault)
        self._graph: EmbeddedGraph = self._stack.enter_context(embedded_graph(self._vault))
        self.url, self._port = self._graph.url, self._graph.port

    def disturb(self, chance: random.Random) -> None:
        if chance.random() < 0.5:
            os.kill(self._graph.process.pid, signal.SIGSTOP)
            time.sleep(chance.uniform(0.1, 1.5))
            os.kill(self._graph.process.pid, signal.SIGCONT)
        else:
            self._graph.kill()
            self._start()

    def heal(self) -> None:
        if self._graph.process.poll() is not None:
            self._start()

    def learned(self) -> Counter[str]:
        """By key; what was learned beyond the keys counts as a repetition of "?"."""
        with contextlib.closing(sqlite3.connect(self._graph.state)) as connection:
            keys = Counter(key for (key,) in connection.execute("SELECT key FROM answers"))
            queries = connection.execute("SELECT sum(queries) FROM vaults").fetchone()[0]
        if queries != len(keys):
            keys["?"] = 1 + abs(queries - len(keys))
        return keys

    def close(self) -> None:
        self._stack.close()

    def _start(self) -> None:
        self._graph = self._stack.enter_context(embedded_graph(self._vault, port=self._port))


@contextlib.contextmanager
def target(kind: str, folder: Path, seed: int) -> Iterator[Target]:
    """``keys`` and ``no_keys`` are the faulty graph, ``embedded`` the real one."""
    if kind == "embedded":
        embedded = Embedded(folder / "vault")
        try:
            yield embedded
        finally:
            embedded.close()
    else:
        with FaultyGraph(behave.learns, keys=kind == "keys") as graph:
            yield Faulty(graph, random.Random(seed))


def run(
    kind: str,
    folder: Path,
    *,
    writes: int,
    seed: int,
    hosts: int = 2,
    calm: float = 0.7,
    disturbances: int | None = None,
) -> Report:
    """Accept ``writes`` writes by ``hosts`` processes among faults, then let it settle.

    ``calm`` is the mean time between two disturbances, in seconds, and ``disturbances`` their
    number (default: until everything was tried, whatever that takes).
    """
    report, started = Report(kind), time.monotonic()
    home = folder / "home"
    home.mkdir(parents=True)
    with target(kind, folder, seed) as graph:
        (home / ".env").write_text(f"BDH_API_URL={graph.url}\nBDH_WRITE_TIMEOUT={graph.timeout}\n")
        crew, loaded = _Crew(home, writes, hosts), load(home, environ={})
        chance = random.Random(seed)
        crew.start()
        for number in itertools.count():
            if number == disturbances or not (crew.at_work() or _pending(home)):
                break
            time.sleep(chance.expovariate(1 / calm))
            ensure_worker(loaded)  # as the turns of other hosts do
            match chance.choice(("host", "worker", "graph", "worker's lock")):
                case "host":
                    report.hosts_killed += crew.kill_host(chance)
                case "worker":
                    report.workers_killed += _kill_worker(home)
                case "graph":
                    graph.disturb(chance)
                    _hurry(home)  # the backoff has tests of its own
                    report.graph_faults += 1
                case "worker's lock":
                    # Now a second one can start, while the first still sends.
                    (home / "bdh-bridge" / "worker.lock").unlink(missing_ok=True)
                    subprocess.run(
                        worker_command(home), env=_environ(), check=True, stderr=subprocess.DEVNULL
                    )
        crew.join()
        _drive(home, lambda outbox: not outbox.stats(wait=10).by_state.get(State.PENDING))
        graph.heal()
        _hurry(home)
        _drive(home, lambda outbox: not outbox.has_work(graph.url, wait=10))
        _compare(report, home, crew.acknowledged, graph)
        _end_worker(home)
    report.seconds = round(time.monotonic() - started, 1)
    return report


class _Crew:
    """Hosts, each started again when it was killed, until enough writes are acknowledged."""

    def __init__(self, home: Path, writes: int, hosts: int) -> None:
        self.acknowledged: dict[str, str] = {}
        self._home = home
        self._quota = writes // hosts
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._threads = [
            threading.Thread(target=self._man, args=(number,), daemon=True)
            for number in range(hosts)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def at_work(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(120)

    def kill_host(self, chance: random.Random) -> bool:
        running = [process for process in self._processes.values() if process.poll() is None]
        if running:
            chance.choice(running).kill()
        return bool(running)

    def _man(self, number: int) -> None:
        done, life = 0, 0
        while done < self._quota:
            life += 1
            command = [sys.executable, "-c", HOST, str(self._home), f"host {number}.{life}"]
            process = subprocess.Popen(
                [*command, str(self._quota - done), "0.02"],
                stdout=subprocess.PIPE,
                text=True,
                env=_environ(),
            )
            self._processes[number] = process
            assert process.stdout is not None
            for line in process.stdout:
                if line.endswith("\n"):  # else it was killed while saying so
                    write_id, _, query = line.strip().partition(" ")
                    self.acknowledged[write_id] = query
                    done += 1
            process.wait()


def _hurry(home: Path) -> None:
    outbox = open_outbox(home)
    with contextlib.closing(outbox):
        Review(outbox).hurry(load(home, environ={}).settings.api_url)


def _pending(home: Path) -> int:
    outbox = open_outbox(home)
    with contextlib.closing(outbox):
        return outbox.stats(wait=10).by_state.get(State.PENDING, 0)


def _drive(home: Path, done: Callable[[Outbox], bool], seconds: float = 300.0) -> None:
    """What the next turns would do: wake or start the worker, until ``done``."""
    loaded, outbox = load(home, environ={}), open_outbox(home)
    deadline = time.monotonic() + seconds
    with contextlib.closing(outbox):
        while not done(outbox):
            assert time.monotonic() < deadline, f"not settled: {outbox.stats(wait=10)}"
            ensure_worker(loaded)
            time.sleep(0.1)


def _compare(report: Report, home: Path, acknowledged: dict[str, str], graph: Target) -> None:
    outbox = open_outbox(home)
    rows = {write.id: write for write in Review(outbox).select(Selection())}
    outbox.close()
    learned = graph.learned()
    report.acknowledged = len(acknowledged)
    report.by_state = dict(Counter(str(row.state) for row in rows.values()))
    report.learned_twice = [name for name, count in learned.items() if count > 1]
    visible = {State.QUARANTINED, State.UNCONFIRMED}
    for write_id, query in acknowledged.items():
        row = rows.get(write_id)
        times = learned[write_id if graph.by_key else query]
        if row is not None and row.state in visible:
            report.doubtful += 1
            report.doubtful_learned += times
        elif row is None or row.state is not State.DELIVERED or times != 1:
            report.lost.append(write_id)


def _kill_worker(home: Path) -> bool:
    lock = home / "bdh-bridge" / "worker.lock"
    holder = read_holder(lock) if lock.exists() and is_held(lock) else None
    if holder is None or holder.pid is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(holder.pid, signal.SIGKILL)
    return True


def _end_worker(home: Path) -> None:
    lock = home / "bdh-bridge" / "worker.lock"
    _until(lambda: not is_held(lock) or not _kill_worker(home))


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _environ() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("BDH_", "OTEL_")) and name != "INVOCATION_ID"
    }


if __name__ == "__main__":
    import dataclasses
    import tempfile

    with tempfile.TemporaryDirectory() as folder_name:
        print(
            json.dumps(
                dataclasses.asdict(
                    run(
                        sys.argv[1],
                        Path(folder_name),
                        writes=int(sys.argv[2]),
                        seed=int(sys.argv[3]),
                    )
                )
            )
        )
