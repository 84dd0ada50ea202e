"""A graph, a scripted model and a Hermes home for the tests on the real host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bdh_bridge.demo.model_server import ScriptedAnswer, ScriptedModelServer
from tests.support.embedded_graph import EmbeddedGraph, embedded_graph, sample_vault
from tests.support.hermes import Host, InProcess, in_process, write_config

#: Long enough for the write path.
LONG_ANSWER = (
    "Every write is committed to the SQLite outbox before it is acknowledged, so a crash of the "
    "agent loses nothing; a separate worker delivers the rows in order and retries what certainly "
    "did not arrive, with exponential backoff and jitter, until the graph has taken it in."
)

ANSWERS = (
    ScriptedAnswer("what does the outbox do", LONG_ANSWER),
    ScriptedAnswer("how often is the backup", "The backup runs nightly. " + LONG_ANSWER),
    ScriptedAnswer(
        "ask the graph about tracing",
        "One conversation turn is one trace. " + LONG_ANSWER,
        tool="bdh_query",
        arguments='{"query": "tracing of conversation turns"}',
    ),
    ScriptedAnswer("grazie", "Prego!"),
    ScriptedAnswer("review the conversation above", LONG_ANSWER),
    ScriptedAnswer("nightly digest", LONG_ANSWER),
    ScriptedAnswer("image", LONG_ANSWER),
)


@pytest.fixture(scope="session")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedGraph]:
    vault = sample_vault(tmp_path_factory.mktemp("graph") / "vault")
    with embedded_graph(vault) as server:
        yield server


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ScriptedModelServer]:
    with ScriptedModelServer(ANSWERS, tmp_path / "model.jsonl") as server:
        yield server


@pytest.fixture
def host(tmp_path: Path, model: ScriptedModelServer, graph: EmbeddedGraph) -> Host:
    home = tmp_path / "hermes"
    write_config(home, model.base_url)
    return Host(home, model, {"BDH_API_URL": graph.url})


@pytest.fixture
def hermes(host: Host) -> Iterator[InProcess]:
    with in_process(host) as running:
        yield running
