from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bdh_bridge.routing.rewrite import Rewriter
from bdh_bridge.settings import Settings
from bdh_bridge.state import SharedState
from bdh_otel.tracer import Tracer
from tests.support.model_server import ModelServer

MakeServer = Callable[..., ModelServer]
MakeRewriter = Callable[..., Rewriter]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def state(home: Path) -> Iterator[SharedState]:
    shared = SharedState(home / "state.sqlite3", busy_timeout=5.0)
    yield shared
    shared.close()


@pytest.fixture
def tracer(home: Path) -> Iterator[Tracer]:
    made = Tracer(home / "spans.sqlite3")
    yield made
    made.shutdown()


@pytest.fixture
def server() -> Iterator[MakeServer]:
    """Starts model servers; all end with the test."""
    started: list[ModelServer] = []

    def start(*args: Any) -> ModelServer:
        started.append(ModelServer(*args))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def rewriter(state: SharedState, tracer: Tracer) -> MakeRewriter:
    """A rewriter over real state and spans; keywords are environment variables or callables."""

    def make(nous_credentials: Any = None, host_llm: Any = None, **variables: Any) -> Rewriter:
        return Rewriter(Settings(**variables), state, tracer, nous_credentials, host_llm)

    return make
