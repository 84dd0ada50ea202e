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
from bdh_bridge.demo.performance import (
    healthy,
    play_steps,
    send_spans,
    setting_up,
    start_graph,
    stop_all,
)
from bdh_bridge.demo.processes import Processes, command, demo_environment
from bdh_bridge.demo.report import Step, as_json, write_report
from bdh_bridge.demo.stage import Stage
from bdh_bridge.demo.steps import STEPS
from hermes_borgee import SDK_REQUIREMENT, sdk_installed


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 when every claim was seen, 1 when not, 2 when it can't be played as asked,
    130 when interrupted."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.report and not arguments.report.absolute().parent.is_dir():
        parser.error(f"there is no folder for {arguments.report}")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without Unicode gets question marks
    if arguments.borgee and not sdk_installed():
        parser.error(f"--borgee needs: {sys.executable} -m pip install '{SDK_REQUIREMENT}'")
    display = Display()
    began = time.monotonic()
    steps: list[Step] = []
    home = create_home()
    interrupted = False
    _introduce(display, home, borgee=arguments.borgee)
    try:
        with interruptible():
            _play_borgee(home, display, steps) if arguments.borgee else _play(home, display, steps)
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
        "--borgee",
        action="store_true",
        help="the demo of the Borgee platform: a chat, a gateway killed in the middle of a turn, "
        "an operator; a local stand-in plays the Borgee server",
    )
    parser.add_argument(
        "--no-tui", action="store_true", help="don't offer the terminal UI at the end"
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write what was claimed and seen as JSON"
    )
    parser.add_argument("--delete", action="store_true", help="delete the demo's folder at the end")
    return parser


def _introduce(display: Display, home: DemoHome, *, borgee: bool) -> None:
    display.line(
        display.bold("bdh-hermes-bridge demo")
        + f": Hermes Agent {metadata.version('hermes-agent')}, the embedded graph on a sample "
        "vault, and a model server whose answers are scripted"
    )
    if borgee:
        display.line(
            "no Borgee server runs here: a stand-in for one speaks its plugin protocol on loopback"
        )
    display.line(f"everything happens in {home.root}; nothing of yours is read or changed")
    display.line("in the traces: ✓ a gate allowed, ✗ a gate skipped, ! something failed")
    display.line()


def _play(home: DemoHome, display: Display, steps: list[Step]) -> None:
    processes = Processes(demo_environment(home.root, os.environ), home.logs, home.root)
    with ScriptedModelServer(ANSWERS, home.model_log) as model:
        try:
            if _set_up(home, model, processes, display, steps):
                stage = Stage(home, model, processes)
                play_steps(STEPS, stage, stage.reader, display, steps)
                send_spans(home, processes, display, steps)
        finally:
            with ignored():
                stop_all(home, processes, display, steps)


def _play_borgee(home: DemoHome, display: Display, steps: list[Step]) -> None:
    from bdh_bridge.demo.borgee.play import play  # needs what the extra brings

    play(home, display, steps)


def _set_up(
    home: DemoHome,
    model: ScriptedModelServer,
    processes: Processes,
    display: Display,
    steps: list[Step],
) -> bool:
    with setting_up(display, steps) as step:
        configure(home, model.base_url)
        start_graph(home, processes)
        processes.start(
            "gateway",
            [*command("hermes"), "gateway", "run"],
            API_SERVER_ENABLED="true",
            API_SERVER_HOST="127.0.0.1",
            API_SERVER_PORT=str(home.gateway_port),
            API_SERVER_KEY=home.gateway_key,
        )
        with display.working(
            f"starting the embedded graph on {home.notes} notes, and Hermes' gateway"
        ):
            processes.wait_ready("graph", lambda: healthy(home.graph_url))
            processes.wait_ready("gateway", lambda: healthy(home.gateway_url))
        step.claim("The graph and Hermes' gateway answer", True, f"{home.notes} notes in the vault")
    return step.ok


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
