"""The outbox under fire, and how fast it is in peace.

    python benchmarks/outbox_faults.py [--writes 1000] [--seed 1] [--only speed]

Runs the fault suite of the tests in its long form (hosts and workers killed at random, a graph
that fails in every phase of a request, the embedded graph killed and stopped), then measures.
Writes ``benchmarks/results/outbox_faults.json``; exits with 1 if anything was lost or learned
twice.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from machine import machine_state, percentile

from bdh_bridge.outbox.store import NewWrite
from bdh_bridge.settings import Loaded, load
from bdh_bridge.worker.launch import ensure_worker
from bdh_bridge.worker.lock import is_held, read_holder
from tests.support import faulty_graph as behave
from tests.support import outbox_faults
from tests.support.faulty_graph import FaultyGraph
from tests.support.outbox import open_outbox

RESULT = Path(__file__).resolve().parent / "results" / "outbox_faults.json"
ROWS = 1_000


def main() -> int:
    parser = argparse.ArgumentParser(description="The outbox under fire, and its speed.")
    parser.add_argument("--writes", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("keys", "no_keys", "embedded", "speed"))
    arguments = parser.parse_args()

    result: dict[str, Any] = {"machine": machine_state(), "writes": arguments.writes}
    if arguments.only and RESULT.exists():
        result = {**json.loads(RESULT.read_text()), **result}
    failed = False
    for kind in ("keys", "no_keys", "embedded"):
        if arguments.only not in (None, kind):
            continue
        with tempfile.TemporaryDirectory() as folder:
            report = outbox_faults.run(
                kind, Path(folder), writes=arguments.writes, seed=arguments.seed
            )
        failed = failed or bool(report.lost or report.learned_twice)
        result[kind] = {
            **dataclasses.asdict(report),
            "lost": len(report.lost),
            "learned_twice": len(report.learned_twice),
        }
        print(kind, json.dumps(result[kind]), flush=True)
    if arguments.only in (None, "speed"):
        result["speed"] = speed()
        print("speed", json.dumps(result["speed"]), flush=True)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print("machine", json.dumps(result["machine"]))
    return 1 if failed else 0


def speed() -> dict[str, Any]:
    """Accepting, delivering, recovering, and idling; times in milliseconds or seconds as named."""
    with tempfile.TemporaryDirectory() as folder, FaultyGraph(behave.learns) as graph:
        home = Path(folder)
        (home / ".env").write_text(f"BDH_API_URL={graph.url}\n")
        loaded = load(home, environ={})
        graph.go_down()
        figures: dict[str, Any] = {"accept": _accept(loaded)}
        ensure_worker(loaded)
        _until(lambda: "refused" in _errors(home))
        graph.start()
        figures["recovery_s"] = _recover(home, loaded)
        figures["delivery"] = _deliver(home, loaded, graph)
        figures["ensure_worker_running_ms"] = _wake(loaded)
        figures["idle"] = _idle(home)
        outbox_faults._end_worker(home)
    return figures


def _accept(loaded: Loaded) -> dict[str, float]:
    outbox = open_outbox(loaded.paths.hermes_home)
    times = []
    for number in range(ROWS):
        started = time.perf_counter()
        outbox.accept(
            NewWrite(
                query=f"What was decided in meeting {number}?",
                user_prompt="words " * 680,
                source="assistant_response",
                destination=loaded.settings.api_url,
            )
        )
        times.append((time.perf_counter() - started) * 1_000)
    outbox.close()
    return {
        "bytes": 4_100,
        "p50_ms": round(percentile(times, 0.5), 3),
        "p99_ms": round(percentile(times, 0.99), 3),
        "a_second": round(ROWS / sum(times) * 1_000),
    }


def _recover(home: Path, loaded: Loaded) -> dict[str, float]:
    """From the server's return until all rows are delivered; the backoff is part of it."""
    outbox, started = open_outbox(home), time.monotonic()
    first = None
    while outbox.has_work(loaded.settings.api_url, wait=10):
        if first is None and outbox.stats(wait=10).open_rows < ROWS:
            first = time.monotonic() - started
        time.sleep(0.02)
    total = time.monotonic() - started
    outbox.close()
    return {"rows": ROWS, "until_first": round(first or total, 2), "until_last": round(total, 2)}


def _deliver(home: Path, loaded: Loaded, graph: FaultyGraph) -> dict[str, float]:
    """A healthy server that answers at once: the outbox's own cost."""
    outbox, began = open_outbox(home), len(graph.requests)
    latencies = []
    for number in range(50):
        started = time.perf_counter()
        outbox.accept(
            NewWrite(
                query=f"single {number}",
                user_prompt="words " * 680,
                source="assistant_response",
                destination=loaded.settings.api_url,
            )
        )
        ensure_worker(loaded)
        while len(graph.requests) == began + number:
            time.sleep(0.0005)
        latencies.append((time.perf_counter() - started) * 1_000)
    with outbox.handle.use(10) as connection:
        row = connection.execute(
            "SELECT max(updated_at) - min(updated_at) FROM (SELECT updated_at FROM writes"
            " WHERE state = 'delivered' ORDER BY seq LIMIT ?)",
            (ROWS,),
        ).fetchone()
    outbox.close()
    return {
        "rows_a_second": round(ROWS / row[0]),
        "commit_to_server_p50_ms": round(percentile(latencies, 0.5), 2),
        "commit_to_server_p99_ms": round(percentile(latencies, 0.99), 2),
    }


def _wake(loaded: Loaded) -> dict[str, float]:
    times = []
    for _ in range(500):
        started = time.perf_counter()
        ensure_worker(loaded)
        times.append((time.perf_counter() - started) * 1_000)
        time.sleep(0.001)
    return {"p50": round(percentile(times, 0.5), 3), "p99": round(percentile(times, 0.99), 3)}


def _idle(home: Path, seconds: float = 15.0) -> dict[str, float]:
    lock = home / "bdh-bridge" / "worker.lock"
    holder = read_holder(lock)
    if holder is None or holder.pid is None or not Path("/proc/self/stat").exists():
        return {}
    time.sleep(1.0)
    before = _cpu_seconds(holder.pid)
    time.sleep(seconds)
    used = _cpu_seconds(holder.pid) - before
    assert is_held(lock)
    status = Path(f"/proc/{holder.pid}/status").read_text()
    memory = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return {
        "cpu_percent": round(100 * used / seconds, 2),
        "rss_mb": round(int(memory.split()[1]) / 1_024),
    }


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _errors(home: Path) -> str:
    outbox = open_outbox(home)
    with contextlib.closing(outbox), outbox.handle.use(10) as connection:
        row = connection.execute("SELECT max(error_type) FROM writes").fetchone()
    return str(row[0])


def _until(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
