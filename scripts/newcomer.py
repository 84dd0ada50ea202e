"""A newcomer's way, timed: from a Hermes that talks to the first span on the screen.

Run with the Python of an environment in which Hermes and the bridge are installed. A home of its
own, a model server with scripted answers; everything else is what a person would do. Exit status
1 where a step does not show what it should.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import bdh_bridge.demo
from bdh_bridge.demo.conversation import ANSWERS, QUESTION
from bdh_bridge.demo.model_server import ScriptedModelServer
from bdh_bridge.demo.processes import demo_environment, stop_workers

SCRIPTS = Path(sys.executable).parent
PATIENCE = 120.0


class StepError(Exception):
    """A step did not show what it should."""


class Newcomer:
    def __init__(self, root: Path, model_url: str) -> None:
        self.home = root / "hermes"
        self.vault = root / "notes"
        self.times: dict[str, float] = {}
        # What `hermes setup` leaves behind, with a model of our own.
        self.home.mkdir()
        model = {"default": "fake", "provider": "custom", "base_url": model_url}
        model |= {"api_key": "none-needed", "context_length": 128_000}  # type: ignore[dict-item]
        security = {"allow_lazy_installs": False, "tirith_enabled": False}
        config = {"model": model, "security": security}
        (self.home / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
        shutil.copytree(Path(bdh_bridge.demo.__file__).with_name("vault"), self.vault)
        self.environment = {
            **demo_environment(self.home, os.environ),
            "TERM": "xterm-256color",
            "PATH": f"{SCRIPTS}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    def step(self, name: str, wanted: str, run: Callable[[], str]) -> None:
        began = time.monotonic()
        shown = run()
        self.times[name] = round(time.monotonic() - began, 2)
        print(f"{self.times[name]:6.1f} s  {name}", flush=True)
        if wanted not in shown:
            raise StepError(f"{name}: {wanted!r} is not in:\n{shown}")

    def run(self, *command: str) -> str:
        done = subprocess.run(
            [sys.executable, str(SCRIPTS / command[0]), *command[1:]],
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return done.stdout + done.stderr

    def screen(self, wanted: str) -> str:
        """Start the terminal UI in a terminal of its own and wait until it shows ``wanted``."""
        process, terminal = pty.fork()
        if process == 0:
            os.chdir(self.home)
            script = str(SCRIPTS / "bdh-bridge-tui")
            os.execve(sys.executable, [sys.executable, script], self.environment)  # noqa: S606
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
        seen, deadline = b"", time.monotonic() + PATIENCE
        try:
            while wanted.encode() not in seen and time.monotonic() < deadline:
                if select.select([terminal], [], [], 0.2)[0]:
                    seen += os.read(terminal, 65536)
        except OSError:
            pass  # it ended
        finally:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            os.close(terminal)
        return seen.decode("utf-8", "replace")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="bdh-newcomer-") as folder:
        root = Path(folder).resolve()
        with ScriptedModelServer(ANSWERS, root / "model.jsonl") as model:
            newcomer = Newcomer(root, model.base_url)
            try:
                _walk(newcomer)
            except StepError as error:
                print(f"FAILED {error}", file=sys.stderr)
                return 1
            finally:
                newcomer.run("bdh-bridge", "graph", "stop")
                stop_workers(newcomer.home)
    print(f"{sum(newcomer.times.values()):6.1f} s  in all")
    print(json.dumps(newcomer.times))
    return 0


def _walk(newcomer: Newcomer) -> None:
    run = newcomer.run
    port = str(_free_port())
    newcomer.step(
        "install",
        "is added to plugins.enabled",
        lambda: run("bdh-bridge", "install", "--graph", f"http://127.0.0.1:{port}"),
    )
    newcomer.step(
        "graph start",
        f"http://127.0.0.1:{port}",
        lambda: run("bdh-bridge", "graph", "start", "--vault", str(newcomer.vault)),
    )

    def doctor() -> str:
        checks = json.loads(run("bdh-bridge", "doctor", "--json"))["checks"]
        return str([check for check in checks if check["level"] != "ok"] or "all is well")

    newcomer.step("doctor", "all is well", doctor)
    newcomer.step(
        "first turn",
        "One writer is enough for twelve buoys",
        lambda: run("hermes", "chat", "-Q", "-q", QUESTION),
    )
    newcomer.step("first trace", "bdh.turn", lambda: run("bdh-bridge", "spans", "tail", "--json"))
    newcomer.step("first span on the screen", QUESTION[:24], lambda: newcomer.screen(QUESTION[:24]))


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
