"""The command itself: options, plain text, pictures, and a run in a real terminal."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from bdh_bridge.paths import BridgePaths
from tests.tui import scenes
from tests.tui.conftest import PATIENCE, Drive

COMMAND = [sys.executable, "-P", "-m", "bdh_tui"]


def environment(home: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BDH_", "OTEL_", "HERMES_"))}
    return {**kept, "HERMES_HOME": str(home)}


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], env=environment(home), capture_output=True, text=True,
        timeout=90, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--source", "nowhere"], "is no source and no file; there are: local"),
        (["--source", "jaeger=here"], "jaeger needs a URL"),
        (["--profile", "../up"], "is not a profile name"),
        (["--size", "huge"], "is no size such as 120x40"),
    ],
)
def test_a_mistake_is_one_sentence(home: Path, arguments: list[str], told: str) -> None:
    result = run(home, *arguments)
    assert result.returncode == 2
    assert told in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("screen", ["live", "outbox"])
def test_a_screenshot_needs_no_terminal_and_no_font_of_the_web(
    home: Path, tmp_path: Path, screen: str
) -> None:
    target = tmp_path / "screen.svg"
    result = run(home, "--screenshot", str(target), "--screen", screen, "--size", "100x30")
    assert (result.returncode, result.stderr) == (0, "")
    text = target.read_text(encoding="utf-8")
    ET.fromstring(text)
    assert "font-face" not in text
    shown = text.replace("&#160;", " ")
    assert "graph" in shown
    assert ("following" if screen == "live" else "you decide") in shown or screen == "outbox"


@contextlib.contextmanager
def listening(home: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, "--plain", "-n", "3"], env=environment(home), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def test_plain_text_tells_turns_in_sentences_and_follows(home: Path) -> None:
    with listening(home) as process:
        assert process.stdout is not None
        told = []
        for line in process.stdout:
            told.append(line)
            if line.startswith("Graph:"):
                break
        text = "".join(told)
        assert "Which alert level closes the lower bridge?" in text
        assert "  Write: problem: nobody knows whether the graph learned it" in text
        assert "Graph: does not answer: unreachable" in text
        assert text.isprintable() or set(text) - {"\n"}
        assert "\x1b" not in text
        scenes.play(BridgePaths(home).spans, 1, over_seconds=1)
        for line in process.stdout:
            if "Why did we choose SQLite" in line:
                break
        assert "3 notes" in line


def test_plain_text_tells_why_no_spans_come(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "--plain", "--source", "jaeger=http://127.0.0.1:9"], text=True,
        env={**environment(tmp_path), "PYTHONIOENCODING": "ascii", "BDH_WORKER": "maybe"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            told = next(line for line in process.stdout if line.startswith("Source: "))
            assert "127.0.0.1:9: ConnectError" in told
            process.terminate()
            rest = process.stdout.read()
            assert "Graph" not in rest, "the graph of this machine is none of theirs"
            assert process.stderr.read().startswith("warning: BDH_WORKER: 'maybe'")
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


async def test_a_home_that_there_is_not_is_named(tmp_path: Path, drive: Drive) -> None:
    home = tmp_path / "typo"
    async with drive(home, size=(200, 30), screen="decisions") as ui:
        await ui.sees("there is no Hermes home at", "no spans yet")
        home.mkdir()
        await ui.until(lambda: "no Hermes home" not in ui.screen, "the home is there")


TMUX = shutil.which("tmux")


@pytest.mark.terminal
@pytest.mark.skipif(TMUX is None, reason="needs tmux")
def test_it_runs_in_a_real_terminal(home: Path, tmp_path: Path) -> None:
    socket = str(tmp_path / "tmux.sock")

    def tmux(*arguments: str) -> str:
        result = subprocess.run(
            ["tmux", "-S", socket, *arguments], capture_output=True, text=True, check=False,
            env={**environment(home), "TERM": "xterm-256color"}, timeout=30,
        )  # fmt: skip
        return result.stdout

    def sees(*texts: str) -> str:
        deadline = time.monotonic() + PATIENCE
        while True:
            screen = tmux("capture-pane", "-p")
            if all(text in screen for text in texts):
                return screen
            assert time.monotonic() < deadline, f"{texts} never seen in:\n{screen}"
            time.sleep(0.1)

    command = " ".join([*COMMAND, "; echo ended $?; sleep 60"])
    tmux("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", command)
    try:
        sees("1 Live", "following", "Which alert level")
        tmux("send-keys", "Down", "Enter")
        sees("quarantined", "├─ ✓ read bridge")
        tmux("send-keys", "6")
        sees("salaries", "in use")
        tmux("send-keys", "1", "/")
        tmux("send-keys", "-l", "read:casual")
        sees("small talk")
        tmux("send-keys", "Enter")
        tmux("resize-window", "-x", "80", "-y", "24")
        sees("1 Live", "small talk")
        # Ctrl+Q leaves wherever the focus is.
        tmux("send-keys", "C-q")
        screen = sees("ended 0")
        assert "Traceback" not in screen
    finally:
        tmux("kill-server")
