"""A turn's root span ends in every case: once, with the reason, and whatever comes later.

The real host's agent loop, stopped where the model would answer.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bdh_bridge.worker.housekeeping import duties_of
from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.abandoned import close_abandoned
from bdh_otel.reader import StoredSpan
from bdh_otel.store import SpanStore
from tests.support.hermes import Host, InProcess
from tests.support.waiting import eventually
from tests.support.worker_end import end_worker

pytestmark = [pytest.mark.hermes, pytest.mark.timeout(300)]

QUESTION = "What does the outbox do when the agent crashes?"


class Thinking:
    """The model thinks until it is let go on; ``asked`` counts who waits for it."""

    def __init__(self, host: Host) -> None:
        self.asked = 0
        self.go_on = threading.Event()
        self._answer = host.model.answer
        host.model.answer = self._slowly  # type: ignore[method-assign]

    def _slowly(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        self.go_on.wait(120)
        return self._answer(body)


@pytest.fixture
def thinking(host: Host) -> Iterator[Thinking]:
    host.environ["BDH_WORKER"] = "off"  # the tests do themselves what it does
    made = Thinking(host)
    yield made
    made.go_on.set()


@contextlib.contextmanager
def saying(hermes: InProcess, agent: Any) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=hermes.say, args=(agent, QUESTION), daemon=True)
    thread.start()
    yield thread
    thread.join(120)
    assert not thread.is_alive()


def roots(host: Host) -> list[StoredSpan]:
    return [span for span in host.spans() if span.name == names.TURN]


def reasons(host: Host) -> list[Any]:
    return [root.attributes.get(attr.TURN_CLOSE_REASON) for root in roots(host)]


def under_way(host: Host, thinking: Thinking, count: int = 1) -> Callable[[], bool]:
    """The model is asked, and the turn, which has no end yet, is in the store."""
    return lambda: thinking.asked >= count and None in reasons(host)


def test_a_turn_that_is_interrupted_ends_as_that(
    hermes: InProcess, host: Host, thinking: Thinking
) -> None:
    agent = hermes.agent("s-1")
    with saying(hermes, agent):
        eventually(under_way(host, thinking))
        agent.interrupt()
        eventually(lambda: reasons(host) == ["interrupted"])
        thinking.go_on.set()
    (root,) = roots(host)
    assert root.attributes[attr.TURN_CLOSE_REASON] == "interrupted"
    assert root.attributes[attr.TURN_WRITE_OUTCOME] != "queued"
    assert not root.failed
    assert len(hermes.bridge.turns) == 0


def test_the_next_turn_of_the_session_ends_the_one_before_whose_answer_is_not_lost(
    hermes: InProcess, host: Host, thinking: Thinking
) -> None:
    with saying(hermes, hermes.agent("s-1")):
        eventually(under_way(host, thinking))
        with saying(hermes, hermes.agent("s-1")):
            eventually(under_way(host, thinking, 2))
            eventually(lambda: "next_turn" in reasons(host))
            assert sorted(reasons(host), key=str) == [None, "next_turn"]
            thinking.go_on.set()
    # The answer that came late is a second part of its turn, below the first.
    (given_up,) = [root for root in roots(host) if root.parent_id is None and ended(root, "next")]
    (late,) = [root for root in roots(host) if root.parent_id == given_up.span_id]
    (other,) = [root for root in roots(host) if root.trace_id != given_up.trace_id]
    assert ended(late, "end_of_turn")
    assert ended(other, "end_of_turn")
    assert late.turn == given_up.turn != other.turn
    for root in (late, other):
        assert root.attributes[attr.TURN_WRITE_OUTCOME] == "queued"
    assert len(roots(host)) == 3
    assert len(hermes.bridge.turns) == 0


def ended(root: StoredSpan, reason: str) -> bool:
    return str(root.attributes.get(attr.TURN_CLOSE_REASON)).startswith(reason)


def test_a_turn_that_hangs_expires_and_its_own_end_comes_too_late(
    hermes: InProcess, host: Host, thinking: Thinking
) -> None:
    with saying(hermes, hermes.agent("s-1")):
        eventually(under_way(host, thinking))
        with contextlib.closing(SpanStore(host.paths.spans)) as store:
            assert close_abandoned(store) == 0, "its process lives"
            assert close_abandoned(store, now=time.time() + 7 * 3_600) == 1
            assert close_abandoned(store, now=time.time() + 8 * 3_600) == 0
        expired = roots(host)
        assert [root.attributes[attr.TURN_CLOSE_REASON] for root in expired] == ["expired"]
        thinking.go_on.set()
    assert roots(host) == expired
    assert len(hermes.bridge.turns) == 0


def test_a_process_that_is_killed_in_mid_turn_leaves_one_closed_turn(
    host: Host, thinking: Thinking
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "hermes_cli.main", "-z", QUESTION],
        env=host.environment(),
        cwd=host.home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(under_way(host, thinking))
        (before,) = roots(host)
        assert before.end_ns is None
    finally:
        process.kill()
        process.wait(60)
    thinking.go_on.set()
    host.environ["BDH_WORKER"] = "auto"
    worker_closes(host)
    (root,) = roots(host)
    assert root.span_id == before.span_id
    assert root.end_ns is not None
    assert root.attributes[attr.TURN_CLOSE_REASON] == "process_died"
    assert root.session == before.session


def worker_closes(host: Host) -> None:
    """The duty as the worker has it, twice."""
    from bdh_bridge.settings import load
    from bdh_otel.memory import MemoryTracer

    loaded = load(host.home, environ=host.environ)
    tracer = MemoryTracer()
    (duty,) = [
        one
        for one in duties_of(loaded, None, tracer)  # type: ignore[arg-type]
        if one.name == "close_abandoned"
    ]
    duty.run()
    duty.run()
    (span,) = tracer.take()
    assert span.attributes[attr.WORKER_ITEMS] == 1
    tracer.shutdown()
    end_worker(host.paths)
