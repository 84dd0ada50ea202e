"""Latency and memory of the embedded graph at 10,000 notes.

    python benchmarks/embedded_graph.py [--notes 10000]

Starts the real server twice over a made-up vault (cold, then warm), asks it over HTTP, and
writes ``benchmarks/results/embedded_graph.json``. The same seed makes the same vault.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support import embedded_graph as support


def _words(text: str) -> list[str]:
    return text.split()


SUBJECTS = _words("""
scheduler gateway ledger cache index router parser compiler exporter sampler queue broker replica
snapshot migration sensor antenna turbine greenhouse orchard bakery workshop archive library
invoice contract budget roadmap interview onboarding
""")
QUALITIES = _words("""
durable lazy eager idempotent concurrent partial nightly weekly regional seasonal encrypted
compressed signed versioned read-only experimental legacy shared private mobile
""")
ACTIONS = _words("""
rebuilds flushes rotates compares rejects forwards measures calibrates publishes restores
throttles merges verifies schedules translates annotates estimates reviews repairs inspects
""")
OBJECTS = _words("""
checkpoints tokens certificates readings seedlings loaves drawings receipts manuscripts tickets
metrics backups partitions headers timers payloads batteries valves footnotes milestones
""")
CLOSINGS = [
    "because a restart lost the last minute",
    "after the audit in spring",
    "so that the night shift can sleep",
    "until the supplier answers",
    "which halved the cost",
    "unless the operator objects",
    "as agreed with the team",
    "since the old way needed two people",
    "perché il vecchio metodo falliva",
    "come deciso in riunione",
    "dopo la prova d'inverno",
]


def synthetic_vault(directory: Path, notes: int, seed: int) -> None:
    """Notes of about 120 words with three links each, a quarter of them by bare name."""
    rng = random.Random(seed)
    names = [f"{rng.choice(QUALITIES)}-{rng.choice(SUBJECTS)}-{number}" for number in range(notes)]
    folders = [f"area-{number // 250:02d}" for number in range(notes)]
    # Real vaults have a long tail of rare words: names, places, products.
    rare = ["".join(rng.choices("abdefgiklmnoprstuv", k=rng.randint(5, 10))) for _ in range(20_000)]
    for number, name in enumerate(names):
        sentences = [
            f"The {rng.choice(QUALITIES)} {rng.choice(SUBJECTS)} {rng.choice(ACTIONS)} "
            f"{rng.choice(OBJECTS)} of {rng.choice(rare)} {rng.choice(CLOSINGS)}."
            for _ in range(9)
        ]
        others = [rng.randrange(notes) for _ in range(3)]
        links = [
            f"[[{names[o]}]]" if rng.random() < 0.25 else f"[[{folders[o]}/{names[o]}]]"
            for o in others
        ]
        path = directory / folders[number] / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        title = name.replace("-", " ").title()
        path.write_text(
            f"---\ntitle: {title}\n---\n{' '.join(sentences)}\nSee {', '.join(links)}.\n"
        )


def questions(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [
        f"Why does the {rng.choice(QUALITIES)} {rng.choice(SUBJECTS)} handle "
        f"{rng.choice(OBJECTS)} {rng.choice(CLOSINGS)}?"
        for _ in range(count)
    ]


def memory(pid: int) -> dict[str, float]:
    """Resident set and its peak in MB (Linux)."""
    text = Path(f"/proc/{pid}/status").read_text()
    values = {
        name: int(kb) / 1024 for name, kb in re.findall(r"^(VmRSS|VmHWM):\s+(\d+)", text, re.M)
    }
    return {"rss_mb": round(values["VmRSS"], 1), "peak_mb": round(values["VmHWM"], 1)}


def cpu_seconds(pid: int) -> float:
    """User and system time of a process (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def latencies(
    client: httpx.Client, pid: int, asked: list[str], fields: dict[str, Any]
) -> dict[str, float]:
    """Wall time a request, and the server's CPU time, which a busy machine changes less."""
    taken: list[float] = []
    before = cpu_seconds(pid)
    for query in asked:
        started = time.perf_counter()
        client.post("/api/query", json={"query": query, **fields}).raise_for_status()
        taken.append((time.perf_counter() - started) * 1_000)
    cuts = statistics.quantiles(taken, n=100)
    return {
        "count": len(taken),
        "p50_ms": round(cuts[49], 2),
        "p95_ms": round(cuts[94], 2),
        "p99_ms": round(cuts[98], 2),
        "max_ms": round(max(taken), 2),
        "server_cpu_ms": round((cpu_seconds(pid) - before) / len(taken) * 1_000, 2),
    }


def machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def measure(notes: int, seed: int, scan_interval: float) -> dict[str, Any]:
    result: dict[str, Any] = {"notes": notes, "seed": seed, "machine_before": machine()}
    reads = {"learn": False, "respond": False, "source": "automatic_retrieval"}
    support.START_SECONDS = 1_200.0
    with tempfile.TemporaryDirectory() as folder:
        vault = Path(folder) / "vault"
        synthetic_vault(vault, notes, seed)
        for start in ("cold", "warm"):
            began = time.perf_counter()
            with support.embedded_graph(vault, scan_interval=scan_interval) as graph:
                result[f"{start}_start_s"] = round(time.perf_counter() - began, 2)
                result[f"{start}_start_cpu_s"] = round(cpu_seconds(graph.process.pid), 2)
                result[f"memory_after_{start}_start"] = memory(graph.process.pid)
                if start == "cold":
                    continue
                with httpx.Client(base_url=graph.url, timeout=60) as client:
                    latencies(client, graph.process.pid, questions(20, seed + 1), reads)  # warm up
                    result["read"] = latencies(
                        client, graph.process.pid, questions(500, seed + 2), reads
                    )
                    write = {
                        "source": "assistant_response",
                        "user_prompt": "We settled it in the review: " + " ".join(CLOSINGS) * 3,
                    }
                    result["write"] = latencies(
                        client, graph.process.pid, questions(100, seed + 3), write
                    )
                    result["graph"] = latencies_of_graph(client)
                result["memory_at_the_end"] = memory(graph.process.pid)
        result["state_mb"] = round(graph.state.stat().st_size / 1e6, 1)
    result["machine_after"] = machine()
    return result


def latencies_of_graph(client: httpx.Client) -> dict[str, float]:
    started = time.perf_counter()
    size = len(client.get("/api/graph").raise_for_status().content)
    return {
        "ms": round((time.perf_counter() - started) * 1_000, 1),
        "mb": round(size / 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--notes", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--scan-interval", type=float, default=3.0)
    args = parser.parse_args()
    result = measure(args.notes, args.seed, args.scan_interval)
    print(json.dumps(result, indent=2))
    target = Path(__file__).parent / "results" / "embedded_graph.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
