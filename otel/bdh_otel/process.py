"""Which process wrote something, and whether it still runs.

A process id alone is not enough: ids are reused, containers have their own, and several
machines may share a folder. A process is therefore named by where its id is valid (boot and
process namespace), its id, and its start.
"""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

#: Slack for the clock of systems that tell a start time to the second only.
_START_SLACK = 3.0


@dataclass(frozen=True, slots=True)
class Process:
    """``space`` is where ``pid`` is valid, ``host`` the machine's name, ``start`` an opaque mark
    of the process's start (empty where there is none), ``seen`` when it was alive (Unix
    seconds)."""

    host: str
    space: str
    pid: int
    start: str
    seen: float


def this_process() -> Process:
    """The calling process. Takes some 0.1 ms."""
    pid = os.getpid()
    return Process(platform.node(), _space(), pid, _start(pid), time.time())


def is_alive(process: Process) -> bool | None:
    """Whether ``process`` still runs; None if this can't be told from here (another machine)."""
    here = _space()
    if process.space != here:
        rebooted = process.host == platform.node() and _boot(process.space) != _boot(here)
        return False if rebooted else None
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass  # it exists and belongs to somebody else
    if process.start:
        return _start(process.pid) == process.start
    started = _started_at(process.pid)
    return started is None or started <= process.seen + _START_SLACK


def _boot(space: str) -> str:
    return space.partition(" ")[0]


def _space() -> str:
    """Boot id and process namespace on Linux; the machine's name elsewhere."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return platform.node()


def _start(pid: int) -> str:
    """Start in clock ticks since boot on Linux; empty elsewhere, or if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The name in parentheses may hold blanks and parentheses: count from its end.
    fields = text.rpartition(")")[2].split()
    state, ticks = fields[0], fields[19]
    return "" if state in ("Z", "X") else ticks


def _started_at(pid: int) -> float | None:
    """Unix time of the start, from ``ps`` (macOS); asked by the worker only."""
    import subprocess

    try:
        listed = subprocess.run(
            ["ps", "-o", "etime=", "-p", str(pid)],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        ).stdout.strip()
        days, _, clock = listed.rpartition("-")
        seconds = 0
        for part in clock.split(":"):
            seconds = seconds * 60 + int(part)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return time.time() - seconds - 86_400 * int(days or 0)
