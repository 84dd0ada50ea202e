"""The terminal UI under load, in a real pseudo-terminal: the figures that its documents give.

    python benchmarks/tui_load.py [--spans 200000] [--seconds 60] [--soak SPANS] [--output FILE]

- first paint: from the start of the process until the newest turn of a full store is on the screen
- visible: from a span's end until its turn is on the screen
- keys: each timed until the screen answers it, at rest and under the load
- load: 1,000 spans a second
- idle: processor time while nothing happens
- memory: resident set after all of that; with ``--soak`` after that many spans more (3,600,000 are
  an hour at 1,000 a second), fed as fast as ``--soak-rate`` says

Writers run in a process of their own. On a machine that others use, read the medians.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import pty
import random
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

from machine import machine_state, percentile  # noqa: E402

from bdh_bridge.paths import BridgePaths  # noqa: E402
from bdh_otel.process import this_process  # noqa: E402
from bdh_otel.reader import SpanReader  # noqa: E402
from bdh_otel.retention import Bounds, prune  # noqa: E402
from bdh_otel.store import Row, SpanStore  # noqa: E402

_ESCAPES = re.compile(rb"\x1b\[[0-9;?<>=]*[a-zA-Z]|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]")
PATIENCE = 60.0


class Terminal:
    """A program in a pseudo-terminal of 120 by 40 cells."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, close_fds=True,
            start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self._master = master
        self._lock = threading.Lock()
        self._new = bytearray()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                select.select([self._master], [], [])
                data = os.read(self._master, 1 << 16)
                if not data:
                    return
                with self._lock:
                    self._new += data

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def forget(self) -> None:
        """What was drawn so far doesn't count as an answer."""
        with self._lock:
            self._new.clear()

    def wait(self, text: str, patience: float = PATIENCE) -> float:
        """When ``text`` was drawn, as ``time.perf_counter`` counts."""
        wanted, deadline = text.encode(), time.perf_counter() + patience
        while True:
            with self._lock:
                found = wanted in self._new or wanted in _ESCAPES.sub(b"", bytes(self._new))
            now = time.perf_counter()
            if found:
                return now
            if now > deadline or self.process.poll() is not None:
                raise TimeoutError(f"{text!r} was not drawn within {patience:.0f} s")
            time.sleep(0.002)

    def cpu(self) -> float:
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Resident MiB."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        os.close(self._master)


@dataclass
class Feeder:
    """Turns like those of the scenes, copied row by row: ids and times are new, the rest stays."""

    store: Path
    templates: list[list[Row]] = field(default_factory=list)

    def __post_init__(self) -> None:
        from tests.tui import scenes

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "spans.sqlite3"
            scenes.play(path, 24, over_seconds=60)
            reader = SpanReader(path)
            by_trace: dict[str, list[Row]] = {}
            for stored in reader.rows("SELECT * FROM spans ORDER BY start_ns"):
                row = Row(*(stored[name] for name in Row._fields))
                by_trace.setdefault(row.trace_id, []).append(row)
            self.templates = list(by_trace.values())
            reader.close()

    def turn(self, number: int, end_ns: int, message: str = "") -> list[Row]:
        template = self.templates[number % len(self.templates)]
        shift = end_ns - max(row.end_ns or 0 for row in template)
        trace_id = f"{random.getrandbits(128):032x}"
        ids = {row.span_id: f"{random.getrandbits(64):016x}" for row in template}
        rows = []
        for row in template:
            attributes = row.attributes
            if message and row.name == "bdh.turn":
                attributes = json.dumps({**json.loads(attributes), "bdh.turn.message": message})
            rows.append(
                row._replace(
                    trace_id=trace_id,
                    span_id=ids[row.span_id],
                    parent_id=ids.get(row.parent_id or ""),
                    start_ns=row.start_ns + shift,
                    end_ns=(row.end_ns or row.start_ns) + shift,
                    attributes=attributes,
                )
            )
        return rows

    @contextlib.contextmanager
    def open(self) -> Iterator[tuple[SpanStore, int]]:
        store = SpanStore(self.store)
        try:
            yield store, store.register(f"feeder-{time.time_ns()}", this_process(), "bench", {})
        finally:
            store.close()

    def fill(self, spans: int, over_seconds: float) -> int:
        """At least that many spans, the last ones just now; returns how many."""
        made, number, rows = 0, 0, []
        start = time.time_ns() - int(over_seconds * 1e9)
        with self.open() as (store, resource):
            while made < spans:
                at = start + int(over_seconds * 1e9 * made / spans)
                turn = self.turn(number, at)
                rows += turn
                made += len(turn)
                number += 1
                if len(rows) > 2_000:
                    store.insert(rows, resource)
                    rows = []
            store.insert([*rows, *self.turn(0, time.time_ns(), "newest-of-all")], resource)
        return made

    def run(self, rate: float, spans: int, last: str) -> int:
        """``rate`` spans a second in batches of 0.2 s, as the writer makes them; then a turn with
        the message ``last``. Returns how many spans."""
        made = number = 0
        began = time.perf_counter()
        with self.open() as (store, resource):
            while made < spans:
                rows: list[Row] = []
                while len(rows) < rate * 0.2:
                    rows += self.turn(number, time.time_ns())
                    number += 1
                store.insert(rows, resource)
                made += len(rows)
                if number % 200 == 0:
                    prune(store, Bounds(1_000_000, 1 << 30), time_limit=0.2)
                time.sleep(max(0.0, began + made / rate - time.perf_counter()))
            # Turns are sorted by their starts: this one shall start after all others.
            store.insert(self.turn(1, time.time_ns() + 10**9, last), resource)
        return made


def feed_in_process(store: Path, rate: float, spans: int, last: str) -> subprocess.Popen[str]:
    arguments = [str(store), str(rate), str(spans), last]
    return subprocess.Popen(
        [sys.executable, __file__, "--feed", *arguments], stdout=subprocess.PIPE, text=True
    )


def start(home: Path) -> Terminal:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BDH_", "OTEL_", "HERMES_"))}
    return Terminal(
        [sys.executable, "-P", "-m", "bdh_tui", "--home", str(home)],
        {**kept, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
    )


def measure(arguments: argparse.Namespace, home: Path) -> dict[str, Any]:
    store = BridgePaths(home).spans
    (home / ".env").write_text("BDH_API_URL=http://127.0.0.1:9\n", encoding="utf-8")
    feeder = Feeder(store)
    say(f"filling {store} with {arguments.spans:,} spans")
    result: dict[str, Any] = {"spans": feeder.fill(arguments.spans, 6 * 86_400)}
    result["bytes"] = store.stat().st_size
    result["first_paint"] = first_paint(home, arguments.runs)
    say(f"first paint {result['first_paint']}")
    terminal = start(home)
    try:
        terminal.wait("newest-of-all")
        time.sleep(3)
        result["idle_cpu_percent"] = idle(terminal, arguments.idle)
        say(f"idle {result['idle_cpu_percent']} %")
        result["visible_ms"] = visible(terminal, feeder, 40)
        say(f"visible {result['visible_ms']}")
        result["keys_at_rest_ms"] = _figures([ms for _ in range(10) for ms in press_keys(terminal)])
        say(f"keys at rest {result['keys_at_rest_ms']}")
        result["load"] = load(terminal, store, 1_000.0, arguments.seconds)
        say(f"load {result['load']}")
        result["memory_mib"] = round(terminal.memory(), 1)
        if arguments.soak:
            result["soak"] = soak(terminal, store, arguments.soak_rate, arguments.soak)
            say(f"soak {result['soak']}")
    finally:
        terminal.close()
    return result


def first_paint(home: Path, runs: int) -> dict[str, Any]:
    seconds, cpu = [], []
    for _ in range(runs):
        terminal = start(home)
        try:
            seconds.append(terminal.wait("newest-of-all") - terminal.started)
            cpu.append(terminal.cpu())
        finally:
            terminal.close()
    return {
        "p50_s": round(percentile(seconds, 0.5), 2),
        "best_s": round(min(seconds), 2),
        "cpu_s": round(percentile(cpu, 0.5), 2),
        "runs": runs,
    }


def idle(terminal: Terminal, seconds: float) -> float:
    before, began = terminal.cpu(), time.perf_counter()
    time.sleep(seconds)
    return round(100 * (terminal.cpu() - before) / (time.perf_counter() - began), 2)


def visible(terminal: Terminal, feeder: Feeder, times: int) -> dict[str, float]:
    """From the commit's moment, which is when the span ends here, to the screen."""
    took = []
    with feeder.open() as (store, resource):
        for number in range(times):
            message = f"seen-{number:04d}-{random.getrandbits(32):08x}"
            terminal.forget()
            rows = feeder.turn(number, time.time_ns(), message)
            began = time.perf_counter()
            store.insert(rows, resource)
            took.append((terminal.wait(message) - began) * 1_000)
            time.sleep(random.uniform(0.05, 0.25))
    return _figures(took)


def press_keys(terminal: Terminal) -> list[float]:
    """Milliseconds from each of some keys that change the whole screen to its drawing."""
    keys = []
    for key, answer in ((b"?", "Keys everywhere"), (b"\x1b", "following"), (b"7", "state"),
                        (b"1", "read gates")):  # fmt: skip
        terminal.forget()
        began = time.perf_counter()
        terminal.press(key)
        # A lone Escape is held back by every terminal program, to tell it from a sequence.
        took = terminal.wait(answer) - began
        if key != b"\x1b":
            keys.append(took * 1_000)
        time.sleep(random.uniform(0.2, 0.4))
    return keys


def load(terminal: Terminal, store: Path, rate: float, seconds: float) -> dict[str, Any]:
    last = f"last-{random.getrandbits(64):016x}"
    before_cpu, before = terminal.cpu(), time.perf_counter()
    reader = SpanReader(store)
    at_first = reader.status().spans
    feeder = feed_in_process(store, rate, int(rate * seconds), last)
    keys: list[float] = []
    while feeder.poll() is None:
        keys += press_keys(terminal)
    fed = int(feeder.communicate()[0])
    took_all = time.perf_counter() - before
    shown = is_shown(terminal, last)
    stored = reader.status().spans - at_first
    reader.close()
    return {
        "spans": fed,
        "spans_per_second": round(fed / took_all),
        "stored": stored,
        "newest_turn_shown": shown,
        "keys_ms": _figures(keys),
        "cpu_percent": round(100 * (terminal.cpu() - before_cpu) / took_all, 1),
    }


def soak(terminal: Terminal, store: Path, rate: float, spans: int) -> dict[str, Any]:
    last = f"soak-{random.getrandbits(64):016x}"
    feeder = feed_in_process(store, rate, spans, last)
    memory = []
    while feeder.poll() is None:
        time.sleep(5)
        memory.append(round(terminal.memory(), 1))
    return {
        "spans": int(feeder.communicate()[0]),
        "newest_turn_shown": is_shown(terminal, last),
        "memory_mib_first": memory[0] if memory else None,
        "memory_mib_last": round(terminal.memory(), 1),
        "memory_mib_most": max(memory, default=None),
    }


def is_shown(terminal: Terminal, text: str) -> bool:
    """Whether the list shows it, once it is drawn anew."""
    terminal.press(b"f2")
    time.sleep(1)
    terminal.forget()
    terminal.press(b"1")
    try:
        terminal.wait(text)
    except TimeoutError:
        return False
    return True


def _figures(values: list[float]) -> dict[str, float]:
    return {
        "p50": round(percentile(values, 0.5), 1),
        "p95": round(percentile(values, 0.95), 1),
        "max": round(max(values), 1),
        "count": len(values),
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    if sys.argv[1:2] == ["--feed"]:
        path, rate, spans, last = sys.argv[2:]
        print(Feeder(Path(path)).run(float(rate), int(spans), last))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--spans", type=int, default=200_000, help="spans in the store")
    parser.add_argument("--runs", type=int, default=5, help="starts of the program")
    parser.add_argument("--seconds", type=float, default=60, help="of load")
    parser.add_argument("--idle", type=float, default=20, help="seconds of idling")
    parser.add_argument("--soak", type=int, default=0, metavar="SPANS")
    parser.add_argument("--soak-rate", type=float, default=10_000)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bdh-tui-load-") as folder:
        result = {"machine": machine_state(), **measure(arguments, Path(folder))}
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
