"""Screen 8: the Borgee inbox, a real one."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from bdh_otel import database
from hermes_borgee import inbox
from hermes_borgee.config import inbox_path
from hermes_borgee.receipts import Outcome, Status
from tests.support.receipts import plain
from tests.tui.conftest import Drive


@pytest.fixture
def chat_home(home: Path) -> Path:
    """Three messages: one quarantined, one that waits behind it, one of another session."""
    path = inbox_path(home)
    path.parent.mkdir(parents=True)
    with contextlib.closing(database.connect(path, inbox.SCHEMA)) as connection:
        first = inbox.commit(connection, plain("move the siren"))
        inbox.commit(connection, plain("and then?"))
        inbox.commit(connection, plain("hello", session_key="agent:main:borgee:dm:chan-2"))
        assert first is not None
        receipt = inbox.claim(connection, first)
        assert receipt is not None
        assert inbox.start(connection, receipt)
        inbox.mark_in_doubt(connection, Outcome.PROCESS_DIED)
        assert inbox.quarantine(connection, first, Outcome.PROCESS_DIED, "")
    return home


def status(home: Path, number: int) -> Status:
    with contextlib.closing(database.connect(inbox_path(home), inbox.SCHEMA)) as connection:
        receipt = inbox.get(connection, number)
        assert receipt is not None
        return receipt.status


async def test_what_is_held_is_shown_with_its_reason_and_what_waits_behind_it(
    chat_home: Path, drive: Drive
) -> None:
    async with drive(chat_home, size=(200, 30)) as ui:
        assert "8 Borgee" in ui.screen
        await ui.press("8")
        await ui.sees(
            "1 quarantined",
            "waits behind 1, which is quarantined",
            "waits for its turn",
            "Ada in chan-2",
        )
        await ui.press("r")
        await ui.sees("can't be requeued")
        await ui.press("end")
        await ui.sees("its session waits for you (the gateway's process died)")


async def test_a_held_message_is_discarded_through_the_command_line(
    chat_home: Path, drive: Drive
) -> None:
    async with drive(chat_home, size=(160, 30)) as ui:
        await ui.press("8")
        await ui.sees("move the siren")
        await ui.press("end", "r")
        await ui.sees("may happen a second time", "Type requeue")
        await ui.press("escape", "x", "y")
        await ui.until(lambda: status(chat_home, 1) is Status.FAILED, "the decision")
        await ui.sees("receipt 1 discarded")


async def test_without_an_inbox_there_is_no_such_screen(home: Path, drive: Drive) -> None:
    async with drive(home) as ui:
        assert "Borgee" not in ui.screen
        await ui.press("8")
        await ui.sees("There is no Borgee inbox")
