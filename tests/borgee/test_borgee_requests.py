"""Operators' requests to a running gateway: carried out once, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_borgee import inbox, ledger
from hermes_borgee.operator import Operator
from hermes_borgee.receipts import Status
from hermes_borgee.remediation import Refused
from tests.support.borgee import until
from tests.support.borgee_adapter import left_behind, raw_inbox, running

KEY = "agent:main:borgee:channel:chan-1"

pytestmark = pytest.mark.usefixtures("own_home")


def quarantined(home: Path, name: str = "doubtful") -> int:
    number = left_behind(home, Status.IN_DOUBT, KEY, name)
    with raw_inbox(home) as connection:
        inbox.quarantine(connection, number)
    return number


def asked(home: Path, number: int, action: str = "requeue", *, age: float = 0.0) -> int:
    with raw_inbox(home) as connection:
        request = ledger.add_request(connection, number, action, confirmed=True)
        connection.execute("UPDATE requests SET created_at = created_at - ?", (age,))
    return request


def answered(home: Path, request: int) -> ledger.Request | None:
    with raw_inbox(home) as connection:
        found = ledger.get_request(connection, request)
        return found if found is not None and found.state != "waiting" else None


def test_doing_and_answering_are_one_step(home: Path) -> None:
    number = quarantined(home)
    request_id = asked(home, number)
    with raw_inbox(home) as connection:
        [request] = ledger.waiting_requests(connection)
        connection.execute(
            "CREATE TRIGGER dies BEFORE UPDATE ON requests BEGIN SELECT RAISE(ABORT, 'dead'); END"
        )
        with pytest.raises(Exception, match="dead"):
            ledger.carry_out(connection, request, "done")
        found = inbox.get(connection, number)
        assert found is not None
        assert found.status is Status.QUARANTINED
        connection.execute("DROP TRIGGER dies")
        assert ledger.carry_out(connection, request, "done")
        assert not ledger.carry_out(connection, request, "done")
    done = answered(home, request_id)
    assert done is not None
    assert (done.state, done.answer) == ("done", "done")


def test_what_was_withdrawn_is_not_done(home: Path) -> None:
    number = quarantined(home)
    request_id = asked(home, number)
    with raw_inbox(home) as connection:
        [request] = ledger.waiting_requests(connection)
        assert ledger.withdraw_request(connection, request_id)
        assert not ledger.carry_out(connection, request, "done")
        found = inbox.get(connection, number)
        assert found is not None
        assert found.status is Status.QUARANTINED


async def test_a_request_of_long_ago_is_refused_by_the_next_gateway(home: Path) -> None:
    number = quarantined(home)
    old = asked(home, number, age=3600.0)
    async with running(home) as bench:
        refused = await until(lambda: answered(home, old))
        assert refused.state == "refused"
        assert bench.seen == []
        fresh = asked(home, number)
        done = await until(lambda: answered(home, fresh))
        assert done.state == "done"
        await bench.until_state("doubtful", "completed")


async def test_two_operators_at_once_run_it_once(home: Path) -> None:
    number = quarantined(home)
    first = asked(home, number)
    second = asked(home, number)
    async with running(home) as bench:
        states = [(await until(lambda r=r: answered(home, r))).state for r in (first, second)]
        await bench.until_state("doubtful", "completed")
        assert states == ["done", "refused"]
        assert bench.seen == ["doubtful"]


def test_who_goes_away_takes_the_request_back(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number = quarantined(home)

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Operator, "_own", lambda self: None)
    monkeypatch.setattr("hermes_borgee.operator.time.sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Operator(home).settle(number, "discard")
    with raw_inbox(home) as connection:
        assert ledger.waiting_requests(connection) == []


def test_a_number_beyond_every_column_is_no_receipt(home: Path) -> None:
    number = quarantined(home)
    operator = Operator(home)
    assert operator.receipt(10**30) is None
    with pytest.raises(Refused, match="no such receipt"):
        operator.settle(10**30, "discard")
    assert [one.ingest_seq for one in operator.receipts(limit=10**30)] == [number]
    assert [one.ingest_seq for one in operator.attention(limit=10**30)] == [number]
