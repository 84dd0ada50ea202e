"""Sets the Borgee demo up and plays it."""

from __future__ import annotations

import os
import secrets

from bdh_bridge.demo.borgee.conversation import ANSWERS
from bdh_bridge.demo.borgee.server import StandInServer
from bdh_bridge.demo.borgee.stage import BorgeeStage
from bdh_bridge.demo.borgee.steps import STEPS
from bdh_bridge.demo.display import Display
from bdh_bridge.demo.home import DemoHome, configure
from bdh_bridge.demo.interrupts import ignored
from bdh_bridge.demo.model_server import ScriptedModelServer
from bdh_bridge.demo.performance import (
    healthy,
    play_steps,
    send_spans,
    setting_up,
    start_graph,
    stop_all,
)
from bdh_bridge.demo.processes import Processes, demo_environment
from bdh_bridge.demo.report import Step
from hermes_borgee import setup
from hermes_borgee.constants import HOME_CHANNEL_VARIABLE

#: Seconds between the lines that the model server streams: long enough for Hermes to show them
#: one after the other (it edits at most every 0.8 s).
PAUSE = 0.45


def play(home: DemoHome, display: Display, steps: list[Step]) -> None:
    """Play the demo in ``home``; what was claimed is added to ``steps``."""
    processes = Processes(demo_environment(home.root, os.environ), home.logs, home.root)
    key = f"demo_{secrets.token_urlsafe(24)}"
    with (
        ScriptedModelServer(ANSWERS, home.model_log, pause=PAUSE) as model,
        StandInServer(key) as borgee,
    ):
        try:
            stage = BorgeeStage(home, model, processes, borgee)
            if _set_up(stage, display, steps):
                play_steps(STEPS, stage, stage.reader, display, steps)
                send_spans(home, processes, display, steps)
        finally:
            with ignored():
                stop_all(home, processes, display, steps)


def _set_up(stage: BorgeeStage, display: Display, steps: list[Step]) -> bool:
    home = stage.home
    with setting_up(display, steps) as step:
        configure(home, stage.model.base_url)
        try:
            setup.write(home.root, stage.borgee.url, stage.borgee.key)
            with home.paths.env_file.open("a", encoding="utf-8") as file:
                # Else Hermes asks for it in each new conversation.
                file.write(f"{HOME_CHANNEL_VARIABLE}=operations\n")
        except setup.SetupError as error:
            step.claim("The home is set up for Borgee", False, error)
            return False
        start_graph(home, stage.processes)
        with display.working(
            f"starting a stand-in for a Borgee server, the embedded graph on {home.notes} notes, "
            "and Hermes' gateway"
        ):
            stage.start_gateway()
            stage.processes.wait_ready("graph", lambda: healthy(home.graph_url))
        step.claim(
            "Graph and gateway run, and the gateway is in the chat",
            True,
            f"{home.notes} notes in the vault",
        )
    return step.ok
