"""What telemetry costs: a span, a turn, the store's throughput, its questions, the export.

    python benchmarks/telemetry_overhead.py [--turns 2000] [--rows 100000] [--json FILE]

Everything is measured on real files and processes in a temporary folder. ``--rows`` is the size
of the store that is asked questions and exported (1,000,000 takes about a minute and 1 GB).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hook_overhead import MESSAGE, make_hooks
from machine import machine_state

from bdh_bridge.hooks import Hooks
from bdh_bridge.worker.lock import is_held, read_holder
from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.reader import SpanReader
from bdh_otel.retention import Bounds, prune, size
from bdh_otel.store import SpanStore
from bdh_otel.tracer import LocalSpan, Tracer

SPANS_A_TURN = 12
#: How many conversations wait for a model at the same time, and for how long.
TALKING, MODEL_SECONDS = 20, 0.4
_DECISION = {
    attr.GATE_NAME: "relevance",
    attr.GATE_PATH: "read",
    attr.GATE_DECISION: "allow",
    attr.GATE_REASON: "terms_matched",
    attr.GATE_VALUE: 0.81,
    attr.GATE_THRESHOLD: 0.3,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=2_000)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--write", nargs=2, metavar=("PATH", "TURNS"), help=argparse.SUPPRESS)
    parser.add_argument("--drain", nargs=2, metavar=("PATH", "URL"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.write:
        return write(Path(args.write[0]), int(args.write[1]))
    if args.drain:
        return drain(Path(args.drain[0]), args.drain[1])
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), args.turns, args.rows)
    machine = machine_state()
    print(*(f"{name} {value}" for name, value in machine.items()), sep=", ", end="\n\n")
    for name, value in figures.items():
        print(f"{name:<58} {value:>12,.1f}")
    if args.json:
        result = {"machine": machine, "figures": figures}
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(folder: Path, turns: int, rows: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    figures["import of the tracer, ms (median of 5)"] = import_time()
    figures.update(whole_turns(folder / "hooks", turns))
    spans, whole, flushes, off = per_turn(folder / "turns" / "spans.sqlite3", turns)
    _add(figures, "one span: start, 6 attributes, end, µs", spans, 1e6)
    _add(figures, f"a turn's {SPANS_A_TURN} spans without flush, µs", whole, 1e6)
    _add(figures, "flush at the end of the turn, µs", flushes, 1e6)
    _add(figures, "the same loop without spans, µs", off, 1e6)
    for writers in (1, 3):
        for reading in (False, True):
            rate = throughput(
                folder / f"w{writers}{reading}" / "s.sqlite3", writers, 3_000, reading
            )
            what = f"{writers} writing process{'es' if writers > 1 else ''}"
            figures[f"spans/s into the store, {what}{', a reader' if reading else ''}"] = rate
    figures.update(questions(folder / "big" / "spans.sqlite3", rows))
    return figures


def whole_turns(folder: Path, turns: int) -> dict[str, float]:
    """The three hooks of a turn together, in one process, one turn of each kind after the other:
    without spans, with them, and with them while a worker fails to send them to a dead backend.

    Between the first hook and the others a model thinks, while the bridge's thread stores what
    the first one recorded; once more without that pause, which no host can do.
    """
    kinds = {
        "without spans": make_hooks(folder / "off", spans=False),
        "with spans": make_hooks(folder / "on", spans=True),
        "with spans, backend dead": make_hooks(
            folder / "dead",
            spans=True,
            BDH_WORKER="process",
            OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        ),
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    at_once: dict[str, list[float]] = {kind: [] for kind in kinds}
    try:
        for start in range(0, turns + TALKING, TALKING):
            numbers = range(start, start + TALKING)
            began = {
                (kind, number): begin_turn(hooks, number)
                for number in numbers
                for kind, (_, hooks) in kinds.items()
            }
            time.sleep(MODEL_SECONDS)
            for number in numbers:
                for kind, (_, hooks) in kinds.items():
                    taken = began[kind, number] + end_turn(hooks, number)
                    if start:  # warmed up
                        seconds[kind].append(taken)
        for number in range(turns):
            for kind, (_, hooks) in kinds.items():
                at_once[kind].append(begin_turn(hooks, number) + end_turn(hooks, number))
    finally:
        for bridge, _ in kinds.values():
            bridge.close()
        end_worker(kinds["with spans, backend dead"][0].loaded.paths.worker_lock)
    figures: dict[str, float] = {}
    for what, taken_of in (("hooks of a turn", seconds), ("hooks, no model between", at_once)):
        for kind, values in taken_of.items():
            _add(figures, f"{what}, {kind}, µs", values, 1e6)
        off, on, dead = (figures[f"{what}, {kind}, µs, p50"] for kind in kinds)
        figures[f"{what}: spans add, µs, p50"] = on - off
        figures[f"{what}: a dead backend adds to that, µs, p50"] = dead - on
    return figures


def begin_turn(hooks: Hooks, number: int) -> float:
    """Seconds of ``pre_llm_call``."""
    start = time.perf_counter()
    hooks.pre_llm_call(
        user_message=MESSAGE,
        conversation_history=[{"role": "user", "content": MESSAGE}],
        **_ids(number),
    )
    return time.perf_counter() - start


def end_turn(hooks: Hooks, number: int) -> float:
    """Seconds of ``post_api_request``, whose answer is too short to be stored, and of
    ``on_session_end``."""
    message = SimpleNamespace(content="Short answer.", tool_calls=None)
    start = time.perf_counter()
    hooks.post_api_request(finish_reason="stop", assistant_message=message, **_ids(number))
    hooks.on_session_end(completed=True, interrupted=False, **_ids(number))
    return time.perf_counter() - start


def _ids(number: int) -> dict[str, str]:
    return {"session_id": f"s{number % 50}", "turn_id": f"t{number}", "platform": "cli"}


def end_worker(lock: Path) -> None:
    holder = read_holder(lock) if is_held(lock) else None
    if holder is not None and holder.pid != os.getpid():
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder.pid, signal.SIGTERM)


def import_time() -> float:
    code = (
        "import logging, sqlite3, json, threading, uuid, platform, subprocess, time\n"
        "start = time.perf_counter()\nimport bdh_otel.tracer\n"
        "print(time.perf_counter() - start)"
    )
    times = []
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        times.append(float(done.stdout))
    return sorted(times)[2] * 1e3


def one_turn(tracer: Tracer, number: int, clock: Callable[[float], None]) -> LocalSpan:
    turn = tracer.start_span(
        names.TURN,
        attributes={
            attr.CONVERSATION_ID: f"session-{number // 20}",
            attr.TURN_ID: f"turn-{number}",
            attr.PLATFORM: "cli",
            attr.REQUEST_MODEL: "model",
            attr.TURN_MESSAGE: "Why did we choose SQLite for the outbox, and what else was there?",
        },
    )
    for _ in range(SPANS_A_TURN - 1):
        start = time.perf_counter()
        tracer.start_span("bdh.gate relevance", parent=turn, attributes=_DECISION).end()
        clock(time.perf_counter() - start)
    turn.end()
    return turn


def per_turn(path: Path, turns: int) -> tuple[list[float], list[float], list[float], list[float]]:
    """Seconds of: each span, each turn's spans, each flush, and a turn of nothing, interleaved."""
    tracer = Tracer(path)
    spans: list[float] = []
    whole: list[float] = []
    flushes: list[float] = []
    off: list[float] = []
    for number in range(turns):
        start = time.perf_counter()
        for _ in range(SPANS_A_TURN):
            dict(_DECISION)
        off.append(time.perf_counter() - start)
        start = time.perf_counter()
        one_turn(tracer, number, spans.append)
        middle = time.perf_counter()
        tracer.flush()
        flushes.append(time.perf_counter() - middle)
        whole.append(middle - start)
    tracer.shutdown()
    return spans, whole, flushes, off


def write(path: Path, turns: int) -> int:
    """A writing process: turns as fast as the store takes them."""
    tracer = Tracer(path)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(turns):
        one_turn(tracer, number, lambda _: None)
        if number % 40 == 39:
            while not tracer.flush(5):
                pass
    while not tracer.flush(5):
        pass
    return 0


def throughput(path: Path, writers: int, turns: int, reading: bool) -> float:
    """Spans a second that ``writers`` processes commit together; the reader polls 5 times a
    second."""
    command = [sys.executable, __file__, "--write", str(path), str(turns)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(writers)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    start = time.perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    stop = threading.Event()
    thread = threading.Thread(target=_poll, args=(path, stop))
    if reading:
        thread.start()
    for process in processes:
        process.wait()
        process.communicate()
    elapsed = time.perf_counter() - start
    stop.set()
    if reading:
        thread.join()
    stored = SpanReader(path).status()
    assert (stored.spans, stored.dropped) == (writers * turns * SPANS_A_TURN, 0), stored
    return stored.spans / elapsed


def _poll(path: Path, stop: threading.Event) -> None:
    reader, seen = SpanReader(path), 0
    while not stop.wait(0.2):
        try:
            fresh = reader.after(seen, limit=500)
            reader.turns(50)
        except FileNotFoundError:
            continue
        seen = max(reader.last_seq() - 500, fresh[-1].seq if fresh else seen)
    reader.close()


def questions(path: Path, rows: int) -> dict[str, float]:
    """Milliseconds of what tails and screens ask, export and pruning, in a store of ``rows``."""
    tracer = Tracer(path, max_rows=None, max_bytes=None)
    root = tracer.start_span(names.TURN)
    for number in range(rows // SPANS_A_TURN):
        root = one_turn(tracer, number, lambda _: None)
        if number % 80 == 79:
            tracer.flush(10)
    tracer.flush(10)
    tracer.shutdown()
    reader = SpanReader(path)
    label = f"{rows:,} spans"
    last = reader.last_seq()
    asked: dict[str, Callable[[], Any]] = {
        "50 newest turns": lambda: reader.turns(50),
        "50 turns of one session": lambda: reader.turns(50, session="session-7"),
        "one trace": lambda: reader.trace(f"{root.trace_id:032x}"),
        "a trace by the start of its id": lambda: reader.find_traces(f"{root.trace_id:032x}"[:8]),
        "what is new": lambda: reader.after(last - 100),
        "counts of the last second": lambda: reader.counts(root.start_ns - 10**9),
        "status": lambda: reader.status(),
    }
    figures: dict[str, float] = {}
    for name, ask in asked.items():
        figures[f"{label}: {name}, ms"] = _median(ask)
    reader.close()
    figures.update(export_figures(path, label))
    store = SpanStore(path)
    figures[f"{label}: bytes a span"] = size(store) / max(1, last)
    start = time.perf_counter()
    removed = prune(store, Bounds(rows=rows // 2), time_limit=600).rows
    figures[f"{label}: pruning, spans/s, space given back"] = removed / (
        time.perf_counter() - start
    )
    store.close()
    return figures


def export_figures(path: Path, label: str) -> dict[str, float]:
    """The whole store, sent and tallied by a process of its own, as the worker does it."""

    class Receiver(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        command = [sys.executable, __file__, "--drain", str(path)]
        url = f"http://127.0.0.1:{server.server_port}"
        done = subprocess.run([*command, url], capture_output=True, text=True, check=True)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    found = json.loads(done.stdout)
    return {f"{label}: {name}": value for name, value in found.items()}


def drain(path: Path, url: str) -> int:
    """Send and tally all that there is; print the rates, and how much memory that took."""
    from bdh_otel import lane
    from bdh_otel.export import Exporter
    from bdh_otel.metrics import MetricStore

    lane.BACKFILL = 10**9  # all of it, however long it took to make
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
    exporter = Exporter(path, environment)
    sent, start = 0, time.perf_counter()
    exporter.run_once(time.monotonic() + 0.001)  # imports
    before = memory()
    while True:
        result = exporter.run_once(time.monotonic() + 60)
        sent += result.sent
        if not result.waiting:
            break
    elapsed = time.perf_counter() - start
    exporter.close()
    store, reader = MetricStore(path.with_name("metrics.sqlite3")), SpanReader(path)
    start = time.perf_counter()
    store.tally(reader)
    tallied = sent / (time.perf_counter() - start)
    figures = {
        "export to a receiver on loopback, spans/s": sent / elapsed,
        "tallied for metrics, spans/s": tallied,
        "memory of the exporting process before, MB": before,
        "memory of the exporting process after, MB": memory(),
    }
    print(json.dumps(figures))
    return 0


def memory() -> float:
    """Most memory that this process ever had, in MB."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 1e6 if sys.platform == "darwin" else most / 1e3


def _median(ask: Callable[[], Any]) -> float:
    times = []
    for _ in range(7):
        start = time.perf_counter()
        ask()
        times.append(time.perf_counter() - start)
    return sorted(times)[3] * 1e3


def _add(figures: dict[str, float], name: str, seconds: list[float], scale: float) -> None:
    ordered = sorted(seconds)
    figures[f"{name}, p50"] = ordered[len(ordered) // 2] * scale
    figures[f"{name}, p99"] = ordered[int(len(ordered) * 0.99)] * scale


if __name__ == "__main__":
    sys.exit(main())
