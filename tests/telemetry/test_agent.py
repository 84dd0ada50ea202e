"""What telemetry leaves out of the agent's process."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

from bdh_otel.reader import SpanReader
from tests.support import faulty_graph as behave
from tests.support.faulty_graph import FaultyGraph
from tests.support.otlp_receiver import HttpReceiver
from tests.telemetry.stage import KNOWN

_AGENT = """
import sys
from pathlib import Path
from tests.support.waiting import eventually
from tests.telemetry.stage import Stage, spans_of

home, graph, endpoint = sys.argv[1:]
variables = {"BDH_WORKER": "thread", "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
with Stage(Path(home), graph, **variables) as stage:
    stage.turn()
    spans = stage.loaded.paths.spans
    eventually(lambda: any(span.name == "bdh.deliver" for span in spans_of(spans)))
unwanted = ("grpc", "google.protobuf", "opentelemetry.sdk", "opentelemetry.exporter", "numpy")
print(*sorted(name for name in sys.modules if name.startswith(unwanted)))
"""


def test_a_worker_that_is_a_thread_of_the_agent_delivers_and_exports_nothing(
    tmp_path: Path,
) -> None:
    with (
        contextlib.closing(HttpReceiver()) as receiver,
        FaultyGraph(behave.answers(200, KNOWN)) as graph,
    ):
        done = subprocess.run(
            [sys.executable, "-c", _AGENT, str(tmp_path), graph.url, receiver.url],
            cwd=Path(__file__).resolve().parents[2],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == []
        assert receiver.raw == receiver.raw_metrics == []
    with contextlib.closing(SpanReader(tmp_path / "bdh-bridge" / "spans.sqlite3")) as reader:
        assert reader.status().spans > 10
