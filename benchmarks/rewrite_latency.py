"""Latency that the provider chain adds to a turn: healthy, first rate-limited, all dead.

    python benchmarks/rewrite_latency.py [--turns 50] [--model-latency 0] [--json FILE]

Real HTTP servers on loopback stand for the providers and answer after ``--model-latency``
seconds; what is measured beyond that is the chain's own doing. Shared state and spans are on,
as in the agent. Dead means: the connection is accepted and nothing ever comes back, the most
expensive way; *refused* is the cheap one. The bounds are the defaults, 15 s a provider and 20 s
in all, so the scenario with silent providers takes 20 s for its first turn.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bdh_bridge.routing.rewrite import Rewriter
from bdh_bridge.settings import Settings
from bdh_bridge.state import SharedState
from bdh_otel import attributes as attr
from bdh_otel.tracer import Tracer
from tests.support import model_server as ms

REFUSED = "http://127.0.0.1:9/v1"
NAMES = ("API", "NOUS", "OPENROUTER", "LOCAL")
MESSAGE = "E perché avevamo scelto due antenne per il ponte radio?"
HISTORY = [
    {"role": "user" if number % 2 == 0 else "assistant", "content": "Un messaggio. " * 12}
    for number in range(6)
]


@contextmanager
def chain(urls: list[str]) -> Iterator[Callable[[], list[str]]]:
    """A turn's rewrite as the agent does it; returns the outcomes of its hops."""
    variables: dict[str, Any] = {
        "BDH_REWRITE_API_KEY": "k",
        "OPENROUTER_API_KEY": "k",
        **{f"BDH_REWRITE_{name}_URL": url for name, url in zip(NAMES, urls, strict=True)},
    }
    with tempfile.TemporaryDirectory() as directory:
        state = SharedState(Path(directory) / "state.sqlite3")
        tracer = Tracer(Path(directory) / "spans.sqlite3")
        rewriter = Rewriter(Settings(**variables), state, tracer, lambda seconds: {"api_key": "k"})

        def turn() -> list[str]:
            with tracer.span("bdh.turn", attributes={attr.CONVERSATION_ID: "s"}) as span:
                found = rewriter.rewrite(MESSAGE, HISTORY, span)
            return [str(hop.outcome) for hop in found.hops]

        yield turn
        tracer.shutdown()
        state.close()


def slowed(reply: ms.Reply, seconds: float) -> ms.Reply:
    def later(handler: ms.Handler) -> None:
        time.sleep(seconds)
        reply(handler)

    return later


def measure(name: str, urls: list[str], turns: int) -> dict[str, Any]:
    seconds: list[float] = []
    outcomes: list[list[str]] = []
    with chain(urls) as turn:
        for _ in range(turns):
            started = time.perf_counter()
            outcomes.append(turn())
            seconds.append(time.perf_counter() - started)
    later = sorted(seconds[1:])
    return {
        "scenario": name,
        "turns": turns,
        "first_ms": round(seconds[0] * 1e3, 2),
        "tenth_ms": round(seconds[9] * 1e3, 2),
        "later_p50_ms": round(statistics.median(later) * 1e3, 2),
        "later_p95_ms": round(later[int(len(later) * 0.95)] * 1e3, 2),
        "first_hops": outcomes[0],
        "tenth_hops": outcomes[9],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=50, help="turns a scenario, at least 10")
    parser.add_argument("--model-latency", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    turns = max(args.turns, 10)
    with ExitStack() as stack:

        def serve(reply: ms.Reply) -> str:
            return stack.enter_context(ms.ModelServer(reply)).url

        good = serve(slowed(ms.answer(ms.ANSWER), args.model_latency))
        silent = serve(ms.hang())
        limited = serve(ms.rate_limited("600"))
        with chain([good] * 4) as turn:  # imports and first connections, paid once a process
            started = time.perf_counter()
            turn()
            cold = time.perf_counter() - started
        results = [
            measure("all healthy", [good] * 4, turns),
            measure("first rate-limited", [limited, good, good, good], turns),
            measure("first silent", [silent, good, good, good], turns),
            measure("all refused", [REFUSED] * 4, turns),
            measure("all silent", [silent] * 4, turns),
        ]
    print(f"first call of a process (imports included): {cold * 1e3:.0f} ms\n")
    print(f"{'scenario':20} {'first':>10} {'tenth':>9} {'p50':>9} {'p95':>9}   (ms)")
    for row in results:
        print(
            f"{row['scenario']:20} {row['first_ms']:>10} {row['tenth_ms']:>9}"
            f" {row['later_p50_ms']:>9} {row['later_p95_ms']:>9}   {', '.join(row['tenth_hops'])}"
        )
    if args.json:
        report = {
            "python": platform.python_version(),
            "system": platform.system(),
            "model_latency_s": args.model_latency,
            "cold_ms": round(cold * 1e3, 1),
            "results": results,
        }
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
