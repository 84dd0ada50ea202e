"""What an operator may do with a write, and what not."""

from __future__ import annotations

import time

import pytest

from bdh_bridge.outbox.review import Review, Selection
from bdh_bridge.outbox.states import State
from bdh_bridge.outbox.store import Outbox
from bdh_bridge.outbox.transitions import Result
from tests.support.outbox import GRAPH, accept, open_outbox, queue_of


@pytest.fixture
def outbox(tmp_path) -> Outbox:
    return open_outbox(tmp_path)


def put_into(outbox: Outbox, state: State) -> str:
    write_id = accept(outbox, f"about {state}")
    queue = queue_of(outbox)
    if state is State.PENDING:
        return write_id
    write = queue.next_write(GRAPH)
    assert write is not None
    claim = queue.claim(write, None)
    assert claim is not None
    if state is not State.SENDING:
        asked = State.IN_DOUBT if state is State.QUARANTINED else state
        queue.finish(claim, Result(asked, "x", "y"))
    return write_id


def state_of(outbox: Outbox, write_id: str) -> State:
    return Review(outbox).find(write_id)[0].state


@pytest.mark.parametrize("state", [State.FAILED, State.QUARANTINED, State.UNCONFIRMED])
def test_requeued_writes_are_pending_again_with_the_same_key(outbox, state):
    write_id = put_into(outbox, state)
    review = Review(outbox)
    [moved] = review.requeue(review.find(write_id))
    assert (moved.before.state, moved.after.state) == (state, State.PENDING)
    write = queue_of(outbox).next_write(GRAPH)
    assert write is not None
    assert (write.id, write.query) == (write_id, f"about {state}")


@pytest.mark.parametrize(
    "state", [State.PENDING, State.FAILED, State.QUARANTINED, State.UNCONFIRMED]
)
def test_discarded_writes_keep_no_text_but_their_place_in_the_list(outbox, state):
    write_id = put_into(outbox, state)
    review = Review(outbox)
    assert len(review.discard(review.find(write_id))) == 1
    [write] = review.find(write_id)
    assert (write.state, write.query, write.user_prompt) == (State.DISCARDED, "", "")
    assert outbox.stats().bytes == 0
    assert not outbox.has_work(GRAPH)


@pytest.mark.parametrize("state", [State.SENDING, State.DELIVERED])
def test_what_is_under_way_or_done_is_left_alone(outbox, state):
    write_id = put_into(outbox, state)
    review = Review(outbox)
    writes = review.find(write_id)
    assert review.requeue(writes) == []
    assert review.discard(writes) == []
    assert state_of(outbox, write_id) is state


def test_a_decision_on_an_old_view_changes_nothing(outbox):
    write_id = put_into(outbox, State.FAILED)
    review = Review(outbox)
    seen = review.find(write_id)
    review.requeue(seen)
    assert review.discard(seen) == []
    assert state_of(outbox, write_id) is State.PENDING


def test_selection_by_state_age_and_number(outbox):
    for state in (State.FAILED, State.DELIVERED, State.FAILED):
        put_into(outbox, state)
    later = Review(outbox, now=lambda: time.time() + 3_600)
    assert len(later.select(Selection())) == 3
    assert len(later.select(Selection(states=(State.FAILED,)))) == 2
    assert len(later.select(Selection(older_than=3_000))) == 3
    assert later.select(Selection(older_than=4_000)) == []
    newest = later.select(Selection(limit=1))
    assert [write.seq for write in newest] == [3]


def test_finding_takes_the_start_of_an_id_literally(outbox):
    write_id = put_into(outbox, State.PENDING)
    review = Review(outbox)
    assert [write.id for write in review.find(write_id[:6])] == [write_id]
    assert review.find("%") == []
    assert review.find("_" * 36) == []
