"""What the bridge adds to a turn, without network: hooks with spans on and off, interleaved.

    python benchmarks/hook_overhead.py [--turns 2000] [--output FILE]

The graph's circuit is open, so that every gate runs and nothing is asked. One pair of hooks
with spans and one without run in turn in the same process; the ratio of the two is what counts
on a noisy machine. Also: what importing the plugin costs beyond what Hermes has loaded.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bdh_bridge.bridge import Bridge
from bdh_bridge.hooks import Hooks
from bdh_bridge.settings import load

sys.path.insert(0, str(Path(__file__).parent))
from machine import machine_state, percentile

RULES = 50
MESSAGE = "Why did we decide to keep the outbox in SQLite, and what happens when the agent crashes?"
ANSWER = "Because every write must be on disk before it is acknowledged. " * 8

_IMPORT = """
import time, sys
import hermes_cli.plugins, run_agent, openai, httpx, pydantic, yaml
before = set(sys.modules)
start = time.perf_counter()
import bdh_bridge.plugin
seconds = time.perf_counter() - start
new = set(sys.modules) - before
unwanted = ("grpc", "google.protobuf", "textual", "numpy", "opentelemetry.sdk")
heavy = [module for module in unwanted if module in new]
print(seconds * 1000, len(new), ",".join(heavy) or "-")
"""


class NoSpan:
    """Stands in for a span where spans are off."""

    traceparent = ""

    def __enter__(self) -> NoSpan:
        return self

    def __exit__(self, *args: object) -> None: ...

    def set_attribute(self, key: str, value: Any) -> None: ...

    def set_attributes(self, attributes: Any) -> None: ...

    def add_event(self, name: str, attributes: Any = None) -> None: ...

    def fail(self, *args: Any) -> None: ...

    def end(self) -> None: ...

    def save_provisional(self) -> None: ...


class NoTracer:
    def start_span(self, *args: Any, **kwargs: Any) -> NoSpan:
        return NoSpan()

    def span(self, *args: Any, **kwargs: Any) -> NoSpan:
        return NoSpan()

    def flush(self, timeout: float = 0.0) -> bool:
        return True

    def shutdown(self) -> None: ...


def make_hooks(home: Path, *, spans: bool, **variables: str) -> tuple[Bridge, Hooks]:
    home.mkdir(parents=True)
    loaded = load(
        home,
        environ={"BDH_API_URL": "http://127.0.0.1:9", "BDH_WORKER": "off", **variables},
    )
    loaded.paths.directory.mkdir(mode=0o700)
    rules = "\n".join(f"operational prompt number {number}" for number in range(RULES))
    loaded.paths.blacklist.write_text(rules + "\nre:^nightly .* prompt:\n", encoding="utf-8")
    bridge = Bridge(loaded, job_prompt=lambda job: None)
    if not spans:
        nothing: Any = NoTracer()
        bridge.tracer = bridge.read_path._tracer = bridge.write_path._tracer = nothing
        bridge.read_path._retriever._tracer = nothing
    for _ in range(3):
        bridge.state.record_failure("graph:http://127.0.0.1:9", retry_after=3600)
    return bridge, Hooks(lambda: bridge, lambda: False)


def one_turn(hooks: Hooks, number: int) -> tuple[float, float, float]:
    """Seconds of pre_llm_call, post_api_request (no write) and on_session_end."""
    ids = {"session_id": f"s{number % 50}", "turn_id": f"t{number}", "platform": "cli"}
    message = SimpleNamespace(content="Short answer.", tool_calls=None)
    begin = time.perf_counter()
    hooks.pre_llm_call(
        user_message=MESSAGE, conversation_history=[{"role": "user", "content": MESSAGE}], **ids
    )
    read = time.perf_counter()
    hooks.post_api_request(finish_reason="stop", assistant_message=message, **ids)
    wrote = time.perf_counter()
    hooks.on_session_end(completed=True, interrupted=False, **ids)
    return read - begin, wrote - read, time.perf_counter() - wrote


def measure(turns: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        pairs = {
            "spans_on": make_hooks(Path(folder) / "on", spans=True),
            "spans_off": make_hooks(Path(folder) / "off", spans=False),
        }
        seconds: dict[str, list[tuple[float, float, float]]] = {name: [] for name in pairs}
        for number in range(turns + 50):
            for name, (_, hooks) in pairs.items():
                taken = one_turn(hooks, number)
                if number >= 50:  # warmed up
                    seconds[name].append(taken)
            if number % 500 == 0:
                gc.collect()
        for bridge, _ in pairs.values():
            bridge.close()
    report: dict[str, Any] = {"turns": turns, "blacklist_rules": RULES + 1}
    for name, rows in seconds.items():
        for index, hook in enumerate(("pre_llm_call", "post_api_request", "on_session_end")):
            values = [row[index] * 1000 for row in rows]
            report[f"{hook}.{name}"] = {
                "p50_ms": round(percentile(values, 0.5), 3),
                "p99_ms": round(percentile(values, 0.99), 3),
            }
    on, off = report["pre_llm_call.spans_on"], report["pre_llm_call.spans_off"]
    report["spans_add_p50_ms"] = round(on["p50_ms"] - off["p50_ms"], 3)
    report["ratio_p50"] = round(on["p50_ms"] / off["p50_ms"], 2)
    return report


def import_cost(runs: int) -> dict[str, Any]:
    """Best of some fresh processes, in which Hermes' own modules are loaded first."""
    best, modules, heavy = 1e9, 0, ""
    for _ in range(runs):
        output = subprocess.run(
            [sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True
        ).stdout.split()
        if float(output[0]) < best:
            best, modules, heavy = float(output[0]), int(output[1]), output[2]
    return {"import_ms": round(best, 1), "new_modules": modules, "heavy_modules": heavy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=2000)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    report = {"machine": machine_state(), **measure(args.turns), **import_cost(5)}
    text = json.dumps(report, indent=1)
    print(text)
    if args.output:
        args.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
