"""The processes that the demo starts, and the promise that none of them stays."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bdh_bridge.demo import interrupts
from bdh_bridge.worker.launch import worker_command

#: Of the caller's environment, only this reaches the demo's processes: nobody's keys, no other
#: bridge's settings. Telemetry settings are meant to.
_KEPT = ("PATH", "LANG", "TZ", "TMPDIR", "TERM", "SYSTEMROOT", "SSL_CERT_FILE", "SSL_CERT_DIR")
_KEPT_PREFIXES = ("LC_", "OTEL_")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


class ProcessError(Exception):
    """A process didn't do what the demo needs. ``str()`` is a sentence with the log's end."""


@dataclass(frozen=True, slots=True)
class Finished:
    status: int
    output: str


def demo_environment(home: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of everything that runs in the demo's ``home``."""
    kept = {
        name: value
        for name, value in environ.items()
        if name in _KEPT or name.startswith(_KEPT_PREFIXES) or name.lower() in _PROXIES
    }
    return {
        **kept,
        "HOME": str(home),
        "HERMES_HOME": str(home),
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "PYTHONUNBUFFERED": "1",
    }


def command(name: str) -> list[str]:
    """The argument list that starts a console script of this Python's environment.

    Raises: ProcessError if it is not installed there.
    """
    script = Path(sys.executable).parent / name
    if not script.exists():
        raise ProcessError(f"{name} is not installed beside {sys.executable}")
    return [sys.executable, str(script)]


class Processes:
    """Starts processes in groups of their own and ends them all in :meth:`stop`."""

    def __init__(self, environment: Mapping[str, str], logs: Path, directory: Path) -> None:
        self.environment = dict(environment)
        self.logs = logs
        self.directory = directory
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, arguments: Sequence[str], **variables: str) -> None:
        """Start a server; its output goes to ``logs/NAME.log``."""
        with self._log(name).open("ab") as log:
            self._start(name, arguments, variables, log)

    def run(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        timeout: float = 90,
        with_errors: bool = False,
    ) -> Finished:
        """Run a command to its end; what it says beside its output goes to ``logs/NAME.log``, or
        into the output ``with_errors``.

        Raises: ProcessError after ``timeout`` seconds.
        """
        # A file and no pipe: whatever the command leaves behind could hold a pipe open.
        with tempfile.TemporaryFile() as output:
            self._start(name, arguments, {}, output, with_errors=with_errors)
            try:
                status = self._running[name].wait(timeout)
            except subprocess.TimeoutExpired as error:
                raise ProcessError(
                    f"{name} took over {timeout:.0f} s{self.end_of_log(name)}"
                ) from error
            finally:
                self.kill(name)
            output.seek(0)
            return Finished(status, output.read().decode("utf-8", "replace"))

    def wait_ready(self, name: str, ready: Callable[[], bool], *, timeout: float = 120) -> None:
        """Wait until ``ready()``. Raises: ProcessError if the process ends first, or too late."""
        deadline = time.monotonic() + timeout
        while not ready():
            status = self._running[name].poll()
            if status is not None:
                raise ProcessError(f"{name} ended with status {status}{self.end_of_log(name)}")
            if time.monotonic() > deadline:
                raise ProcessError(f"{name} was not ready in time{self.end_of_log(name)}")
            time.sleep(0.05)

    def kill(self, name: str) -> None:
        """SIGKILL to the group of ``name``, whatever is left of it."""
        process = self._running.pop(name, None)
        if process is not None:
            _signal(process, signal.SIGKILL)
            process.wait()

    def end(self, name: str, *, timeout: float = 30) -> int:
        """SIGTERM to the group of ``name``; its exit status. Raises: ProcessError if it stays."""
        process = self._running[name]
        _signal(process, signal.SIGTERM)
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise ProcessError(
                f"{name} did not end within {timeout:.0f} s{self.end_of_log(name)}"
            ) from error
        finally:
            self.kill(name)

    def stop(self, grace: float = 8) -> None:
        """End all: politely first, by SIGKILL what is still there after ``grace`` seconds."""
        for process in self._running.values():
            _signal(process, signal.SIGTERM)
        deadline = time.monotonic() + grace
        for process in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for name in list(self._running):
            self.kill(name)

    def _start(
        self,
        name: str,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        output: IO[bytes],
        *,
        with_errors: bool = False,
    ) -> None:
        with self._log(name).open("ab") as log, interrupts.deferred():
            self._running[name] = subprocess.Popen(
                arguments,
                cwd=self.directory,
                env={**self.environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output if with_errors else log,
                start_new_session=True,
            )

    def _log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def end_of_log(self, name: str) -> str:
        """The last lines of ``logs/NAME.log``, to be put behind a sentence; ``""`` if empty."""
        lines = self._log(name).read_text("utf-8", "replace").strip().splitlines()[-8:]
        return "; the end of its log:\n    " + "\n    ".join(lines) if lines else ""


def stop_workers(home: Path, *, grace: float = 15) -> list[str]:
    """End the detached workers of ``home``, politely, and by SIGKILL after ``grace`` seconds.

    They are told from everybody else's by the command that starts them: it names a folder that
    only this demo has. Returns the command lines of those that had to be killed.
    """
    asked: set[int] = set()
    deadline = time.monotonic() + grace
    while (running := _workers(home)) and time.monotonic() < deadline:
        for pid in running.keys() - asked:
            _end(pid, signal.SIGTERM)
        asked |= running.keys()
        time.sleep(0.05)
    for pid in running:
        _end(pid, signal.SIGKILL)
    return list(running.values())


def _workers(home: Path) -> dict[int, str]:
    _, *arguments = worker_command(home)
    started_by = " ".join(arguments)
    return {pid: line for pid, line in running_processes() if started_by in line}


def running_processes() -> Iterator[tuple[int, str]]:
    """Id and command line of every process that can be seen."""
    if Path("/proc/self/cmdline").exists():  # small containers have no ps
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    raw = (entry / "cmdline").read_bytes()
                    yield int(entry.name), raw.replace(b"\0", b" ").decode("utf-8", "replace")
        return
    listing = ["ps", "-A", "-ww", "-o", "pid=,args="]
    for line in subprocess.run(listing, capture_output=True, text=True).stdout.splitlines():
        number, _, arguments = line.strip().partition(" ")
        yield int(number), arguments


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _end(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
