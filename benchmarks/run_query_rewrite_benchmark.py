"""How well, and how fast, messages are routed: the golden set through the read path of a turn.

    python benchmarks/run_query_rewrite_benchmark.py --backend baseline \\
        --output benchmarks/results/query_rewrite_baseline.json
    python benchmarks/run_query_rewrite_benchmark.py --backend omlx --start 0 --count 20 \\
        --rewrite-timeout 15 --output benchmarks/results/omlx-000-020.json
    python benchmarks/run_query_rewrite_benchmark.py --compare benchmarks/results/*.json \\
        --plot benchmarks/results/query_rewrite.svg

Reads only: a dry run of the turn's own code (``bdh_bridge.dry_run``), ``learn: false``, a home of
its own. Each case is saved as it is done; run the same command again to go on after a stop, and
give the files of several slices to ``--compare``, which puts those of one backend together.

Keys and models are those of ``--home``. The graph holds ``query_rewrite_notes.json``: for every
case that should be read one note that answers it, and some that answer none. A *context hit* is
that very note in the context. A message that opens as the host opens scheduled jobs comes from
platform ``cron``, as it would there.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from machine import machine_state
from query_rewrite_report import (
    GOLDENSET,
    Report,
    ReportError,
    merged,
    plot,
    read_report,
    summarise,
    table,
)

from bdh_bridge.dry_run import DryRun, Explanation, Question
from bdh_bridge.host import nous_credentials_of
from bdh_bridge.paths import BridgePaths
from bdh_bridge.settings import Loaded, load
from bdh_otel import attributes as attr
from bdh_otel import names

NOTES = Path(__file__).with_name("query_rewrite_notes.json")
#: Provider of the chain by backend; None: no model is asked, empty: the chain of the home.
BACKENDS: dict[str, str | None] = {
    "baseline": None,
    "local-router": None,
    "cloud": "ollama",
    "omlx": "local",
    "nous": "nous",
    "openrouter": "openrouter",
    "chain": "",
    "cascade": "",
}
#: Who routes, where that is no language model alone.
_ROUTERS = {"local-router": "local", "cascade": "cascade"}
_MODEL_OF = {
    "ollama": "rewrite_model",
    "local": "rewrite_local_model",
    "nous": "rewrite_nous_model",
    "openrouter": "rewrite_openrouter_model",
}
_CRON = "[IMPORTANT: You are running as a scheduled cron job."


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    try:
        if args.compare:
            reports = merged([read_report(path) for path in args.compare])
        else:
            reports = [_measure(args)]
    except ReportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        return 130
    print(table(reports))
    if args.plot:
        args.plot.write_text(plot(reports), encoding="utf-8")
        print(f"\nplot: {args.plot}")
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--backend", choices=BACKENDS, help="who routes; baseline: no model")
    parser.add_argument("--start", type=_natural, default=0, metavar="N", help="first case, from 0")
    parser.add_argument("--count", type=_natural, default=100, metavar="N", help="how many")
    parser.add_argument("--output", type=Path, metavar="FILE", help="report; goes on if it exists")
    parser.add_argument("--rewrite-timeout", type=_seconds, metavar="S", help="for one message")
    parser.add_argument("--home", type=Path, help="Hermes home with keys and models")
    parser.add_argument(
        "--graph",
        default="embedded",
        metavar="URL",
        help="graph to read; `embedded` (default) starts one with the benchmark's notes, `none`",
    )
    parser.add_argument("--compare", type=Path, nargs="+", metavar="FILE", help="only show these")
    parser.add_argument("--plot", type=Path, metavar="SVG", help="also draw the reports")
    args = parser.parse_args(argv)
    if not args.compare and not (args.backend and args.output):
        parser.error("give --backend and --output, or --compare FILE …")
    return args


def _measure(args: argparse.Namespace) -> Report:
    cases = GOLDENSET["cases"][args.start : args.start + args.count]
    if not cases:
        raise ReportError(f"--start: there are {len(GOLDENSET['cases'])} cases")
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        loaded = _settings(args, home)
        report = _begin(args, loaded)
        done = {case["id"] for case in report["cases"]}
        todo = [case for case in cases if case["id"] not in done]
        if todo:
            if args.graph == "embedded":
                url = stack.enter_context(_graph(home))
                loaded = replace(loaded, settings=_with(loaded, api_url=url, vault_id=""))
            dry_run = DryRun(
                loaded,
                ask_graph=args.graph != "none",
                job_prompt=lambda _: None,
                nous_credentials=nous_credentials_of(load(args.home).paths.hermes_home),
            )
            stack.callback(dry_run.close)
            bar = _Progress(len(cases), len(cases) - len(todo))
            for case in todo:
                report["cases"].append(_one(dry_run, case))
                report["summary"] = summarise(report["cases"])
                _save(args.output, report)
                bar.advance(report["cases"][-1])
        report["summary"] = summarise(report["cases"])
        _save(args.output, report)
    return report


def _settings(args: argparse.Namespace, home: Path) -> Loaded:
    """The home's settings with the backend's chain, and with files of its own."""
    loaded = load(args.home)
    provider = BACKENDS[args.backend]
    changes: dict[str, Any] = {
        "rewrite_enabled": provider is not None,
        "router": _ROUTERS.get(args.backend),
    }
    if provider:
        changes["rewrite_chain"] = provider
    if args.rewrite_timeout is not None:
        changes["rewrite_timeout"] = args.rewrite_timeout
        changes["rewrite_total_timeout"] = max(
            args.rewrite_timeout, loaded.settings.rewrite_total_timeout
        )
    if args.graph not in ("embedded", "none"):
        changes["api_url"] = args.graph.rstrip("/")
    # Who may speak, and what is blacklisted, is the operator's: here every case counts.
    changes |= {"read_senders": frozenset(), "write_senders": frozenset(), "enabled": True}
    changes["prompt_blacklist_file"] = str(home / "none.txt")
    return replace(loaded, settings=_with(loaded, **changes), paths=BridgePaths(home))


def _with(loaded: Loaded, **changes: Any) -> Any:
    return loaded.settings.model_copy(update=changes)


def _begin(args: argparse.Namespace, loaded: Loaded) -> Report:
    """A new report, or the one in the file if it was made in the same way."""
    settings = loaded.settings
    provider = BACKENDS[args.backend]
    if provider is None:
        model, timeout = None, None
    else:
        model = str(getattr(settings, _MODEL_OF[provider])) if provider else settings.rewrite_chain
        timeout = settings.rewrite_timeout
    made: Report = {
        "benchmark": "query_rewrite",
        "goldenset": {"version": GOLDENSET["version"], "sha256": GOLDENSET["sha256"]},
        "notes_sha256": hashlib.sha256(NOTES.read_bytes()).hexdigest(),
        "backend": args.backend,
        "model": model,
        "rewrite_timeout_s": timeout,
        "graph": args.graph if args.graph in ("embedded", "none") else "other",
        "start": args.start,
        "count": args.count,
        "machine": machine_state(),
        "summary": {},
        "cases": [],
    }
    if not args.output.exists():
        args.output.parent.mkdir(parents=True, exist_ok=True)
        return made
    found = read_report(args.output)
    same = ("goldenset", "notes_sha256", "backend", "model", "rewrite_timeout_s", "graph", "start")
    different = [key for key in same if found.get(key) != made[key]]
    if different:
        raise ReportError(
            f"{args.output} was made with another {' and '.join(different)}; name another --output"
        )
    found["count"] = max(args.count, int(found["count"]))
    return found


def _one(dry_run: DryRun, case: dict[str, Any]) -> dict[str, Any]:
    cron = case["message"].startswith(_CRON)
    question = Question(case["message"], case["history"], "cron" if cron else "cli")
    started = time.perf_counter()
    found = dry_run.explain(question)
    seconds = time.perf_counter() - started
    note = _notes().get(case["id"])
    rewrite = next((span for span in found.spans if span.name == names.REWRITE), None)
    return {
        "id": case["id"],
        "language": case["language"],
        "kind": case["kind"],
        "expected": [case["expect"]["should_retrieve"], case["expect"]["store_candidate"]],
        "got": [found.should_retrieve, found.store_candidate],
        "router": found.router,
        "reasons": [found.read_reason, found.write_reason],
        "seconds": round(seconds, 4),
        "rewrite_seconds": _seconds_of(rewrite.duration_ns) if rewrite else None,
        "rewrite_ok": None if rewrite is None else not rewrite.attributes[attr.REWRITE_FALLBACK],
        "hops": [
            str(span.attributes[attr.HOP_OUTCOME]) for span in found.spans if span.type == "chat"
        ],
        "variants": len(found.queries),
        "context": bool(found.context),
        "context_hit": None if note is None else _gives(found, note["title"]),
    }


def _gives(found: Explanation, title: str) -> bool:
    given = [
        str(one)
        for span in found.spans
        if span.name == names.CONTEXT
        for one in span.attributes.get(attr.CONTEXT_TITLES, ())
    ]
    return title in given


def _seconds_of(nanoseconds: int | None) -> float:
    return round((nanoseconds or 0) / 1e9, 4)


def _notes() -> dict[str, dict[str, str]]:
    notes: dict[str, dict[str, str]] = json.loads(NOTES.read_text(encoding="utf-8"))["notes"]
    return notes


@contextlib.contextmanager
def _graph(home: Path) -> Iterator[str]:
    from tests.support.embedded_graph import embedded_graph

    vault = home / "vault"
    vault.mkdir()
    for identifier, note in _notes().items():
        title = json.dumps(note["title"], ensure_ascii=False)
        text = f"---\ntitle: {title}\n---\n{note['text']}\n"
        (vault / f"{identifier}.md").write_text(text, encoding="utf-8")
    with embedded_graph(vault) as running:
        yield running.url


def _save(path: Path, report: Report) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


class _Progress:
    """A bar on a terminal; elsewhere a line now and then."""

    def __init__(self, total: int, done: int) -> None:
        self._total, self._done, self._first = total, done, done
        self._started = time.monotonic()

    def advance(self, case: dict[str, Any]) -> None:
        self._done += 1
        each = (time.monotonic() - self._started) / (self._done - self._first)
        left = each * (self._total - self._done)
        filled = 30 * self._done // self._total
        text = (
            f"[{'█' * filled}{'·' * (30 - filled)}] {self._done}/{self._total} {case['id']} "
            f"{case['seconds']:.2f} s, about {left:.0f} s left"
        )
        if sys.stderr.isatty():
            end = "\n" if self._done == self._total else ""
            print(f"\r\x1b[K{text}", end=end, file=sys.stderr, flush=True)
        elif self._done % 10 == 0 or self._done == self._total:
            print(text, file=sys.stderr, flush=True)


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("0 or more")
    return number


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= 120:
        raise argparse.ArgumentTypeError("over 0, at most 120 seconds")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
