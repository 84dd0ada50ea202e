"""Which receipt runs next.

Three lanes with slots of their own: ordinary turns, controls, and one place kept for ``/stop``.
In a lane each session runs one receipt at a time, oldest first; sessions run side by side and
take turns, so that a flood in one delays nobody else by more than a receipt.

Only the head of each session is held in memory: a backlog of any depth costs a number for each
session that has one, and finding the next receipt is one index seek.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from hermes_borgee.inbox import Head
from hermes_borgee.receipts import DispatchClass, Receipt

log = logging.getLogger(__name__)

CONTROL_SLOTS = 4
URGENT_SLOTS = 1
#: Seconds between two looks at a host that can't take a message yet. Hermes has no event for it;
#: nothing is polled while the host is ready.
HOST_LOOK = 0.1
#: Seconds to wait after the inbox itself has failed.
STORE_PAUSE = 2.0


@dataclass(frozen=True, slots=True)
class Ended:
    """The receipt is settled. ``blocks``: it was quarantined and its session waits."""

    blocks: bool = False


@dataclass(frozen=True, slots=True)
class Deferred:
    """It never reached Hermes and is pending again; ``demoted``: as an ordinary turn."""

    reason: str
    demoted: bool = False


Result = Ended | Deferred


class Work(Protocol):
    """What the scheduler needs from the inbox and the host."""

    async def heads(self, lane: DispatchClass) -> list[Head]: ...
    async def head(self, lane: DispatchClass, session_key: str) -> int | None: ...
    async def blocked(self) -> dict[str, int]: ...
    async def claim(self, ingest_seq: int) -> Receipt | None: ...
    async def demote(self, ingest_seq: int) -> None: ...
    async def run(self, receipt: Receipt) -> Result: ...
    def not_ready(self) -> str: ...
    def turn_runs(self, session_key: str) -> bool: ...


@dataclass(slots=True)
class _Lane:
    slots: int
    heads: dict[str, int] = field(default_factory=dict)
    """The oldest pending receipt of every session that has one."""
    queue: deque[tuple[int, str]] = field(default_factory=deque)
    """The heads that may run, first come first served: a session with a long backlog queues up
    again after each receipt. Entries that no longer match ``heads`` are stale."""
    active: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    parked: set[str] = field(default_factory=set)
    """Sessions whose head waits for the host."""

    def offer(self, session_key: str, ingest_seq: int) -> None:
        known = self.heads.get(session_key)
        if known is None or ingest_seq < known:
            self.heads[session_key] = ingest_seq
            self.queue.append((ingest_seq, session_key))


class Scheduler:
    """Runs receipts until it is stopped. All methods belong to the event loop's thread."""

    def __init__(self, work: Work, ordinary_slots: int) -> None:
        self._work = work
        self._lanes = {
            DispatchClass.URGENT_STOP: _Lane(URGENT_SLOTS),
            DispatchClass.CONTROL: _Lane(CONTROL_SLOTS),
            DispatchClass.ORDINARY: _Lane(ordinary_slots),
        }
        self._blocked: dict[str, int] = {}
        """Sessions with a quarantined receipt, and the number of the oldest one."""
        self._wake = asyncio.Event()
        self._admitting = True
        self._loop_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take over what the inbox holds, and begin."""
        await self._load()
        self._loop_task = asyncio.create_task(self._loop(), name="borgee-scheduler")

    async def reload(self) -> None:
        """Another inbox lies in the place of the one that was loaded."""
        await self._load()
        self._wake.set()

    def committed(self, session_key: str, ingest_seq: int, lane: DispatchClass) -> None:
        """A receipt became pending."""
        self._lanes[lane].offer(session_key, ingest_seq)
        self._wake.set()

    def look_again(self) -> None:
        """The host may have become able to take what waits for it."""
        self._wake.set()

    def block(self, session_key: str, ingest_seq: int) -> None:
        """A receipt was quarantined: later ordinary turns of its session wait."""
        known = self._blocked.get(session_key)
        self._blocked[session_key] = ingest_seq if known is None else min(known, ingest_seq)

    async def remediated(self, session_key: str) -> None:
        """An operator has settled a quarantined receipt of the session."""
        self._blocked = await self._work.blocked()
        lane = self._lanes[DispatchClass.ORDINARY]
        if session_key not in lane.active:
            await self._refresh(lane, DispatchClass.ORDINARY, session_key)
        self._wake.set()

    @property
    def active(self) -> int:
        """Receipts that hold a slot."""
        return sum(len(lane.active) for lane in self._lanes.values())

    def active_in(self, lane: DispatchClass, session_key: str) -> bool:
        return session_key in self._lanes[lane].active

    def stop_admission(self) -> None:
        """Start nothing new; what runs goes on."""
        self._admitting = False

    async def drain(self, seconds: float) -> bool:
        """Wait for what runs, at most that long. True if nothing is left."""
        tasks = {task for lane in self._lanes.values() for task in lane.active.values()}
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        return not self.active

    async def stop(self) -> None:
        """Cancel what still runs and wait until it has settled its receipts."""
        self._admitting = False
        tasks = {task for lane in self._lanes.values() for task in lane.active.values()}
        if self._loop_task is not None:
            tasks.add(self._loop_task)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    # ── The loop ────────────────────────────────────────────────────────────────────────────

    async def _load(self) -> None:
        self._blocked = await self._work.blocked()
        for dispatch_class, lane in self._lanes.items():
            heads = await self._work.heads(dispatch_class)
            for head in sorted(heads, key=lambda head: head.ingest_seq):
                lane.offer(head.session_key, head.ingest_seq)

    async def _loop(self) -> None:
        while True:
            self._wake.clear()
            try:
                waits_for_host = self._fill()
            except Exception:
                # What the host is asked here is not all its own promise: look again.
                log.exception("[bdh-bridge] borgee: the next message could not be chosen")
                await asyncio.sleep(STORE_PAUSE)
                continue
            try:
                await asyncio.wait_for(self._wake.wait(), HOST_LOOK if waits_for_host else None)
            except TimeoutError:
                continue

    def _fill(self) -> bool:
        """Give free slots to heads. True if something waits for the host."""
        if not self._admitting or not any(lane.heads for lane in self._lanes.values()):
            return False
        if self._work.not_ready():
            return True
        for dispatch_class, lane in self._lanes.items():
            for session_key in list(lane.parked):
                if self._may_leave(dispatch_class, session_key):
                    self._unpark(lane, session_key)
            while len(lane.active) < lane.slots:
                taken = self._take(dispatch_class, lane)
                if taken is None:
                    break
                session_key, ingest_seq = taken
                task = asyncio.create_task(
                    self._run(dispatch_class, lane, session_key, ingest_seq),
                    name=f"borgee-{dispatch_class.value}-{ingest_seq}",
                )
                lane.active[session_key] = task
        return any(lane.parked for lane in self._lanes.values())

    def _take(self, dispatch_class: DispatchClass, lane: _Lane) -> tuple[str, int] | None:
        while lane.queue:
            ingest_seq, session_key = lane.queue.popleft()
            if lane.heads.get(session_key) != ingest_seq or session_key in lane.active:
                continue  # stale, or offered again when the session is done
            if dispatch_class is DispatchClass.ORDINARY:
                barrier = self._blocked.get(session_key)
                if barrier is not None and ingest_seq > barrier:
                    continue  # offered again when an operator has decided
            if not self._may_leave(dispatch_class, session_key):
                lane.parked.add(session_key)
                continue
            del lane.heads[session_key]
            return session_key, ingest_seq
        return None

    def _may_leave(self, dispatch_class: DispatchClass, session_key: str) -> bool:
        """Whether the host can take the session's head now."""
        runs = self._work.turn_runs(session_key)
        if dispatch_class is DispatchClass.ORDINARY:
            return not runs
        if dispatch_class is DispatchClass.CONTROL and not runs:
            # A turn of ours that is about to start: wait for it, to be able to pass it.
            return not self.active_in(DispatchClass.ORDINARY, session_key)
        return True

    def _unpark(self, lane: _Lane, session_key: str) -> None:
        lane.parked.discard(session_key)
        head = lane.heads.get(session_key)
        if head is not None:
            lane.queue.append((head, session_key))

    async def _run(
        self, dispatch_class: DispatchClass, lane: _Lane, session_key: str, ingest_seq: int
    ) -> None:
        pause = 0.0
        try:
            result = await self._claim_and_run(dispatch_class, session_key, ingest_seq)
            if isinstance(result, Ended) and result.blocks:
                self.block(session_key, ingest_seq)
            elif isinstance(result, Deferred) and result.demoted:
                self.committed(session_key, ingest_seq, DispatchClass.ORDINARY)
            elif isinstance(result, Deferred):
                pause = HOST_LOOK
        except Exception:
            # The inbox can't be reached: the receipt keeps its state, the next start settles it.
            log.exception("[bdh-bridge] borgee: receipt %d could not be settled", ingest_seq)
            pause = STORE_PAUSE
        finally:
            # Also when cancelled, so that nothing waits for this session in vain.
            cancelled = asyncio.current_task()
            if cancelled is None or not cancelled.cancelling():
                await self._next(dispatch_class, lane, session_key, pause)
            lane.active.pop(session_key, None)
            self._wake.set()

    async def _claim_and_run(
        self, dispatch_class: DispatchClass, session_key: str, ingest_seq: int
    ) -> Result:
        if dispatch_class is DispatchClass.CONTROL and not self._work.turn_runs(session_key):
            # Nothing to pass any more: it takes its place among the session's turns.
            await self._work.demote(ingest_seq)
            return Deferred("idle", demoted=True)
        receipt = await self._work.claim(ingest_seq)
        return await self._work.run(receipt) if receipt is not None else Ended()

    async def _next(
        self, dispatch_class: DispatchClass, lane: _Lane, session_key: str, pause: float
    ) -> None:
        while True:
            if pause:
                await asyncio.sleep(pause)
            try:
                await self._refresh(lane, dispatch_class, session_key)
                return
            except Exception:
                log.exception("[bdh-bridge] borgee: the inbox can't be read")
                pause = STORE_PAUSE

    async def _refresh(self, lane: _Lane, dispatch_class: DispatchClass, session_key: str) -> None:
        """Read the session's head anew."""
        lane.heads.pop(session_key, None)
        lane.parked.discard(session_key)
        head = await self._work.head(dispatch_class, session_key)
        # Something may have been committed while this was read: the older one is the head.
        known = lane.heads.pop(session_key, None)
        candidates = [number for number in (head, known) if number is not None]
        if candidates:
            lane.offer(session_key, min(candidates))
