"""Finished sessions summarised by real workers, over real providers, into a real graph."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bdh_bridge.transcripts import Transcripts, WrittenTurn
from bdh_bridge.worker import launch
from bdh_bridge.worker.launch import LaunchOutcome, ensure_worker, worker_command
from bdh_bridge.worker.lock import WorkerLock, is_held
from bdh_bridge.worker.service import Worker
from bdh_otel import attributes as attr
from bdh_otel.reader import SpanReader
from tests.support import model_server as ms
from tests.support.embedded_graph import EmbeddedGraph, embedded_graph, sample_vault
from tests.support.outbox import wait_until
from tests.worker.conftest import Home, clean_environ

SUMMARY = {
    "durable": True,
    "topic": "Riparo riscaldato dell'antenna",
    "summary": "Il riparo riscaldato si monta ogni novembre, perché la neve riduce il segnale.",
}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedGraph]:
    with embedded_graph(sample_vault(tmp_path_factory.mktemp("graph") / "vault")) as running:
        yield running


@pytest.fixture
def model() -> Iterator[ms.ModelServer]:
    with ms.ModelServer(ms.answer(SUMMARY)) as running:
        yield running


@pytest.fixture
def home(make_home: Callable[..., Home], graph: EmbeddedGraph, model: ms.ModelServer) -> Home:
    launch._started_at.clear()
    return make_home(
        BDH_API_URL=graph.url,
        BDH_SESSION_SYNTH_ENABLED="true",
        BDH_REWRITE_CHAIN="local",
        BDH_REWRITE_LOCAL_URL=model.url,
    )


def written(home: Home, session: str, count: int = 3) -> Transcripts:
    """A session of ``count`` turns that were written."""
    transcripts = Transcripts(home.paths.sessions)
    for number in range(count):
        turn = WrittenTurn("Quando si monta il riparo?", "Ogni novembre. " * 20, "")
        assert transcripts.add(
            turn, session_id=session, write_id=f"{session}-{number}", platform="cli",
            destination=home.loaded().settings.api_url, vault_id="",
        )  # fmt: skip
    return transcripts


def make_quiet(home: Home, session: str) -> None:
    """As if its last turn were an hour ago."""
    with closing(sqlite3.connect(home.paths.sessions, timeout=10)) as connection:
        connection.execute("UPDATE sessions SET last_at = last_at - 3601 WHERE id = ?", (session,))
        connection.commit()


def processed(graph: EmbeddedGraph) -> int:
    return int(graph.get("/api/stats")["queries_processed"])


def spans(home: Home, name: str) -> list[Any]:
    if not home.paths.spans.exists():
        return []
    with closing(SpanReader(home.paths.spans)) as reader:
        return [span for span in reader.after(0, 1_000) if span.name == name]


def test_a_finished_session_reaches_the_graph(
    home: Home, graph: EmbeddedGraph, model: ms.ModelServer
) -> None:
    before = processed(graph)
    transcripts = written(home, "s-1")
    assert ensure_worker(home.loaded()).outcome is LaunchOutcome.STARTED, "it waits for the hour"
    wait_until(lambda: is_held(home.paths.worker_lock))
    assert transcripts.mark_ended("s-1", "finalize")
    ensure_worker(home.loaded())
    wait_until(lambda: home.count("delivered") == 1)
    assert processed(graph) == before + 1
    wait_until(lambda: spans(home, "bdh.deliver"))
    (synthesis,), (delivery,) = spans(home, "bdh.synthesis"), spans(home, "bdh.deliver")
    assert synthesis.attributes[attr.SYNTHESIS_OUTCOME] == "queued"
    assert delivery.trace_id == synthesis.trace_id
    assert delivery.attributes[attr.CONVERSATION_ID] == "s-1"
    assert len(model.requests) == 1


def test_a_worker_that_ended_has_lost_nothing(home: Home, model: ms.ModelServer) -> None:
    """Nobody marked the session and no worker runs: the next one finds it."""
    written(home, "s-1")
    make_quiet(home, "s-1")
    assert not is_held(home.paths.worker_lock)
    assert ensure_worker(home.loaded()).outcome is LaunchOutcome.STARTED
    wait_until(lambda: home.count("delivered") == 1)
    assert spans(home, "bdh.synthesis")[0].attributes[attr.SYNTHESIS_TRIGGER] == "quiet"


def test_nothing_is_started_where_it_is_switched_off(home: Home) -> None:
    written(home, "s-1").mark_ended("s-1", "finalize")
    home.set(BDH_SESSION_SYNTH_ENABLED="false")
    assert ensure_worker(home.loaded()).outcome is LaunchOutcome.NOT_NEEDED


def test_a_worker_killed_while_the_model_thinks_is_made_good_by_the_next(
    home: Home, graph: EmbeddedGraph, model: ms.ModelServer
) -> None:
    model.reply = ms.hang()
    before = processed(graph)
    written(home, "s-1").mark_ended("s-1", "finalize")
    ensure_worker(home.loaded())
    wait_until(lambda: model.requests)
    pid = home.worker_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_held(home.paths.worker_lock))
    model.reply = ms.answer(SUMMARY)
    launch._started_at.clear()
    assert ensure_worker(home.loaded()).outcome is LaunchOutcome.STARTED
    wait_until(lambda: home.count("delivered") == 1)
    assert processed(graph) == before + 1
    assert home.outbox.stats(wait=5).open_rows == 0


def test_many_workers_and_many_ends_make_one_summary(
    home: Home, graph: EmbeddedGraph, model: ms.ModelServer
) -> None:
    before = processed(graph)
    transcripts = written(home, "s-1")
    processes = [subprocess.Popen(worker_command(home.path), env=clean_environ()) for _ in range(4)]
    for _ in range(3):
        transcripts.mark_ended("s-1", "finalize")
        transcripts.mark_ended("s-1", "reset")
    for process in processes:
        process.wait(60)
    wait_until(lambda: home.count("delivered") == 1)
    transcripts.mark_ended("s-1", "finalize")
    written(home, "s-2", 1).mark_ended("s-2", "finalize")
    ensure_worker(home.loaded())
    wait_until(lambda: len(spans(home, "bdh.synthesis")) == 2)
    outcomes = [span.attributes[attr.SYNTHESIS_OUTCOME] for span in spans(home, "bdh.synthesis")]
    assert outcomes == ["queued", "too_few_turns"]
    assert processed(graph) == before + 1
    assert len(model.requests) == 1


def test_it_stays_for_a_session_that_may_become_quiet_and_ends_after_it(home: Home) -> None:
    written(home, "s-1")
    lock = WorkerLock(home.paths.worker_lock)
    assert lock.acquire(wait=1.0, version="0", mode="command")
    worker = Worker(home.loaded(), lock, mode="command", linger=0.1)
    reasons: list[str] = []
    running = threading.Thread(target=lambda: reasons.append(worker.run()))
    running.start()
    running.join(1.5)
    assert running.is_alive(), "many times its linger"
    make_quiet(home, "s-1")
    running.join(60.0)
    assert reasons == ["nothing to do"]
    assert home.count("delivered") == 1


def test_a_damaged_file_is_put_aside_and_the_worker_goes_on(home: Home) -> None:
    path: Path = home.paths.sessions
    home.accept()
    path.write_bytes(b"no database " * 1_000)
    path.chmod(0o600)
    ensure_worker(home.loaded())
    wait_until(lambda: home.count("delivered") == 1)
    wait_until(lambda: list(path.parent.glob("sessions.sqlite3.corrupt-*")))
    written(home, "s-1").mark_ended("s-1", "finalize")
    wait_until(lambda: home.count("delivered") == 2)
    assert home.log().count("was damaged") == 1
