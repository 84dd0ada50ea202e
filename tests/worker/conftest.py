from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bdh_bridge.outbox.store import Outbox
from bdh_bridge.paths import BridgePaths
from bdh_bridge.settings import Loaded, load
from bdh_bridge.worker.lock import is_held, read_holder
from tests.support.outbox import accept, open_outbox, wait_until


@dataclass
class Home:
    """A Hermes home whose worker ends with the test."""

    path: Path
    outbox: Outbox
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def paths(self) -> BridgePaths:
        return BridgePaths(self.path)

    def set(self, **variables: str) -> None:
        """Write the home's ``.env``."""
        self.variables |= variables
        lines = [f"{name}={value}\n" for name, value in self.variables.items()]
        # Replaced at once: a worker may read it at any moment.
        part = self.path / ".env.part"
        part.write_text("".join(lines))
        part.replace(self.path / ".env")

    def loaded(self) -> Loaded:
        return load(self.path, environ=clean_environ())

    def accept(self, query: str = "Which port?", **fields: str) -> str:
        return accept(
            self.outbox, query, **{"destination": self.loaded().settings.api_url, **fields}
        )

    def count(self, state: str) -> int:
        return {str(k): v for k, v in self.outbox.stats(wait=10).by_state.items()}.get(state, 0)

    def settled(self) -> bool:
        return not self.outbox.has_work(self.loaded().settings.api_url, wait=10)

    def worker_pid(self) -> int | None:
        if not is_held(self.paths.worker_lock):
            return None
        holder = read_holder(self.paths.worker_lock)
        return holder.pid if holder else None

    def run(self, *arguments: str, environ: Mapping[str, str] | None = None) -> Done:
        """``bdh-bridge --home … arguments`` as a process."""
        command = [sys.executable, "-c", _COMMANDS, "--home", str(self.path), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=90, env=clean_environ(environ)
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def log(self) -> str:
        path = self.paths.directory / "worker.log"
        return path.read_text() if path.exists() else ""

    def end_worker(self) -> None:
        """Kill it, and whoever takes over: one that was started meanwhile may wait for the lock."""

        def killed() -> bool:
            pid = self.worker_pid()
            if pid not in (None, os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not is_held(self.paths.worker_lock)

        wait_until(killed)


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str

    @property
    def json(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.splitlines()]


# These groups alone: a fault in another one must not show up here.
_COMMANDS = "import sys, bdh_bridge.cli as c; c.GROUPS = ('outbox', 'worker'); sys.exit(c.main())"


def clean_environ(more: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("BDH_", "OTEL_")) and name != "INVOCATION_ID"
    }
    return {**kept, "BDH_OTEL_STRICT": "1", **(more or {})}


@pytest.fixture
def make_home(tmp_path, monkeypatch) -> Iterator[Callable[..., Home]]:
    monkeypatch.delenv("INVOCATION_ID", raising=False)
    homes: list[Home] = []

    def make(name: str = "home", **variables: str) -> Home:
        path = tmp_path / name
        path.mkdir()
        home = Home(path, open_outbox(path))
        home.set(**{"BDH_WRITE_TIMEOUT": "2", **variables})
        homes.append(home)
        return home

    yield make
    for home in homes:
        home.end_worker()
        home.outbox.close()
        assert "Traceback" not in home.log()
