"""A Borgee server and a Hermes home for the tests of the adapter."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.borgee import make_home
from tests.support.bpp_server import BppServer

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
