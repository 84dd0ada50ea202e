"""kill -9 at every point of a message's way, then a restart.

No message is lost, none runs twice by itself, and each doubtful one is visible and can be settled.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hermes_borgee.operator import Operator
from hermes_borgee.receipts import Outcome, Status
from tests.support.borgee_adapter import running
from tests.support.borgee_child import POINTS, VICTIM
from tests.support.bpp_server import BppServer

REPOSITORY = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.usefixtures("own_home")


def ran(home: Path) -> list[str]:
    return (home / "ran").read_text().splitlines() if (home / "ran").exists() else []


def completed(home: Path, text: str) -> bool:
    return any(r.source_body == text for r in Operator(home).receipts([Status.COMPLETED]))


def killed_at(point: str, home: Path, server: BppServer) -> None:
    """Run the adapter in a process of its own until it has killed itself at ``point``."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.borgee_child", str(home), point],
        cwd=REPOSITORY,
        env={**os.environ, "HERMES_HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == "ready"
        server.push("before")
        deadline = time.monotonic() + 30
        while not completed(home, "before"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        server.push(VICTIM)
        server.push("behind")
        assert child.wait(30) == -signal.SIGKILL


@pytest.mark.parametrize("point", POINTS)
async def test_a_death_loses_nothing_and_repeats_nothing(
    home: Path, server: BppServer, point: str
) -> None:
    killed_at(point, home, server)
    before_restart = ran(home)
    async with running(home) as bench:
        server.push("after the restart", channel_id="c2")
        await bench.until_state("after the restart", "completed")
        if point in ("committed", "claimed"):
            # It had not begun: it runs now, once, and nobody has to do anything.
            await bench.until_state(VICTIM, "completed")
            assert before_restart.count(VICTIM) == 0
            assert bench.seen.count(VICTIM) == 1
            return
        doubtful = await bench.until_state(VICTIM, "quarantined")
        assert doubtful.outcome == Outcome.PROCESS_DIED
        assert VICTIM not in bench.seen
        assert before_restart.count(VICTIM) == (0 if point == "begun" else 1)
        await bench.adapter.remediate_receipt(
            doubtful.ingest_seq, "requeue", confirm_duplicate_side_effect_risk=True
        )
        await bench.until_state(VICTIM, "completed")
        assert bench.seen.count(VICTIM) == 1
        # What it held back runs now; nothing stays open.
        for text, _, _ in await bench.states():
            await bench.until_state(text, "completed")


async def test_a_second_death_during_recovery_changes_nothing(
    home: Path, server: BppServer
) -> None:
    killed_at("running", home, server)
    for _ in range(2):
        async with running(home) as bench:
            await bench.until_state(VICTIM, "quarantined")
            assert bench.seen == []
