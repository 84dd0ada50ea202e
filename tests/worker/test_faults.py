"""Nothing is lost and nothing learned twice, whoever dies. The long form, with a thousand writes,
is ``benchmarks/outbox_faults.py``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from bdh_bridge.worker.launch import ensure_worker
from tests.support import faulty_graph as behave
from tests.support import outbox_faults
from tests.support.faulty_graph import FaultyGraph
from tests.support.outbox import wait_until
from tests.worker.conftest import Home, clean_environ


@pytest.mark.parametrize(("kind", "writes"), [("keys", 24), ("embedded", 16)])
def test_with_keys_everything_is_learned_exactly_once(tmp_path, kind, writes):
    report = outbox_faults.run(kind, tmp_path, writes=writes, seed=7, calm=0.5, disturbances=10)
    assert report.acknowledged >= writes
    assert report.lost == []
    assert report.learned_twice == []
    assert set(report.by_state) == {"delivered"}


def test_without_keys_nothing_is_learned_twice_and_every_doubt_is_visible(tmp_path):
    report = outbox_faults.run("no_keys", tmp_path, writes=24, seed=7, calm=0.5, disturbances=10)
    assert report.acknowledged >= 24
    assert report.lost == []
    assert report.learned_twice == []
    assert report.doubtful > 0
    assert set(report.by_state) <= {"delivered", "quarantined", "unconfirmed"}


_LIMITED_HOST = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
from pathlib import Path
from bdh_bridge.outbox.store import NewWrite, Outbox, Refused
from bdh_bridge.settings import load
loaded = load(Path(sys.argv[1]))
outbox = Outbox(loaded.paths.outbox, spool=loaded.paths.outbox_spool)
for number in range(20):
    result = outbox.accept(NewWrite(
        query=f"q{number}", user_prompt="x" * 40_000, source="assistant_response",
        destination=loaded.settings.api_url,
    ))
    print(type(result).__name__, flush=True)
"""


@pytest.mark.parametrize(
    ("limit", "kinds"),
    [(300_000, {"Accepted", "Spooled"}), (30_000, {"Refused"})],
)
def test_a_host_whose_files_may_not_grow_loses_nothing_that_it_acknowledged(
    make_home: Callable[..., Home], limit, kinds
):
    with FaultyGraph(behave.learns) as graph:
        home = make_home(BDH_API_URL=graph.url)
        command = [sys.executable, "-c", _LIMITED_HOST, str(home.path), str(limit)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=clean_environ(), timeout=60, check=True
        )
        results = done.stdout.split()
        assert len(results) == 20
        assert set(results) == kinds
        kept = len([result for result in results if result != "Refused"])
        ensure_worker(home.loaded())
        wait_until(lambda: sum(graph.learned.values()) == kept)
        assert set(graph.learned.values()) <= {1}
