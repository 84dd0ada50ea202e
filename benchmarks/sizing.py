"""Rows and bytes that turns leave behind, for sizing a disk and a telemetry backend.

    python benchmarks/sizing.py [--turns 1000] [--output FILE]

Real hooks, the real embedded graph on the demo's notes, and a worker that delivers. Of ten turns
four read and write, three are questions with a short answer, three are small talk. Bytes exported
are those of OTLP over HTTP, uncompressed, as a collector receives them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import bdh_bridge.demo
from bdh_bridge.bridge import Bridge
from bdh_bridge.hooks import Hooks
from bdh_bridge.operator import background
from bdh_bridge.settings import load
from bdh_otel.reader import SpanReader

sys.path.insert(0, str(Path(__file__).parent))
from machine import machine_state

QUESTIONS = (
    "Why did we choose SQLite instead of PostgreSQL on the gateway?",
    "Perché abbiamo abbandonato la rete mobile per le boe?",
    "What did we decide about the alert levels of the forecast model?",
    "How often is the backup of the gateway made, and where is it kept?",
)
ANSWER = "It was decided for three reasons that were weighed against each other at length. " * 8
SHAPES = ("write",) * 4 + ("short",) * 3 + ("talk",) * 3


@contextlib.contextmanager
def collector() -> Iterator[tuple[str, list[int]]]:
    """Accepts everything; the sizes of the bodies that came."""
    sizes: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sizes.append(len(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", sizes
    finally:
        server.shutdown()


def turn(hooks: Hooks, number: int) -> None:
    shape = SHAPES[number % len(SHAPES)]
    message = "grazie, perfetto!" if shape == "talk" else QUESTIONS[number % len(QUESTIONS)]
    answer = ANSWER if shape == "write" else "Short answer."
    ids = {"session_id": f"s{number // 10}", "turn_id": f"t{number}", "platform": "cli"}
    history = [{"role": "user", "content": message}]
    hooks.pre_llm_call(user_message=message, conversation_history=history, model="m", **ids)
    said = SimpleNamespace(content=answer, tool_calls=None)
    hooks.post_api_request(finish_reason="stop", assistant_message=said, **ids)
    hooks.on_session_end(completed=True, interrupted=False, **ids)


def deliver(home: Path, environ: dict[str, str], *command: str) -> None:
    """Run a command until nothing is left: a worker ends when its code changes on disk."""
    for _ in range(10):
        done = subprocess.run(
            [sys.executable, "-m", "bdh_bridge.cli", "--home", str(home), *command],
            env=environ,
            check=False,
            stdout=subprocess.DEVNULL,
        )
        if done.returncode == 0:
            return
    raise SystemExit(f"{' '.join(command)} does not come to an end")


def measure(turns: int, content: str) -> dict[str, Any]:
    notes = Path(bdh_bridge.demo.__file__).with_name("vault")
    with tempfile.TemporaryDirectory() as folder, collector() as (endpoint, sizes):
        home = Path(folder)
        (home / ".env").write_text(
            f"BDH_WORKER=off\nBDH_OTEL_CONTENT={content}\nOTEL_EXPORTER_OTLP_ENDPOINT={endpoint}\n"
        )
        environ = {name: v for name, v in os.environ.items() if not name.startswith("BDH_")}
        vault = home / "notes"
        subprocess.run(["cp", "-r", str(notes), str(vault)], check=True)
        server = background.start(load(home), vault, 0)
        with (home / ".env").open("a") as file:
            file.write(f"BDH_API_URL={server.url}\n")
        try:
            loaded = load(home)
            bridge = Bridge(loaded, job_prompt=lambda job: None)
            hooks = Hooks(lambda: bridge, lambda: False)
            began = time.monotonic()
            for number in range(turns):
                turn(hooks, number)
            seconds = time.monotonic() - began
            bridge.close()
            deliver(home, environ, "outbox", "deliver")
            deliver(home, environ, "spans", "push")
        finally:
            background.stop(load(home))
        with contextlib.closing(SpanReader(loaded.paths.spans)) as reader:
            status = reader.status()
        scale = 1_000 / turns
        return {
            "content": content,
            "turns": turns,
            "seconds": round(seconds, 1),
            "per_1000_turns": {
                "spans": round(status.spans * scale),
                "span_store_bytes": round(status.bytes * scale),
                "exported_bytes": round(sum(sizes) * scale),
                "outbox_bytes": round(loaded.paths.outbox.stat().st_size * scale),
            },
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=1_000)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    results = [measure(args.turns, content) for content in ("off", "preview", "full")]
    text = json.dumps({"machine": machine_state(), "results": results}, indent=1)
    print(text)
    if args.output:
        args.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
