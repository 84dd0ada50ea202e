"""The state machine, on a real database with a clock that the test sets."""

from __future__ import annotations

from itertools import pairwise

import pytest

from bdh_bridge.outbox.queue import Claim, Queue, Server
from bdh_bridge.outbox.states import State, Write
from bdh_bridge.outbox.store import Outbox
from bdh_bridge.outbox.transitions import LONGEST_BACKOFF, Result
from tests.support.outbox import GRAPH, Clock, accept, open_outbox, queue_of, upkeep_of

DOWN = Result(State.PENDING, "refused", "connection refused")
DELIVERED = Result(State.DELIVERED, http_status=200, new_concepts=1, hebbian_updates=2)
IN_DOUBT = Result(State.IN_DOUBT, "connection_lost", "it went away")
UNCONFIRMED = Result(State.UNCONFIRMED, "timeout", "no answer in time")
SERVER = Server("server-1", 1_000.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outbox(tmp_path) -> Outbox:
    return open_outbox(tmp_path)


@pytest.fixture
def queue(outbox, clock) -> Queue:
    return queue_of(outbox, now=clock)


def claim_next(queue: Queue, server: Server | None = None) -> Claim:
    write = queue.next_write(GRAPH)
    assert write is not None
    claim = queue.claim(write, server)
    assert claim is not None
    return claim


def finish_next(queue: Queue, result: Result, server: Server | None = None) -> Write:
    transition = queue.finish(claim_next(queue, server), result)
    assert transition is not None
    return transition.after


def test_a_claim_is_committed_before_anything_is_sent(outbox, queue, tmp_path):
    accept(outbox)
    claim = claim_next(queue, SERVER)
    other = open_outbox(tmp_path)
    assert other.stats().by_state == {State.SENDING: 1}
    assert claim.write.claim_owner == "me"
    assert claim.write.server_instance == "server-1"
    assert claim.write.attempts == 1


def test_delivered_rows_keep_no_text(outbox, queue):
    accept(outbox, "secret words", user_prompt="more of them")
    after = finish_next(queue, DELIVERED)
    assert (after.state, after.query, after.user_prompt) == (State.DELIVERED, "", "")
    assert (after.new_concepts, after.hebbian_updates) == (1, 2)
    stats = outbox.stats()
    assert (stats.open_rows, stats.bytes) == (0, 0)


def test_one_at_a_time_in_a_lane_oldest_first(outbox, queue):
    accept(outbox, "first")
    accept(outbox, "second")
    claim = claim_next(queue)
    assert claim.write.query == "first"
    assert queue.next_write(GRAPH) is None
    queue.finish(claim, DELIVERED)
    assert claim_next(queue).write.query == "second"


def test_lanes_are_independent(outbox, queue):
    accept(outbox, "a1", vault_id="a")
    accept(outbox, "b1", vault_id="b")
    first = claim_next(queue)
    second = claim_next(queue)
    assert (first.write.query, second.write.query) == ("a1", "b1")


def test_two_workers_never_hold_the_same_write(outbox, clock):
    accept(outbox)
    one, two = queue_of(outbox, "one", clock), queue_of(outbox, "two", clock)
    seen_by_one, seen_by_two = one.next_write(GRAPH), two.next_write(GRAPH)
    assert seen_by_one is not None
    assert seen_by_two is not None
    assert one.claim(seen_by_one, None) is not None
    assert two.claim(seen_by_two, None) is None


def test_a_lost_claim_can_not_overwrite_what_happened_since(outbox, queue, clock):
    accept(outbox)
    stale = claim_next(queue)
    upkeep_of(outbox, "another worker", clock).recover()
    assert queue.finish(stale, DELIVERED) is None
    assert outbox.stats().by_state == {State.QUARANTINED: 1}


def test_a_server_that_is_down_makes_the_whole_lane_wait(outbox, queue, clock):
    accept(outbox, "first")
    accept(outbox, "second")
    assert finish_next(queue, DOWN).state is State.PENDING
    assert queue.next_write(GRAPH) is None
    wait = queue.seconds_until_next(GRAPH)
    assert wait is not None
    assert 0.4 < wait <= 1.0
    clock.now += wait + 0.01
    again = queue.next_write(GRAPH)
    assert again is not None
    assert again.query == "first"


def test_backoff_grows_has_an_end_and_is_forgotten_on_success(outbox, queue, clock):
    accept(outbox)
    waits = []
    for _ in range(14):
        finish_next(queue, DOWN)
        wait = queue.seconds_until_next(GRAPH)
        assert wait is not None
        waits.append(wait)
        clock.now += wait + 0.01
    # Jitter takes at most half: a wait is never shorter than half of the doubled one before.
    assert all(later >= earlier * 0.99 for earlier, later in pairwise(waits[:8]))
    assert LONGEST_BACKOFF / 2 <= waits[-1] <= LONGEST_BACKOFF
    finish_next(queue, DELIVERED)
    accept(outbox)
    finish_next(queue, DOWN)
    wait = queue.seconds_until_next(GRAPH)
    assert wait is not None
    assert wait <= 1.0


def test_the_servers_own_wish_is_honoured_within_reason(outbox, queue, clock):
    accept(outbox)
    finish_next(queue, Result(State.PENDING, "429", retry_after=90))
    wait = queue.seconds_until_next(GRAPH)
    assert wait == pytest.approx(90, abs=0.1)
    clock.now += 91
    finish_next(queue, Result(State.PENDING, "429", retry_after=10_000_000))
    wait = queue.seconds_until_next(GRAPH)
    assert wait == pytest.approx(3_600, abs=0.1)


def test_in_doubt_without_keys_is_quarantined_and_blocks_nobody(outbox, queue):
    accept(outbox, "first")
    accept(outbox, "second")
    assert finish_next(queue, IN_DOUBT).state is State.QUARANTINED
    assert claim_next(queue).write.query == "second"


def test_unconfirmed_without_keys_is_nobodys_work(outbox, queue):
    accept(outbox)
    after = finish_next(queue, UNCONFIRMED)
    assert (after.state, after.user_prompt != "") == (State.UNCONFIRMED, True)
    assert not outbox.has_work(GRAPH)
    assert queue.seconds_until_next(GRAPH) is None


@pytest.mark.parametrize("doubt", [IN_DOUBT, UNCONFIRMED])
def test_a_doubt_is_settled_by_asking_again_with_the_same_key(outbox, queue, clock, doubt):
    write_id = accept(outbox)
    assert finish_next(queue, doubt, SERVER).state is doubt.state
    assert outbox.has_work(GRAPH)
    wait = queue.seconds_until_next(GRAPH)
    assert wait is not None
    clock.now += wait + 0.01
    claim = claim_next(queue, SERVER)
    assert claim.write.id == write_id
    assert claim.write.claimed_from is doubt.state
    done = queue.finish(claim, DELIVERED)
    assert done is not None
    assert done.after.state is State.DELIVERED
    assert not outbox.has_work(GRAPH)


@pytest.mark.parametrize("doubt", [IN_DOUBT, UNCONFIRMED])
@pytest.mark.parametrize("answer", [DOWN, Result(State.FAILED, "400", "HTTP 400: no")])
def test_an_attempt_to_settle_that_fails_leaves_the_doubt(outbox, queue, clock, doubt, answer):
    accept(outbox)
    finish_next(queue, doubt, SERVER)
    clock.now += 10
    assert finish_next(queue, answer, SERVER).state is doubt.state


def test_a_waiting_doubt_does_not_hold_up_the_lane(outbox, queue):
    accept(outbox, "first")
    accept(outbox, "second")
    finish_next(queue, IN_DOUBT, SERVER)
    assert claim_next(queue).write.query == "second"


@pytest.mark.parametrize(
    ("doubt", "end"), [(IN_DOUBT, State.QUARANTINED), (UNCONFIRMED, State.UNCONFIRMED)]
)
def test_outside_the_window_nothing_is_asked_again(outbox, queue, clock, doubt, end):
    accept(outbox)
    finish_next(queue, doubt, SERVER)
    clock.now += 950  # the last tenth of the window is left unused
    assert queue.next_write(GRAPH) is None
    [transition] = upkeep_of(outbox, now=clock).close_windows()
    assert transition.after.state is end
    assert not outbox.has_work(GRAPH)


@pytest.mark.parametrize(
    ("doubt", "end"), [(IN_DOUBT, State.QUARANTINED), (UNCONFIRMED, State.UNCONFIRMED)]
)
def test_another_instance_is_not_asked(outbox, queue, doubt, end):
    accept(outbox)
    after = finish_next(queue, doubt, SERVER)
    transition = queue.give_up_settling(after, "other_instance", "gone")
    assert (transition.after.state, transition.after.error_type) == (end, "other_instance")
    assert not outbox.has_work(GRAPH)


def test_what_never_left_is_not_dated(outbox, queue, clock):
    """The window of a later doubt begins with the attempt that made it."""
    accept(outbox)
    finish_next(queue, DOWN, Server("old", 10.0))
    clock.now += 5_000
    after = finish_next(queue, IN_DOUBT, SERVER)
    assert after.server_instance == "server-1"
    assert after.settle_until == pytest.approx(clock.now + 900)


def test_a_refusal_is_final_and_keeps_the_servers_words(outbox, queue):
    accept(outbox)
    after = finish_next(queue, Result(State.FAILED, "400", "HTTP 400: Unknown vault 'x'", 400))
    assert (after.state, after.error_detail) == (State.FAILED, "HTTP 400: Unknown vault 'x'")
    assert after.user_prompt
    assert not outbox.has_work(GRAPH)


def test_postponing_counts_an_attempt_without_a_claim(outbox, queue):
    accept(outbox)
    write = queue.next_write(GRAPH)
    assert write is not None
    after = queue.postpone(write, DOWN).after
    assert (after.state, after.attempts, after.error_type) == (State.PENDING, 1, "refused")
    assert queue.next_write(GRAPH) is None


def test_the_same_trouble_again_is_no_news(outbox, queue, clock):
    accept(outbox)
    write = queue.next_write(GRAPH)
    assert write is not None
    first = queue.postpone(write, DOWN)
    second = queue.postpone(first.after, DOWN)
    third = queue.postpone(second.after, Result(State.PENDING, "503"))
    assert [each.repeats for each in (first, second, third)] == [False, True, False]
    clock.now += 1_000
    claim = claim_next(queue)
    fourth = queue.finish(claim, Result(State.PENDING, "503"))
    assert fourth is not None
    assert fourth.repeats


def test_writes_for_another_destination_are_held(outbox, queue):
    accept(outbox, destination="http://elsewhere:1")
    assert queue.next_write(GRAPH) is None
    assert not outbox.has_work(GRAPH)
    assert outbox.stats().open_rows == 1
    assert queue.next_write("http://elsewhere:1") is not None


def test_a_lane_in_which_another_process_sends_is_not_polled_without_pause(outbox, clock):
    accept(outbox)
    accept(outbox)
    claim_next(queue_of(outbox, "other", clock))
    wait = queue_of(outbox, "me", clock).seconds_until_next(GRAPH)
    assert wait is not None
    assert wait > 0.5


def test_honouring_keys_is_remembered_for_the_lane(outbox, queue):
    accept(outbox)
    write = queue.next_write(GRAPH)
    assert write is not None
    assert not queue.honours_keys(write)
    finish_next(queue, DELIVERED, SERVER)
    accept(outbox)
    assert queue.honours_keys(write)


@pytest.mark.parametrize("jump", [-40_000_000.0, -7_200.0])
def test_a_clock_set_back_does_not_stop_the_lane(outbox, queue, clock, jump):
    accept(outbox)
    finish_next(queue, DOWN)
    clock.now += jump
    assert queue.next_write(GRAPH) is not None
