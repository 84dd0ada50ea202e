"""Runs the demo from the first process started to the last one stopped."""

from __future__ import annotations

import argparse
import io
import os
import shlex
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

from bdh_bridge.demo.conversation import ANSWERS
from bdh_bridge.demo.display import Display
from bdh_bridge.demo.home import DemoHome, configure, create_home
from bdh_bridge.demo.interrupts import ignored, interruptible
from bdh_bridge.demo.model_server import ScriptedModelServer
from bdh_bridge.demo.processes import (
    ProcessError,
    Processes,
    command,
    demo_environment,
    stop_workers,
)
from bdh_bridge.demo.report import Step, as_json, write_report
from bdh_bridge.demo.stage import Stage
from bdh_bridge.demo.steps import STEPS
from bdh_otel.tree import render

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 when every claim was seen, 1 when not, 130 when interrupted."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.report and not arguments.report.absolute().parent.is_dir():
        parser.error(f"there is no folder for {arguments.report}")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without Unicode gets question marks
    display = Display()
    began = time.monotonic()
    steps: list[Step] = []
    home = create_home()
    interrupted = False
    _introduce(display, home)
    try:
        with interruptible():
            _play(home, display, steps)
    except KeyboardInterrupt:
        interrupted = True
        display.line("interrupted: everything that was started has been stopped")
    elapsed = time.monotonic() - began
    ok = not interrupted and all(step.ok for step in steps)
    if arguments.report:
        report = as_json(steps, elapsed=elapsed, home=home.root, spans=home.paths.spans)
        write_report(arguments.report, {**report, "ok": ok})
    if not interrupted:
        _conclude(display, steps, elapsed)
    if interrupted or arguments.delete:
        shutil.rmtree(home.root, ignore_errors=True)
        display.line(f"deleted {home.root}")
    else:
        _tell_what_stays(display, home)
        if not arguments.no_tui:
            _offer_tui(display, home)
    return 130 if interrupted else 0 if ok else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description="A real Hermes Agent reads from and writes to a knowledge graph, through the "
        "bridge. The language model is scripted; everything else is real, and every claim is "
        "checked. Nothing of yours is read or changed.",
        epilog="With OTEL_EXPORTER_OTLP_ENDPOINT set, the spans are sent there as well.",
    )
    parser.add_argument(
        "--no-tui", action="store_true", help="don't offer the terminal UI at the end"
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write what was claimed and seen as JSON"
    )
    parser.add_argument("--delete", action="store_true", help="delete the demo's folder at the end")
    return parser


def _introduce(display: Display, home: DemoHome) -> None:
    display.line(
        display.bold("bdh-hermes-bridge demo")
        + f": Hermes Agent {metadata.version('hermes-agent')}, the embedded graph on a sample "
        "vault, and a model server whose answers are scripted"
    )
    display.line(f"everything happens in {home.root}; nothing of yours is read or changed")
    display.line("in the traces: ✓ a gate allowed, ✗ a gate skipped, ! something failed")
    display.line()


def _play(home: DemoHome, display: Display, steps: list[Step]) -> None:
    processes = Processes(demo_environment(home.root, os.environ), home.logs, home.root)
    with ScriptedModelServer(ANSWERS, home.model_log) as model:
        try:
            if _set_up(home, model, processes, display, steps):
                _play_steps(Stage(home, model, processes), display, steps)
                if any(os.environ.get(name) for name in _ENDPOINTS):
                    _send_spans(home, processes, display, steps)
        finally:
            with ignored():
                _stop_all(home, processes, display, steps)


def _set_up(
    home: DemoHome,
    model: ScriptedModelServer,
    processes: Processes,
    display: Display,
    steps: list[Step],
) -> bool:
    step = Step("Setting up")
    began = time.monotonic()
    try:
        configure(home, model.base_url)
        vault = ["--vault", str(home.vault), "--port", str(home.graph_port)]
        processes.start("graph", [*_bridge(home), "graph", "serve", *vault])
        processes.start(
            "gateway",
            [*command("hermes"), "gateway", "run"],
            API_SERVER_ENABLED="true",
            API_SERVER_HOST="127.0.0.1",
            API_SERVER_PORT=str(home.gateway_port),
            API_SERVER_KEY=home.gateway_key,
        )
        notes = sum(1 for _ in home.vault.rglob("*.md"))
        with display.working(f"starting the embedded graph on {notes} notes, and Hermes' gateway"):
            processes.wait_ready("graph", lambda: _healthy(home.graph_url))
            processes.wait_ready("gateway", lambda: _healthy(home.gateway_url))
        step.claim("The graph and Hermes' gateway answer", True, f"{notes} notes in the vault")
    except (ProcessError, OSError) as error:
        step.claim("The graph and Hermes' gateway start", False, error)
        display.line(f"error: {error}")
    step.elapsed = time.monotonic() - began
    steps.append(step)
    return step.ok


def _play_steps(stage: Stage, display: Display, steps: list[Step]) -> None:
    for number, (title, play) in enumerate(STEPS, start=1):
        step = Step(title)
        steps.append(step)
        display.step_begins(number, len(STEPS), step)
        began = time.monotonic()
        try:
            with display.progress("Hermes is working"):
                play(stage, step)
        except Exception as error:  # one step that fails must not hide the others
            step.claim("The step runs to its end", False, f"{type(error).__name__}: {error}")
        step.elapsed = time.monotonic() - began
        tree = ""
        if step.trace_id:
            tree = render(stage.reader.trace(step.trace_id), colour=display.colour, fold=True)
        display.step_ends(step, tree)
    stage.reader.close()


def _send_spans(home: DemoHome, processes: Processes, display: Display, steps: list[Step]) -> None:
    """The worker does so by itself, but it is about to be stopped."""
    step = Step("Sending the spans", via="bdh-bridge spans push")
    began = time.monotonic()
    display.line()
    try:
        with display.progress("sending the spans to the OTLP endpoint"):
            pushed = processes.run("spans-push", [*_bridge(home), "spans", "push"], timeout=30)
        sent, seen = pushed.status == 0, pushed.output.strip()
        if not sent:
            seen += processes.end_of_log("spans-push")
    except ProcessError as error:
        sent, seen = False, str(error)
    step.claim("The spans were sent to the OTLP endpoint", sent, seen)
    step.elapsed = time.monotonic() - began
    steps.append(step)
    display.step_ends(step, "")


def _stop_all(home: DemoHome, processes: Processes, display: Display, steps: list[Step]) -> None:
    step = Step("Cleaning up")
    began = time.monotonic()
    display.line()
    with display.working("stopping everything"):
        processes.stop()
        killed = stop_workers(home.root)
    ended = "gateway, graph server and worker have ended"
    step.claim("Nothing was left running", not killed, "; ".join(killed) or ended)
    step.elapsed = time.monotonic() - began
    steps.append(step)
    display.step_ends(step, "")


def _conclude(display: Display, steps: list[Step], elapsed: float) -> None:
    claims = [claim for step in steps for claim in step.claims]
    failed = [(step, claim) for step in steps for claim in step.claims if not claim.holds]
    display.line()
    display.line(
        display.bold(f"{len(claims) - len(failed)} of {len(claims)} claims seen")
        + f" in {elapsed:.0f} s"
    )
    for step, claim in failed:
        display.line(f"  ✗ {step.title}: {claim.claim}")


def _tell_what_stays(display: Display, home: DemoHome) -> None:
    display.line(f"logs:        {home.logs}")
    display.line(f"delete all:  rm -r {shlex.quote(str(home.root))}")
    display.line(f"span store:  {home.paths.spans}")


def _offer_tui(display: Display, home: DemoHome) -> None:
    tui = Path(sys.executable).with_name("bdh-bridge-tui")
    arguments = [str(tui), "--home", str(home.root)]
    display.line(f"look at it:  {shlex.join(arguments)}")
    if not (display.terminal and sys.stdin.isatty() and tui.exists()):
        return
    try:
        wanted = input("\nOpen that terminal UI now? [Y/n] ").strip().lower()
    except (EOFError, KeyboardInterrupt):
        display.line()
        return
    if wanted in ("", "y", "yes"):
        subprocess.run(arguments, check=False)


def _bridge(home: DemoHome) -> list[str]:
    return [*command("bdh-bridge"), "--home", str(home.root)]


def _healthy(url: str) -> bool:
    import httpx

    try:
        return httpx.get(f"{url}/health", timeout=2, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
