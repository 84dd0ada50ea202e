"""The host's own model and login, as the real host offers them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.routing.conftest import MakeServer
from tests.support import model_server as ms

pytestmark = pytest.mark.hermes

SCRIPT = """
import json, sys
from pathlib import Path
from agent.plugin_llm import PluginLlm
from hermes_cli.auth import AuthError, resolve_nous_runtime_credentials
from bdh_bridge.routing.rewrite import Rewriter
from bdh_bridge.settings import Settings
from bdh_bridge.state import SharedState
from bdh_otel.tracer import Tracer

home = Path(sys.argv[1])
llm = PluginLlm(plugin_id="bdh-hermes-bridge")
made = Rewriter(
    Settings(BDH_REWRITE_CHAIN="nous,hermes", BDH_REWRITE_TIMEOUT=60, BDH_REWRITE_TOTAL_TIMEOUT=90),
    SharedState(home / "state.sqlite3"),
    Tracer(home / "spans.sqlite3"),
    lambda seconds: resolve_nous_runtime_credentials(timeout_seconds=seconds),
    lambda messages, seconds: llm.complete(list(messages), timeout=seconds, temperature=0.0),
)
found = made.rewrite("m", [])
print("FOUND", json.dumps([[h.provider, h.outcome, h.response_model, h.retry_after, h.input_tokens]
    for h in found.hops]))
"""


@pytest.mark.parametrize(
    ("reply", "hop"),
    [
        (ms.answer(ms.ANSWER), ["hermes", "ok", "served-model", None, 812]),
        (ms.rate_limited("45"), ["hermes", "rate_limited", None, 45.0, None]),
    ],
)
def test_the_real_host_answers(
    server: MakeServer, home: Path, reply: ms.Reply, hop: list[object]
) -> None:
    pytest.importorskip("hermes_cli")
    peer = server(reply)
    config = {
        "model": {"default": "m", "provider": "custom", "base_url": peer.url, "api_key": "sk-x"},
        "security": {"allow_lazy_installs": False, "tirith_enabled": False},
    }
    (home / "config.yaml").write_text(json.dumps(config))
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(home)],
        env={**os.environ, "HERMES_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, run.stderr
    assert json.loads(lines[0].removeprefix("FOUND ")) == [
        ["nous", "no_credential", None, None, None],
        hop,
    ]
