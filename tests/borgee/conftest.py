"""A Borgee server and a Hermes home for the tests of the adapter."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.borgee import make_home
from tests.support.bpp_server import BppServer

if TYPE_CHECKING:
    from tests.support.borgee_adapter import Bench
    from tests.support.borgee_link import Watched

if importlib.util.find_spec("borgee_plugin_sdk") is None:
    # The adapter is an extra; only what it does without its SDK can be tested then.
    collect_ignore_glob = ["test_borgee_[!p]*.py"]


@pytest.fixture
def server() -> Iterator[BppServer]:
    with BppServer() as running:
        yield running


@pytest.fixture
def home(tmp_path: Path, server: BppServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BDH_OTEL_STRICT", "1")  # a code that is not declared fails the test
    return make_home(tmp_path / "hermes", server.url)


@pytest.fixture
def own_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs in the test's own process takes ``home`` for Hermes' and keeps its locks there."""
    monkeypatch.setenv("HERMES_HOME", str(home))
    monkeypatch.setenv("HERMES_GATEWAY_LOCK_DIR", str(home / "locks"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))


@pytest.fixture
async def bench(home: Path, own_home: None) -> AsyncIterator[Bench]:
    """A connected adapter with a handler of the test's."""
    from tests.support.borgee_adapter import running  # needs the SDK

    async with running(home) as found:
        yield found


@pytest.fixture
async def online(home: Path) -> AsyncIterator[Watched]:
    """A link that is connected; nothing of it may stay when it is closed."""
    from tests.support.borgee_link import watched

    found = watched(home)
    await found.link.start()
    yield found
    await found.link.close()
    assert not [t for t in asyncio.all_tasks() if t.get_name().startswith("borgee")]
