"""The real Hermes Agent in a home of its own: in this process, or as its command line."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bdh_bridge.demo.model_server import ScriptedModelServer
from bdh_bridge.paths import BridgePaths
from bdh_otel.reader import SpanReader, StoredSpan

PLUGIN = "bdh-hermes-bridge"
REPOSITORY = Path(__file__).resolve().parents[2]


def write_config(home: Path, model_url: str, **extra: Any) -> None:
    """A ``config.yaml`` that points Hermes at a local model and enables the plugin."""
    home.mkdir(parents=True, exist_ok=True)
    config = {
        "model": {
            "default": "fake",
            "provider": "custom",
            "base_url": model_url,
            "api_key": "sk-fake",
            "context_length": 128_000,  # else Hermes asks the internet for it
        },
        "plugins": {"enabled": [PLUGIN]},
        "agent": {"api_max_retries": 1},
        "security": {"allow_lazy_installs": False, "tirith_enabled": False},
        **extra,
    }
    (home / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")


@dataclass
class Host:
    """One Hermes home with the plugin enabled."""

    home: Path
    model: ScriptedModelServer
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def paths(self) -> BridgePaths:
        return BridgePaths(self.home)

    def environment(self) -> dict[str, str]:
        """For child processes: no BDH setting of the surroundings leaks in."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("BDH_", "OTEL_", "HERMES_"))
        }
        return {
            **inherited,
            "BDH_OTEL_STRICT": "1",
            "HERMES_HOME": str(self.home),
            **self.environ,
        }

    def run(
        self, *arguments: str, timeout: float = 90, python: str = sys.executable
    ) -> subprocess.CompletedProcess[str]:
        """``hermes …`` in a process of its own."""
        return subprocess.run(
            [python, "-m", "hermes_cli.main", *arguments],
            env=self.environment(),
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    def spans(self) -> list[StoredSpan]:
        """All spans in the store, in the order of their storing."""
        with contextlib.closing(SpanReader(self.paths.spans)) as reader:
            try:
                return reader.after(0, limit=100_000)
            except FileNotFoundError:  # not there, or still being made
                return []

    def wait_for(
        self, wanted: Callable[[list[StoredSpan]], Any], seconds: float = 60
    ) -> list[StoredSpan]:
        """The spans, once they are as ``wanted``."""
        deadline = time.monotonic() + seconds
        while True:
            spans = self.spans()
            if wanted(spans):
                return spans
            if time.monotonic() > deadline:
                listed = "\n".join(f"{s.name} {dict(s.attributes)}" for s in spans)
                raise AssertionError(f"not seen within {seconds} s among:\n{listed}")
            time.sleep(0.05)

    def log(self) -> str:
        """What Hermes logged."""
        return "".join(
            path.read_text(encoding="utf-8", errors="replace")
            for path in sorted((self.home / "logs").glob("*.log"))
        )


class InProcess:
    """Hermes' agents in this process, with the plugin registered for one home."""

    def __init__(self, host: Host) -> None:
        self.host = host

    @property
    def bridge(self) -> Any:
        from bdh_bridge import plugin

        assert plugin._homes is not None
        return plugin._homes.bridge()

    def agent(self, session_id: str, **kwargs: Any) -> Any:
        from run_agent import AIAgent

        options: dict[str, Any] = {
            "model": "fake",
            "provider": "custom",
            "base_url": self.host.model.base_url,
            "api_key": "sk-fake",
            "quiet_mode": True,
            "platform": "cli",
            "session_id": session_id,
            "user_id": "",
            "enabled_toolsets": ["bdh"],
            "skip_context_files": True,
            "skip_memory": True,
            "max_iterations": 5,
        }
        return AIAgent(**{**options, **kwargs})

    def say(self, agent: Any, message: Any, **kwargs: Any) -> dict[str, Any]:
        result: dict[str, Any] = agent.run_conversation(message, **kwargs)
        self.bridge.tracer.flush(5)
        return result


@contextlib.contextmanager
def in_process(host: Host) -> Iterator[InProcess]:
    """Register the plugin with the real plugin manager for ``host``'s home."""
    before = dict(os.environ)
    for name in list(os.environ):
        if name.startswith(("BDH_", "OTEL_", "HERMES_")):
            del os.environ[name]
    os.environ.update(host.environment())
    from hermes_cli.plugins import discover_plugins

    from bdh_bridge import plugin

    try:
        discover_plugins(force=True)
        yield InProcess(host)
    finally:
        if plugin._homes is not None:
            plugin._homes.close()
        plugin._homes = plugin._registered = None
        os.environ.clear()
        os.environ.update(before)


def attributes(spans: list[StoredSpan], name: str) -> list[Mapping[str, Any]]:
    """The attributes of every span with this name."""
    return [span.attributes for span in spans if span.name == name]
