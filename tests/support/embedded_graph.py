"""The real embedded graph server as a process on a free port of loopback.

>>> with embedded_graph(sample_vault(tmp_path / "vault")) as graph:
...     httpx.get(f"{graph.url}/health")
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

START_SECONDS = 60.0
STOP_SECONDS = 15.0

# The real command line with this group alone: a fault in another one must not show up here.
_ONLY_GRAPH = "import sys, bdh_bridge.cli as c; c.GROUPS = ('graph',); sys.exit(c.main())"

SAMPLE_NOTES = {
    "decisions/durable-outbox": """---
title: Durable Outbox
---
Every write is committed to a SQLite outbox before it is acknowledged, so that a crash of the
agent loses nothing. A separate worker delivers the rows in order. See [[write-ahead-log]] and
[[Retry Policy]].
""",
    "databases/write-ahead-log": """---
title: Write-Ahead Log
---
SQLite appends each change to a log file and flushes it before the database file changes. After
a crash the log is replayed. [[durable-outbox]] relies on it.
""",
    "decisions/Retry Policy": """---
title: Retry Policy
---
A delivery that certainly did not arrive is tried again with exponential backoff and jitter,
from two seconds up to ten minutes. Timeouts are not repeated.
""",
    "operations/backup": """---
title: Nightly Backup
---
The database is copied every night at three with the online backup API and kept for thirty days
on another machine. Restoring was rehearsed in [[durable-outbox|the outbox drill]].
""",
    "people/team": """---
title: Team
---
Marta maintains the deployment, Jonas writes the scheduler, Aiko designs the interface.
""",
    "rete/ponte-radio": """---
title: Ponte radio del rifugio
---
Il rifugio si collega a valle con un ponte radio a 5 GHz. D'inverno la neve sull'antenna riduce
il segnale, perciò ogni novembre si monta il riparo riscaldato.
""",
    "cucina/pane": """---
title: Pane di segale
---
L'impasto riposa dodici ore in frigorifero; il forno parte a 240 gradi con vapore.
""",
    "observability/tracing": """---
title: Tracing
---
Each conversation turn is one trace: gates, retrieval and delivery are spans, exported by the
worker over OTLP. The local span store is the export queue.
""",
}
"""Small notes in English and Italian by id."""


def sample_vault(directory: Path) -> Path:
    """Write the sample notes; returns ``directory``."""
    for note_id, text in SAMPLE_NOTES.items():
        path = directory / f"{note_id}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return directory


@dataclass
class EmbeddedGraph:
    """A running server."""

    url: str
    vault: Path
    state: Path
    process: subprocess.Popen[str]
    log: Path
    """What it printed, both streams."""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def query(self, query: str, **fields: Any) -> dict[str, Any]:
        """A query that must succeed."""
        response = httpx.post(f"{self.url}/api/query", json={"query": query, **fields}, timeout=30)
        response.raise_for_status()
        body: dict[str, Any] = response.json()
        return body

    def retrieve(self, query: str) -> dict[str, Any]:
        """A query that changes nothing."""
        return self.query(query, learn=False, respond=False, source="automatic_retrieval")

    def get(self, path: str) -> dict[str, Any]:
        """A GET that must succeed, as ``get("/api/stats")``."""
        response = httpx.get(f"{self.url}{path}", timeout=30)
        response.raise_for_status()
        body: dict[str, Any] = response.json()
        return body

    def stop(self) -> int:
        """End it cleanly; returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        return self.process.returncode

    def kill(self) -> None:
        """Kill it like a power cut."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(STOP_SECONDS)


@contextlib.contextmanager
def embedded_graph(
    vault: Path,
    *,
    state: Path | None = None,
    port: int = 0,
    token: str = "",
    home: Path | None = None,
    environ: Mapping[str, str] | None = None,
    scan_interval: float = 0.2,
) -> Iterator[EmbeddedGraph]:
    """Start a server of ``vault`` and wait until it listens; it is stopped at the end.

    Give the same ``state`` (default: beside the vault) to start again with what was learned.
    """
    state = state or vault.with_name(f"{vault.name}.graph.sqlite3")
    home = home or vault.with_name(f"{vault.name}.home")
    ready = vault.with_name(f"{vault.name}.ready-{time.monotonic_ns()}.json")
    log = vault.with_name(f"{vault.name}.log")
    home.mkdir(exist_ok=True)
    command = [sys.executable, "-c", _ONLY_GRAPH, "--home", str(home), "graph", "serve"]
    command += ["--vault", str(vault), "--state", str(state), "--port", str(port)]
    command += ["--ready-file", str(ready), "--scan-interval", str(scan_interval)]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BDH_")}
    with log.open("a") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env={**inherited, "BDH_API_TOKEN": token, **(environ or {})},
        )
    graph = EmbeddedGraph("", vault, state, process, log)
    try:
        graph.url = _wait_ready(graph, ready)
        yield graph
    finally:
        graph.stop()


def _wait_ready(graph: EmbeddedGraph, ready: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if graph.process.poll() is not None:
            raise RuntimeError(f"the graph server ended: {graph.log.read_text()}")
        with contextlib.suppress(FileNotFoundError, httpx.TransportError):
            url = str(json.loads(ready.read_text())["url"])
            httpx.get(f"{url}/health", timeout=5).raise_for_status()
            return url
        time.sleep(0.02)
    raise TimeoutError(f"the graph server is not ready: {graph.log.read_text()}")
