"""Finding the Hermes installation that a home belongs to, and what it sees of the bridge."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bdh_bridge
from bdh_bridge.operator import probe

PLUGINS = (bdh_bridge.DISTRIBUTION, "borgee")
#: The oldest release that the tests run on, and the newest line of releases.
OLDEST, NEWEST = (0, 18, 2), (0, 19)
_PROBE_SECONDS = 60.0


class HermesNotFoundError(Exception):
    """There is no Hermes, or its Python can't be run. ``str()`` says where was looked."""


@dataclass(frozen=True, slots=True)
class EntryPoint:
    name: str
    module: str
    distribution: str
    version: str

    @property
    def ours(self) -> bool:
        return _normal(self.distribution) == bdh_bridge.DISTRIBUTION


@dataclass(frozen=True, slots=True)
class Clone:
    """A folder below ``plugins/``. ``ours`` is False for the published bridge, and for one of
    another name."""

    name: str
    path: Path
    version: str
    ours: bool


@dataclass(frozen=True, slots=True)
class Installation:
    """A Hermes and what it would load for one home."""

    python: str
    python_version: str
    version: str
    entry_points: tuple[EntryPoint, ...]
    missing: tuple[str, ...]
    clones: tuple[Clone, ...]
    config_exists: bool
    config_error: str
    enabled: frozenset[str]
    disabled: frozenset[str]

    def installed(self, name: str) -> bool:
        """The plugin is there as this project's package."""
        return any(point.name == name and point.ours for point in self.entry_points)

    def clones_of(self, name: str) -> list[Clone]:
        return [clone for clone in self.clones if clone.name == name]

    @property
    def is_this_python(self) -> bool:
        return Path(self.python) == Path(sys.executable)


def find(home: Path, python: str = "", *, environ: Mapping[str, str] | None = None) -> Installation:
    """Look at the Hermes of ``python``, or of the first Python that has one.

    That is this Python, the one of ``HOME/hermes-agent``, where Hermes' installer puts it, or
    the one that the ``hermes`` on the search path runs. Raises: HermesNotFoundError.
    """
    question = {"home": str(home), "modules": dict(bdh_bridge.REQUIRED), "names": list(PLUGINS)}
    if python:
        return _ask(python, question)
    if importlib.util.find_spec("hermes_cli") is not None:
        return _installation(probe.look(home, dict(bdh_bridge.REQUIRED), list(PLUGINS)))
    for candidate in _candidates(home, os.environ if environ is None else environ):
        found = _ask(candidate, question)
        if found.version:
            return found
    raise HermesNotFoundError(
        f"no Hermes in {sys.executable}, below {home / 'hermes-agent'} or on the PATH"
    )


def is_supported(version: str) -> bool:
    """Tests run on it, or on a release beside it."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    return numbers >= OLDEST and numbers[:2] <= NEWEST


def is_too_old(version: str) -> bool:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3]) < OLDEST


def _candidates(home: Path, environ: Mapping[str, str]) -> list[str]:
    found = [
        root / "hermes-agent" / folder / "bin" / "python"
        for root in (home, Path.home() / ".hermes")
        for folder in ("venv", ".venv")
    ]
    script = shutil.which("hermes", path=environ.get("PATH"))
    if script is not None:
        resolved = Path(script).resolve()
        if interpreter := _interpreter(resolved):
            found.append(Path(interpreter))
        found.append(resolved.parent / "python")
    return list(dict.fromkeys(str(path) for path in found if os.access(path, os.X_OK)))


def _interpreter(script: Path) -> str:
    """The Python of a console script, by its first line."""
    try:
        with script.open("rb") as file:
            first = file.readline(512).decode("utf-8", "replace")
    except OSError:
        return ""
    match = re.match(r"#!\s*(/\S*python[\d.]*)\s*$", first)
    return match.group(1) if match else ""


def _ask(python: str, question: Mapping[str, object]) -> Installation:
    # Isolated: neither this process's variables nor the current folder decide what is found.
    command = [python, "-I", str(probe.__file__), json.dumps(question)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return _installation(json.loads(done.stdout))
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        raise HermesNotFoundError(f"{python} can't be asked ({type(error).__name__})") from error


def _installation(seen: Mapping[str, Any]) -> Installation:
    config = seen["config"]
    return Installation(
        python=seen["python"],
        python_version=seen["python_version"],
        version=seen["hermes"],
        entry_points=tuple(EntryPoint(**point) for point in seen["plugins"]),
        missing=tuple(seen["missing"]),
        clones=tuple(
            Clone(one["name"], Path(one["path"]), one["version"], bool(one["ours"]))
            for one in seen["clones"]
        ),
        config_exists=config["exists"],
        config_error=config["error"],
        enabled=frozenset(config["enabled"]),
        disabled=frozenset(config["disabled"]),
    )


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
