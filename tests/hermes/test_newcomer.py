"""A newcomer's whole way on a fresh home, by the very script that a release is tried with."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.hermes import REPOSITORY

pytestmark = [pytest.mark.hermes, pytest.mark.slow]


def test_from_a_fresh_home_to_the_first_span_on_the_screen() -> None:
    done = subprocess.run(
        [sys.executable, "-P", str(REPOSITORY / "scripts" / "newcomer.py")],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    times = json.loads(done.stdout.splitlines()[-1])
    assert list(times) == [
        "install",
        "graph start",
        "doctor",
        "first turn",
        "first trace",
        "first span on the screen",
    ]
