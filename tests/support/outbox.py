"""Making homes, outboxes and writes for tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bdh_bridge.outbox.queue import Queue
from bdh_bridge.outbox.store import Accepted, NewWrite, Outbox
from bdh_bridge.outbox.upkeep import Upkeep
from bdh_bridge.paths import BridgePaths

GRAPH = "http://127.0.0.1:9"
TRACEPARENT = f"00-{'a1' * 16}-{'b2' * 8}-01"


def new_write(query: str = "Which port does the relay use?", **fields: Any) -> NewWrite:
    values: dict[str, Any] = {
        "query": query,
        "user_prompt": f"Answer to: {query} " + "The relay listens on port 7430. " * 10,
        "source": "assistant_response",
        "destination": GRAPH,
        "traceparent": TRACEPARENT,
        "session_id": "session-1",
        "turn_id": "turn-1",
        "platform": "cli",
        "model": "some-model",
        "created_ns": time.time_ns(),
        **fields,
    }
    return NewWrite(**values)


def open_outbox(home: Path, **bounds: int) -> Outbox:
    paths = BridgePaths(home)
    return Outbox(paths.outbox, spool=paths.outbox_spool, **bounds)


def accept(outbox: Outbox, query: str = "Which port?", **fields: Any) -> str:
    result = outbox.accept(new_write(query, **fields))
    assert isinstance(result, Accepted), result
    return result.id


class Clock:
    """Wall time that a test sets."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


def queue_of(outbox: Outbox, owner: str = "me", now: Callable[[], float] = time.time) -> Queue:
    return Queue(outbox, owner=owner, now=now)


def upkeep_of(
    outbox: Outbox,
    owner: str = "me",
    now: Callable[[], float] = time.time,
    *,
    alive: Callable[[str], bool] = lambda _: False,
    max_age: float = 604_800.0,
    claim_limit: float = 120.0,
) -> Upkeep:
    return Upkeep(
        outbox, owner=owner, is_alive=alive, max_age=max_age, claim_limit=claim_limit, now=now
    )


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Until ``condition`` holds; the deadline is for a broken program, not for a slow machine."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
