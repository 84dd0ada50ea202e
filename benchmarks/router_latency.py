"""What the local router costs in a turn: time in the hook, loading, memory.

    python benchmarks/router_latency.py --output benchmarks/results/router_latency.json

Messages with their histories, from ``benchmarks/routing/data``. *Cold*: no text was met before,
as in a conversation's first turn. *Warm*: the history was the turn before, so that only the
message itself is new, as in every later turn.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.machine import machine_state, percentile

ROOT = Path(__file__).resolve().parent.parent

_MEMORY = """
import sys
sys.path[:0] = [{root!r}, {otel!r}]
from bdh_bridge.bridge import Bridge
from bdh_bridge.routing.local.loading import LocalRouterLoader
def resident():
    import os, subprocess
    command = ["ps", "-o", "rss=", "-p", str(os.getpid())]
    return int(subprocess.run(command, capture_output=True, check=True).stdout) / 1024
before = resident()
loader = LocalRouterLoader()
loader.load()
assert loader.get() is not None, loader.problem
print(resident() - before)
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=1_000, metavar="N", help="messages")
    parser.add_argument("--output", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    found = measure(args.count)
    if args.output:
        args.output.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(json.dumps(found, indent=1))
    return 0


def measure(count: int) -> dict[str, Any]:
    from bdh_bridge.routing.local.conversation import conversation
    from bdh_bridge.routing.local.loading import LocalRouterLoader

    loader = LocalRouterLoader()
    started = time.perf_counter()
    loader.load()
    loaded = time.perf_counter() - started
    router = loader.get()
    if router is None:
        raise SystemExit(loader.problem)
    from benchmarks.routing.corpus import read_corpus

    messages = read_corpus()[:: max(1, len(read_corpus()) // count)][:count]
    cold, warm, lengths = [], [], []
    for number, m in enumerate(messages):
        before = [{"role": item["role"], "content": item["text"]} for item in m.history]

        def decide(text: str, before: list[dict[str, str]] = before) -> float:
            history = [*before, {"role": "user", "content": text}]
            begun = time.perf_counter()
            router.decide(conversation(text, history))
            return 1_000 * (time.perf_counter() - begun)

        router.encoder.forget()
        cold.append(decide(m.text))
        router.encoder.forget()
        decide("...")
        warm.append(decide(f"{m.text} {number}"))
        lengths.append(len(m.text))
    return {
        "benchmark": "router_latency",
        "machine": machine_state(),
        "messages": len(messages),
        "with_history": sum(bool(m.history) for m in messages),
        "characters_p50_p99": [percentile([float(n) for n in lengths], q) for q in (0.5, 0.99)],
        "cold_ms": _percentiles(cold),
        "warm_ms": _percentiles(warm),
        "load_s": round(loaded, 2),
        "memory_mb": round(_memory(), 1),
    }


def _percentiles(values: list[float]) -> dict[str, float]:
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {name: round(percentile(values, share), 2) for name, share in shares.items()}


def _memory() -> float:
    """Megabytes that loading adds to the peak of a process that has the bridge already."""
    code = _MEMORY.format(root=str(ROOT), otel=str(ROOT / "otel"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
