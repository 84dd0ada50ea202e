"""The demo's own Hermes home: nothing of the user's is read or changed."""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bdh_bridge.demo.conversation import BLACKLIST
from bdh_bridge.demo.model_server import MODEL
from bdh_bridge.paths import BridgePaths


@dataclass(frozen=True, slots=True)
class DemoHome:
    """A temporary folder that is a Hermes home with a vault and logs; ports that were free."""

    root: Path
    graph_port: int
    gateway_port: int
    gateway_key: str

    @property
    def paths(self) -> BridgePaths:
        return BridgePaths(self.root)

    @property
    def vault(self) -> Path:
        return self.root / "vault"

    @property
    def notes(self) -> int:
        """How many notes the vault holds."""
        return sum(1 for _ in self.vault.rglob("*.md"))

    @property
    def logs(self) -> Path:
        return self.root / "demo-logs"

    @property
    def model_log(self) -> Path:
        """What the model server received, one JSON object a line."""
        return self.logs / "model-requests.jsonl"

    @property
    def graph_url(self) -> str:
        return f"http://127.0.0.1:{self.graph_port}"

    @property
    def gateway_url(self) -> str:
        return f"http://127.0.0.1:{self.gateway_port}"


def create_home(parent: Path | None = None) -> DemoHome:
    """Make the folder (owner-only) with the sample vault in it."""
    root = Path(tempfile.mkdtemp(prefix="bdh-demo-", dir=parent)).resolve()
    graph_port, gateway_port = _free_ports(2)
    home = DemoHome(root, graph_port, gateway_port, secrets.token_urlsafe(24))
    home.logs.mkdir()
    shutil.copytree(Path(__file__).with_name("vault"), home.vault)
    return home


def configure(home: DemoHome, model_url: str) -> None:
    """Write what Hermes and the bridge read: config, settings, blacklist."""
    config = {
        "model": {
            "default": MODEL,
            "provider": "custom",
            "base_url": model_url,
            "api_key": "sk-none-needed",
            "context_length": 128_000,
        },
        "plugins": {"enabled": ["bdh-hermes-bridge"]},
        # No shell, no files, no browser: a demo needs none of them, and starts faster.
        "platform_toolsets": {name: ["bdh"] for name in ("cli", "api_server", "cron", "borgee")},
        "security": {"allow_lazy_installs": False, "tirith_enabled": False},
    }
    # JSON is YAML.
    (home.root / "config.yaml").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    home.paths.env_file.touch(mode=0o600)
    home.paths.env_file.write_text(
        f"BDH_API_URL={home.graph_url}\nBDH_OTEL_CONTENT=preview\n", encoding="utf-8"
    )
    home.paths.directory.mkdir(mode=0o700)
    home.paths.blacklist.touch(mode=0o600)
    home.paths.blacklist.write_text(BLACKLIST, encoding="utf-8")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
