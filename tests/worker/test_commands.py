"""The operator's commands, as processes on a real outbox."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from bdh_bridge.worker.launch import ensure_worker
from bdh_bridge.worker.lock import WorkerLock, is_held, read_holder
from bdh_otel import names
from bdh_otel.reader import SpanReader
from tests.support import faulty_graph as behave
from tests.support.faulty_graph import FaultyGraph
from tests.support.outbox import wait_until
from tests.worker.conftest import Home


@pytest.fixture
def graph() -> Iterator[FaultyGraph]:
    with FaultyGraph(behave.learns) as running:
        yield running


@pytest.fixture
def home(make_home: Callable[..., Home], graph) -> Home:
    return make_home(BDH_API_URL=graph.url, BDH_WORKER="off")


@pytest.fixture
def quarantined(home, graph) -> str:
    graph.behave = behave.answers(500, {"error": "out of memory"})
    write_id = home.accept("doubtful")
    assert home.run("outbox", "deliver").status == 0
    graph.behave = behave.learns
    return write_id


def test_an_outbox_that_is_not_there_is_a_calm_sentence(home):
    assert home.run("outbox", "list").out == "the outbox is empty\n"
    assert home.run("outbox", "stats", "--json").json[0]["open_rows"] == 0
    assert home.run("outbox", "deliver").out == "0 delivered\n"
    assert not home.paths.outbox.exists()


def test_list_and_stats_for_people_and_for_machines(home):
    write_id = home.accept("Which port does the relay use?", vault_id="alpine")
    home.accept("another", destination="http://127.0.0.1:1")
    listed = home.run("outbox", "list")
    assert write_id[:8] in listed.out
    assert "Which port" in listed.out
    assert "held" in listed.out
    rows = home.run("outbox", "list", "--json").json
    assert [(row["state"], row["held"]) for row in rows] == [("pending", False), ("pending", True)]
    assert "query" not in rows[0]
    assert len(home.run("outbox", "list", "--json", "-n", "1").json) == 1
    assert home.run("outbox", "list", "--state", "failed").out == "no such writes\n"
    assert home.run("outbox", "list", "--older-than", "1h").out == "no such writes\n"
    stats = home.run("outbox", "stats", "--json").json[0]
    assert stats["by_state"] == {"pending": 2}
    assert stats["held"] == 1
    assert "pending      2" in home.run("outbox", "stats").out


def test_show_takes_the_start_of_an_id_and_escapes_what_it_prints(home):
    hostile = "red \x1b[31m bell \x07 c1 \x9b31m rtl \u202e title \x1b]0;gone\x07 end"
    write_id = home.accept(hostile, session_id="s\x1b[2J")
    for command in (["show", write_id[:10]], ["list"]):
        done = home.run("outbox", *command)
        assert done.status == 0
        for raw in ("\x1b", "\x07", "\x9b", "\u202e"):
            assert raw not in done.out
    [shown] = home.run("outbox", "show", write_id, "--json").json
    assert shown["query"] == hostile


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["show", "abc"], "there is no write 'abc'"),
        (["list", "-n", "0"], "-n needs a number"),
        (["discard"], "name ids, or choose with --state"),
        (["requeue", "--older-than", "1d"], "name ids, or choose with --state"),
        (["discard", "abc", "--state", "failed"], "not both"),
        (["list", "--older-than", "soon"], "is no age"),
        (["list", "--state", "lost"], "invalid choice"),
    ],
)
def test_mistakes_get_a_sentence(home, arguments, sentence):
    home.accept()
    done = home.run("outbox", *arguments)
    assert done.status == 2
    assert sentence in done.err
    assert "Traceback" not in done.err


def test_a_file_that_can_not_be_used_gets_a_sentence(home):
    home.accept()
    home.paths.outbox.chmod(0o644)
    done = home.run("outbox", "list")
    assert done.status == 2
    assert "chmod 600" in done.err


def test_requeue_asks_for_a_confirmation_of_the_risk(home, graph, quarantined):
    refused = home.run("outbox", "requeue", quarantined)
    assert refused.status == 2
    assert "--may-learn-twice" in refused.err
    done = home.run("outbox", "requeue", quarantined, "--may-learn-twice")
    assert (done.status, done.out) == (0, "1 requeued\n")
    assert home.run("outbox", "deliver").out == "1 delivered\n"
    assert graph.learned == {"doubtful": 1}
    reader = SpanReader(home.paths.spans)
    spans = [span.outcome for span in reader.after(0, 100) if span.name == names.DELIVER]
    reader.close()
    assert spans == ["quarantined", "retry", "delivered"]


def test_a_failure_is_requeued_without_one(home, graph):
    graph.behave = behave.answers(401, {"error": "Unauthorized"})
    home.accept()
    home.run("outbox", "deliver")
    [row] = home.run("outbox", "list", "--state", "failed", "--json").json
    assert row["error_detail"] == "HTTP 401: Unauthorized"
    graph.behave = behave.learns
    assert home.run("outbox", "requeue", "--state", "failed").out == "1 requeued\n"
    assert home.run("outbox", "deliver").out == "1 delivered\n"


def test_discard_in_bulk(home, quarantined):
    home.accept("stays")
    assert home.run("outbox", "discard", "--state", "quarantined").out == "1 discarded\n"
    assert (home.count("discarded"), home.count("pending")) == (1, 1)
    done = home.run("outbox", "discard", quarantined)
    assert done.status == 2
    assert "is discarded; only" in done.err


def test_deliver_says_what_is_left(home, graph):
    graph.go_down()
    home.accept()
    done = home.run("outbox", "deliver")
    assert (done.status, done.out) == (1, "0 delivered; still there: 1 pending\n")
    graph.start()
    # Without regard to the backoff that the failure left.
    assert home.run("outbox", "deliver").out == "1 delivered\n"


def test_deliver_leaves_it_to_the_worker_that_runs(make_home, graph):
    home = make_home("running", BDH_API_URL=graph.url)
    home.accept()
    ensure_worker(home.loaded())
    wait_until(home.settled)
    pid = home.worker_pid()
    home.accept()
    assert home.run("outbox", "deliver").status == 0
    assert home.count("delivered") == 2
    assert home.worker_pid() == pid


def test_worker_status_stop_and_run(make_home, graph):
    home = make_home("running", BDH_API_URL=graph.url)
    nobody = home.run("worker", "status", "--json")
    assert (nobody.status, nobody.json) == (1, [{"running": False}])
    assert home.run("worker", "stop").out == "no worker runs\n"
    home.accept()
    ensure_worker(home.loaded())
    wait_until(home.settled)
    status = home.run("worker", "status", "--json").json[0]
    assert (status["running"], status["pid"]) == (True, home.worker_pid())
    refused = home.run("worker", "run")
    assert refused.status == 2
    assert "another worker" in refused.err
    assert "has ended" in home.run("worker", "stop").out
    assert not is_held(home.paths.worker_lock)
    assert "worker ends" in home.log()


def test_stop_never_signals_a_stranger(home):
    """The pid in a lock file of a dead worker may be anybody's by now."""
    home.paths.directory.mkdir(exist_ok=True)
    lock = WorkerLock(home.paths.worker_lock)
    assert lock.acquire(wait=0, version="1", mode="process")
    lock.release()
    holder = read_holder(home.paths.worker_lock)
    assert holder is not None
    assert holder.pid == os.getpid()  # alive, but it holds no lock
    assert home.run("worker", "stop").out == "no worker runs\n"
