"""Recovery, age, retention, and clocks that are set."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest

from bdh_bridge.outbox.queue import Server
from bdh_bridge.outbox.states import State
from bdh_bridge.outbox.store import Outbox
from bdh_bridge.outbox.transitions import Result
from bdh_otel.database import transaction
from tests.support.outbox import GRAPH, Clock, accept, open_outbox, queue_of, upkeep_of

DAY = 86_400.0
DOWN = Result(State.PENDING, "refused", "connection refused")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outbox(tmp_path) -> Outbox:
    return open_outbox(tmp_path)


def attempt(outbox: Outbox, clock: Clock, result: Result, server: Server | None = None) -> None:
    queue = queue_of(outbox, now=clock)
    write = queue.next_write(GRAPH)
    assert write is not None
    claim = queue.claim(write, server)
    assert claim is not None
    queue.finish(claim, result)


def claim(outbox: Outbox, clock: Clock, owner: str, server: Server | None = None) -> None:
    queue = queue_of(outbox, owner, clock)
    write = queue.next_write(GRAPH)
    assert write is not None
    assert queue.claim(write, server) is not None


def test_what_a_dead_worker_was_sending_is_quarantined_without_keys(outbox, clock):
    accept(outbox)
    claim(outbox, clock, "dead")
    [transition] = upkeep_of(outbox, "me", clock).recover()
    assert (transition.before.state, transition.after.state) == (State.SENDING, State.QUARANTINED)
    assert transition.after.error_type == "worker_died"


def test_with_keys_it_is_asked_again(outbox, clock):
    accept(outbox)
    claim(outbox, clock, "dead", Server("s", 1_000))
    [transition] = upkeep_of(outbox, "me", clock).recover()
    assert transition.after.state is State.IN_DOUBT
    clock.now += 5
    assert queue_of(outbox, now=clock).next_write(GRAPH) is not None


def test_a_living_owner_keeps_its_claim_for_a_while(outbox, clock):
    accept(outbox)
    claim(outbox, clock, "other")
    upkeep = upkeep_of(outbox, "me", clock, alive=lambda owner: owner == "other")
    assert upkeep.recover() == []
    clock.now += 121
    assert len(upkeep.recover()) == 1


def test_too_old_fails_visibly_but_not_without_a_last_attempt(outbox, clock):
    accept(outbox)
    clock.now += 8 * DAY
    upkeep = upkeep_of(outbox, now=clock)
    write = queue_of(outbox, now=clock).next_write(GRAPH)
    assert write is not None  # first it is tried
    attempt(outbox, clock, DOWN)
    [transition] = upkeep.expire(write)
    assert (transition.after.state, transition.after.error_type) == (State.FAILED, "expired")
    assert "connection refused" in (transition.after.error_detail or "")
    assert transition.after.user_prompt  # it can still be requeued


def test_young_writes_and_other_lanes_do_not_expire(outbox, clock):
    accept(outbox, vault_id="other")
    clock.now += 8 * DAY
    queue = queue_of(outbox, now=clock)
    other = queue.next_write(GRAPH)
    assert other is not None
    accept(outbox, vault_id="this")
    with outbox.handle.use(1) as connection:
        connection.execute(
            "UPDATE writes SET accepted_at = ? WHERE vault_id = 'this'", (clock.now,)
        )
    upkeep = upkeep_of(outbox, now=clock)
    assert upkeep.expire(replace(other, vault_id="this")) == []
    assert [each.after.vault_id for each in upkeep.expire(other)] == ["other"]


def test_retention_forgets_what_needs_nobody(outbox, clock):
    for result in (
        Result(State.DELIVERED),
        Result(State.UNCONFIRMED, "timeout"),
        Result(State.FAILED, "400"),
        Result(State.IN_DOUBT, "500"),
    ):
        accept(outbox)
        attempt(outbox, clock, result)
    accept(outbox)
    upkeep = upkeep_of(outbox, now=clock)
    assert upkeep.prune(older_than=30 * DAY) == 0
    clock.now += 31 * DAY
    assert upkeep.prune(older_than=30 * DAY) == 2
    assert outbox.stats().by_state == {
        State.FAILED: 1,
        State.QUARANTINED: 1,
        State.PENDING: 1,
    }


def test_pruning_many_rows_gives_their_space_back(outbox, clock):
    with outbox.handle.use(5) as connection, transaction(connection):
        for number in range(1_200):
            connection.execute(
                """INSERT INTO writes (id, state, destination, vault_id, source, query,
                    user_prompt, body_bytes, traceparent, session_id, turn_id, platform, model,
                    created_at, accepted_at, updated_at)
                VALUES (?, 'unconfirmed', '', '', '', '', ?, 1, '', '', '', '', '', 0, 0, 0)""",
                (str(number), "x" * 2_000),
            )
    before = outbox.stats()
    assert before.bytes == 1_200
    with outbox.handle.use(5) as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
    assert upkeep_of(outbox, now=clock).prune(older_than=1) == 1_200
    assert outbox.stats().bytes == 0
    with outbox.handle.use(5) as connection:
        assert connection.execute("PRAGMA page_count").fetchone()[0] < pages / 4


@pytest.mark.parametrize("jump", [9 * DAY, -9 * DAY, 3_600.0, -3_600.0])
def test_a_clock_that_jumps_changes_neither_age_nor_turn(outbox, clock, jump):
    write_id = accept(outbox)
    accept(outbox)
    attempt(outbox, clock, Result(State.IN_DOUBT, "500"), Server("s", 10_000))
    clock.now += 600
    queue = queue_of(outbox, now=clock)
    clock.now += jump
    upkeep_of(outbox, now=clock).shift_clock(jump)
    write = queue.next_write(GRAPH)
    assert write is not None
    assert write.id == write_id
    assert write.age(clock.now) == pytest.approx(600, abs=5)
    assert write.settle_until == pytest.approx(clock.now - 600 + 9_000, abs=5)


def test_rows_of_after_the_jump_keep_their_time(outbox, clock):
    clock.now = time.time()
    accept(outbox)
    upkeep_of(outbox, now=clock).shift_clock(5_000)
    write = queue_of(outbox, now=clock).next_write(GRAPH)
    assert write is not None
    assert write.age(clock.now) < 60


def test_a_row_from_the_future_has_no_age(outbox, clock):
    accept(outbox)
    clock.now -= 5 * DAY
    write = queue_of(outbox, now=clock).next_write(GRAPH)
    assert write is not None
    assert write.age(clock.now) == 0.0


def test_unfinished_spool_files_of_the_dead_are_removed(outbox):
    outbox.spool.directory.mkdir(parents=True)
    old, new = outbox.spool.directory / "1.part", outbox.spool.directory / "2.part"
    for path in (old, new):
        path.write_bytes(b"{")
    os.utime(old, (1, 1))
    outbox.spool.remove_partial()
    assert [path.name for path in outbox.spool.directory.iterdir()] == ["2.part"]
