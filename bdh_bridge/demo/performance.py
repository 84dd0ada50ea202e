"""What every demo does: start the graph, play one step after the other, end all that runs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from bdh_bridge.demo.display import Display
from bdh_bridge.demo.home import DemoHome
from bdh_bridge.demo.processes import ProcessError, Processes, command, stop_workers
from bdh_bridge.demo.report import Step
from bdh_otel.reader import SpanReader
from bdh_otel.tree import render

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

AnyStage = TypeVar("AnyStage")


@contextlib.contextmanager
def setting_up(display: Display, steps: list[Step]) -> Iterator[Step]:
    """The first step: a process that does not start, or a file that can't be written, fails it."""
    step = Step("Setting up")
    began = time.monotonic()
    try:
        yield step
    except (ProcessError, OSError) as error:
        step.claim("The graph and Hermes' gateway start", False, error)
        display.line(f"error: {error}")
    step.elapsed = time.monotonic() - began
    steps.append(step)


def start_graph(home: DemoHome, processes: Processes) -> None:
    vault = ["--vault", str(home.vault), "--port", str(home.graph_port)]
    processes.start("graph", [*bridge(home), "graph", "serve", *vault])


def play_steps(
    plays: Sequence[tuple[str, Callable[[AnyStage, Step], None]]],
    stage: AnyStage,
    reader: SpanReader,
    display: Display,
    steps: list[Step],
) -> None:
    """Play each of ``plays`` (title, function) on ``stage`` and show it; closes ``reader``."""
    for number, (title, play) in enumerate(plays, start=1):
        step = Step(title)
        steps.append(step)
        display.step_begins(number, len(plays), step)
        began = time.monotonic()
        try:
            with display.progress("Hermes is working"):
                play(stage, step)
        except Exception as error:  # one step that fails must not hide the others
            step.claim("The step runs to its end", False, f"{type(error).__name__}: {error}")
        step.elapsed = time.monotonic() - began
        tree = ""
        if step.trace_id:
            tree = render(
                reader.trace(step.trace_id),
                colour=display.colour,
                fold=True,
                width=display.width - 2,
            )
        display.step_ends(step, tree)
    reader.close()


def send_spans(home: DemoHome, processes: Processes, display: Display, steps: list[Step]) -> None:
    """Send them where the environment says, if it does: the worker would do so by itself, but it
    is about to be stopped."""
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        return
    step = Step("Sending the spans", via="bdh-bridge spans push")
    began = time.monotonic()
    display.line()
    try:
        with display.progress("sending the spans to the OTLP endpoint"):
            pushed = processes.run("spans-push", [*bridge(home), "spans", "push"], timeout=30)
        sent, seen = pushed.status == 0, pushed.output.strip()
        if not sent:
            seen += processes.end_of_log("spans-push")
    except ProcessError as error:
        sent, seen = False, str(error)
    step.claim("The spans were sent to the OTLP endpoint", sent, seen)
    step.elapsed = time.monotonic() - began
    steps.append(step)
    display.step_ends(step, "")


def stop_all(home: DemoHome, processes: Processes, display: Display, steps: list[Step]) -> None:
    """The last step."""
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


def bridge(home: DemoHome) -> list[str]:
    """The argument list of ``bdh-bridge`` for this home."""
    return [*command("bdh-bridge"), "--home", str(home.root)]


def healthy(url: str) -> bool:
    import httpx

    try:
        return httpx.get(f"{url}/health", timeout=2, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
