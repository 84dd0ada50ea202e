"""One encoder and one server for the tests that need none of their own: both start slowly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bdh_bridge.graph.embedded.encoder import Encoder
from bdh_bridge.graph.embedded.service import GraphService
from bdh_bridge.graph.embedded.state import GraphState
from tests.support.embedded_graph import EmbeddedGraph, embedded_graph, sample_vault


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    return Encoder()


@pytest.fixture(scope="session")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedGraph]:
    """A running server of the sample vault, shared: tests may teach it, but make no notes."""
    with embedded_graph(sample_vault(tmp_path_factory.mktemp("graph") / "vault")) as server:
        yield server


@pytest.fixture
def service(vault: Path, tmp_path: Path, encoder: Encoder) -> Iterator[GraphService]:
    """The graph behind the routes, in this process."""
    state = GraphState(tmp_path / "service.sqlite3", vault)
    service = GraphService(vault, state, encoder)
    service.load(lambda done, total: None)
    yield service
    state.close()


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    return sample_vault(tmp_path / "vault")
