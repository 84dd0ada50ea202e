"""A Hermes home, the command line in this process, and environments with a Hermes of choice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bdh_bridge.cli import main
from bdh_bridge.paths import BridgePaths
from bdh_bridge.settings import Loaded, load
from tests.support.embedded_graph import EmbeddedGraph, embedded_graph, sample_vault

TOKEN = "graph-token-4711"


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def checks(self, name: str) -> list[tuple[str, str, str]]:
        """Level, text and mend of each line of a report as JSON with this name."""
        return [
            (check["level"], check["text"], check["mend"])
            for check in self.json["checks"]
            if check["name"] == name
        ]


class Home:
    """A Hermes home and what an operator does in it."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self._capsys = capsys
        self._variables: dict[str, str] = {}
        path.mkdir(parents=True)

    @property
    def paths(self) -> BridgePaths:
        return BridgePaths(self.path)

    def loaded(self) -> Loaded:
        return load(self.path, environ={})

    def set(self, **variables: str) -> None:
        self._variables |= variables
        self.paths.env_file.write_text(
            "".join(f"{name}={value}\n" for name, value in self._variables.items())
        )
        self.paths.env_file.chmod(0o600)

    def enable(self, *names: str) -> None:
        listed = "".join(f"    - {name}\n" for name in names)
        (self.path / "config.yaml").write_text(f"plugins:\n  enabled:\n{listed}")

    def run(self, *arguments: str) -> Done:
        """``bdh-bridge --home HOME …``"""
        self._capsys.readouterr()
        try:
            status = main(["--home", str(self.path), *arguments])
        except SystemExit as error:  # argparse
            status = int(error.code or 0)
        printed = self._capsys.readouterr()
        return Done(status, printed.out, printed.err)

    def doctor(self, *arguments: str) -> Done:
        return self.run("doctor", "--json", *arguments)


@pytest.fixture(autouse=True)
def _no_settings_of_the_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("BDH_", "OTEL_", "HERMES_", "OLLAMA_", "OPENROUTER_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("BDH_OTEL_STRICT", "1")


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    found = Home(tmp_path / "hermes", capsys)
    found.enable("bdh-hermes-bridge")
    return found


@pytest.fixture(scope="session")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedGraph]:
    """The real embedded graph, behind a token."""
    vault = sample_vault(tmp_path_factory.mktemp("graph") / "vault")
    with embedded_graph(vault, token=TOKEN) as server:
        yield server


@pytest.fixture
def python_with(tmp_path: Path) -> Callable[..., str]:
    """Makes a Python environment that holds the given distributions, by their metadata.

    ``python_with(("hermes-agent", "0.17.0", ""), ("other", "1", "bdh-hermes-bridge = other"))``:
    the third part is what the distribution registers as Hermes plugins.
    """

    def make(*distributions: tuple[str, str, str]) -> str:
        folder = tmp_path / "environment"
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60
        )
        (packages,) = folder.glob("lib/python*/site-packages")
        # The YAML parser that every Hermes brings.
        import yaml

        (packages / "yaml").symlink_to(Path(yaml.__file__).parent)
        for name, version, plugins in distributions:
            info = packages / f"{name.replace('-', '_')}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
            if plugins:
                (info / "entry_points.txt").write_text(f"[hermes_agent.plugins]\n{plugins}\n")
        return str(folder / "bin" / "python")

    return make
