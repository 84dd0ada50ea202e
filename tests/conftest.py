"""What holds for all tests."""

from __future__ import annotations

import os
import signal

import pytest

# A span attribute that is not declared is a mistake that production only warns of. Processes
# that tests start inherit this.
os.environ.setdefault("BDH_OTEL_STRICT", "1")

# Started in the background a test run inherits an ignored SIGINT, and hands it on to the programs
# whose Ctrl-C is tested.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hermes marks a process that imported its gateway, and all that it starts."""
    monkeypatch.delenv("_HERMES_GATEWAY", raising=False)
