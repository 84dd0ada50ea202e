"""Order, bounds and lanes, with a real inbox and a host that the test controls."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from hermes_borgee import inbox
from hermes_borgee.desk import Desk
from hermes_borgee.receipts import DispatchClass, NewReceipt, Outcome, Receipt, Status
from hermes_borgee.scheduler import Deferred, Ended, Result, Scheduler

ORDINARY, CONTROL, STOP = DispatchClass.ORDINARY, DispatchClass.CONTROL, DispatchClass.URGENT_STOP


class Host:
    """The scheduler's work: a real inbox, and runs that end when the test says so."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.heads, self.head, self.blocked = desk.heads, desk.head, desk.blocked
        self.claim, self.demote = desk.claim, desk.demote
        self.reason = ""
        self.foreign: set[str] = set()
        """Sessions in which Hermes runs a turn of its own."""
        self.log: list[str] = []
        self.running: dict[str, Receipt] = {}
        self.most = 0
        self.gates: dict[str, asyncio.Event] = {}
        self.verdicts: dict[str, Callable[[], Result]] = {}

    def not_ready(self) -> str:
        return self.reason

    def turn_runs(self, session_key: str) -> bool:
        return session_key in self.foreign or session_key in self.running

    async def run(self, receipt: Receipt) -> Result:
        name = receipt.message_id
        if name in self.verdicts:
            result = self.verdicts.pop(name)()
            if isinstance(result, Deferred):
                await self.desk.give_back(receipt, demote=result.demoted)
            return result
        ordinary = receipt.dispatch_class is ORDINARY
        assert not ordinary or receipt.session_key not in self.running, "two turns at once"
        self.log.append(name)
        if ordinary:
            self.running[receipt.session_key] = receipt
            self.most = max(self.most, len(self.running))
        await self.desk.begin(receipt)
        if name in self.gates:
            await self.gates[name].wait()
        await self.desk.finish(receipt, Status.COMPLETED, Outcome.TURN_RAN)
        if ordinary:
            del self.running[receipt.session_key]
        return Ended()


@dataclasses.dataclass
class Bench:
    host: Host
    scheduler: Scheduler

    async def put(self, name: str, session: str = "s", lane: DispatchClass = ORDINARY) -> int:
        number = await self.host.desk.commit(receipt(name, session, dispatch_class=lane))
        assert number is not None
        self.scheduler.committed(session, number, lane)
        return number

    def hold(self, name: str) -> asyncio.Event:
        self.host.gates[name] = asyncio.Event()
        return self.host.gates[name]

    async def until(self, wanted: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not wanted():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def ran(self, *names: str) -> None:
        await self.until(lambda: set(names) <= set(self.host.log))

    async def settled(self) -> None:
        await self.until(lambda: self.scheduler.active == 0)
        await asyncio.sleep(0.05)


def receipt(name: str, session: str, **fields: object) -> NewReceipt:
    return dataclasses.replace(
        NewReceipt(
            kind="message",
            channel_id="c",
            channel_type="channel",
            author_id="u",
            author_name="A",
            message_id=name,
            session_key=session,
            source_body=name,
            effective_body=name,
            source_created_at=0,
            dedupe_key=name,
        ),
        **fields,  # type: ignore[arg-type]
    )


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    desk = Desk(tmp_path / "b" / "inbox.sqlite3")
    await desk.open()
    host = Host(desk)
    scheduler = Scheduler(host, 2)
    await scheduler.start()
    yield Bench(host, scheduler)
    await scheduler.stop()
    await desk.close()


async def test_a_session_runs_in_order_and_sessions_run_side_by_side(bench: Bench) -> None:
    gate = bench.hold("a1")
    for name, session in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b"), ("a3", "a")):
        await bench.put(name, session)
    await bench.ran("a1", "b1", "b2")
    assert "a2" not in bench.host.log
    gate.set()
    await bench.ran("a3")
    assert [name for name in bench.host.log if name[0] == "a"] == ["a1", "a2", "a3"]


async def test_never_more_than_the_bound_at_once_and_the_oldest_first(bench: Bench) -> None:
    gates = [bench.hold(f"{n}") for n in range(6)]
    for n in range(6):
        await bench.put(f"{n}", f"s{n}")
    await bench.ran("0", "1")
    await asyncio.sleep(0.05)
    assert bench.host.log == ["0", "1"]
    for n, gate in enumerate(gates):
        gate.set()
        await bench.ran(str(n))
    await bench.settled()
    assert bench.host.log == [str(n) for n in range(6)]
    assert bench.host.most == 2


async def test_a_control_passes_a_backlog_and_stop_has_its_own_place(bench: Bench) -> None:
    gate, slow = bench.hold("turn"), [bench.hold(f"c{n}") for n in range(4)]
    await bench.put("turn")
    await bench.ran("turn")
    for n in range(200):
        await bench.put(f"later{n}")
    for n in range(4):
        bench.host.foreign.add(f"x{n}")
        await bench.put(f"c{n}", f"x{n}", CONTROL)
    await bench.ran("c0", "c1", "c2", "c3")
    await bench.put("c4", "s", CONTROL)  # every control slot is taken
    await bench.put("stop", "s", STOP)
    await bench.ran("stop")
    assert "c4" not in bench.host.log
    for one in slow:
        one.set()
    await bench.ran("c4")
    assert "later0" not in bench.host.log
    gate.set()


async def test_a_control_of_an_idle_session_takes_its_place_among_the_turns(bench: Bench) -> None:
    bench.host.reason = "starting"
    await bench.put("first")
    number = await bench.put("command", "s", CONTROL)
    await bench.put("last")
    bench.host.reason = ""
    await bench.ran("last")
    assert bench.host.log == ["first", "command", "last"]
    found = await bench.host.desk.get(number)
    assert found is not None
    assert found.dispatch_class is ORDINARY


async def test_nothing_is_claimed_while_the_host_is_not_ready(bench: Bench) -> None:
    bench.host.reason = "not_registered"
    number = await bench.put("early")
    await asyncio.sleep(0.3)
    found = await bench.host.desk.get(number)
    assert found is not None
    assert (found.status, found.attempt) == (Status.PENDING, 0)
    bench.host.reason = ""
    await bench.ran("early")


async def test_a_turn_of_the_hosts_own_holds_only_its_session(bench: Bench) -> None:
    bench.host.foreign.add("busy")
    await bench.put("waits", "busy")
    await bench.put("waits too", "busy")
    await bench.put("goes", "free")
    await bench.put("goes too", "free2")
    await bench.ran("goes", "goes too")
    assert "waits" not in bench.host.log
    bench.host.foreign.clear()
    await bench.ran("waits", "waits too")


async def test_what_was_deferred_runs_later_and_keeps_its_order(bench: Bench) -> None:
    bench.host.verdicts["one"] = lambda: Deferred("busy")
    await bench.put("one")
    await bench.put("two")
    await bench.ran("two")
    assert bench.host.log == ["one", "two"]


async def test_a_quarantined_receipt_blocks_what_follows_in_its_session_only(bench: Bench) -> None:
    desk = bench.host.desk

    async def doubtful() -> int:
        number = await desk.commit(receipt("doubt", "a", status=Status.QUARANTINED))
        assert number is not None
        bench.scheduler.block("a", number)
        return number

    await bench.put("before", "a")
    await bench.ran("before")
    number = await doubtful()
    await bench.put("after", "a")
    await bench.put("other", "b")
    bench.host.foreign.add("a")
    await bench.put("stop", "a", STOP)  # controls still pass
    await bench.ran("other", "stop")
    bench.host.foreign.clear()
    await asyncio.sleep(0.3)
    assert "after" not in bench.host.log
    await desk.actor.run(inbox.discard, number)
    await bench.scheduler.remediated("a")
    await bench.ran("after")


async def test_a_requeued_receipt_runs_before_what_waited_behind_it(bench: Bench) -> None:
    number = await bench.host.desk.commit(receipt("doubt", "a", status=Status.QUARANTINED))
    assert number is not None
    bench.scheduler.block("a", number)
    await bench.put("after", "a")
    await bench.host.desk.actor.run(inbox.requeue, number)
    await bench.scheduler.remediated("a")
    await bench.ran("after")
    assert bench.host.log == ["doubt", "after"]


async def test_a_new_scheduler_finds_backlog_and_blocks(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "b" / "inbox.sqlite3")
    await desk.open()
    for name, session, status in (
        ("q", "a", Status.QUARANTINED),
        ("blocked", "a", Status.PENDING),
        ("b1", "b", Status.PENDING),
        ("b2", "b", Status.PENDING),
    ):
        await desk.commit(receipt(name, session, status=status))
    host = Host(desk)
    bench = Bench(host, Scheduler(host, 2))
    await bench.scheduler.start()
    await bench.ran("b1", "b2")
    await bench.settled()
    assert host.log == ["b1", "b2"]
    await bench.scheduler.stop()
    await desk.close()


async def test_after_admission_has_stopped_nothing_new_starts(bench: Bench) -> None:
    gate = bench.hold("a")
    await bench.put("a")
    await bench.ran("a")
    bench.scheduler.stop_admission()
    number = await bench.put("b", "other")
    assert not await bench.scheduler.drain(0.1)
    gate.set()
    assert await bench.scheduler.drain(10)
    found = await bench.host.desk.get(number)
    assert found is not None
    assert found.status is Status.PENDING


async def test_many_sessions_under_many_commits_lose_and_reorder_nothing(bench: Bench) -> None:
    names = [(f"{n}", f"s{n % 17}") for n in range(400)]
    for n, (name, session) in enumerate(names):
        await bench.put(name, session)
        if n % 7 == 0:
            bench.host.verdicts[name] = lambda: Deferred("busy")
    await bench.until(lambda: len(bench.host.log) == 400)
    for session in {session for _, session in names}:
        mine = [name for name, owner in names if owner == session]
        assert [name for name in bench.host.log if name in set(mine)] == mine


@pytest.mark.parametrize("lane", [ORDINARY, DispatchClass.URGENT_STOP])
async def test_a_flood_in_some_sessions_does_not_hold_up_another(
    bench: Bench, lane: DispatchClass
) -> None:
    gates = [bench.hold(f"{session}0") for session in "ab"]
    for number in range(20):
        for session in "ab":
            await bench.put(f"{session}{number}", session, lane)
    await bench.put("late", "c", lane)
    for gate in gates:
        gate.set()
    await bench.ran("late", "a19", "b19")
    assert bench.host.log.index("late") < bench.host.log.index("a5")
    assert [name for name in bench.host.log if name[0] == "a"] == [f"a{n}" for n in range(20)]
