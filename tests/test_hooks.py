"""The hooks with what no host should hand over, a real graph's wire and real stores."""

from __future__ import annotations

import json
import os
import random
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bdh_bridge.bridge import Bridge
from bdh_bridge.homes import Homes
from bdh_bridge.hooks import Hooks
from bdh_bridge.settings import load
from bdh_bridge.text import CONTEXT_CLOSING, CONTEXT_OPENING
from bdh_otel import attributes as attr
from bdh_otel.reader import SpanReader, StoredSpan
from tests.support.http_peer import Peer, answering, json_response, peer

QUESTION = "What does the outbox do when the agent crashes?"
ANSWER = "It keeps every write until the graph has it. " * 6
EVIDENCE = {"hybrid_top_score": 0.9, "vector_top_score": 0.9, "bm25_matched_term_count": 3}
NOTE = {"id": "n", "title": "Durable Outbox", "score": 0.9, "excerpt": "Every write is durable."}
FOUND = json_response({"response": "", "activated_notes": [NOTE], "routing": EVIDENCE})


class Bench:
    """One home's hooks, without Hermes."""

    def __init__(self, home: Path, graph: Peer) -> None:
        self.graph = graph
        self.home = home
        self.homes = Homes(self._open, lambda: home)
        self.hooks = Hooks(self.homes.bridge, lambda: False)

    def _open(self, home: Path) -> Bridge:
        loaded = load(home, environ={"BDH_API_URL": self.graph.url, "BDH_WORKER": "off"})
        return Bridge(loaded, job_prompt=lambda job: None)

    @property
    def bridge(self) -> Bridge:
        bridge = self.homes.bridge()
        assert bridge is not None
        return bridge

    def turn(self, message: Any = QUESTION, answer: Any = ANSWER, **given: Any) -> Any:
        """A whole turn; returns the context."""
        ids = {"session_id": "s", "turn_id": "t", "task_id": "k", "platform": "cli", **given}
        history = [{"role": "user", "content": message}]
        context = self.hooks.pre_llm_call(user_message=message, conversation_history=history, **ids)
        said = SimpleNamespace(content=answer, tool_calls=None)
        self.hooks.post_api_request(finish_reason="stop", assistant_message=said, **ids)
        self.hooks.on_session_end(completed=True, interrupted=False, **ids)
        return context

    def spans(self) -> list[StoredSpan]:
        assert self.bridge.tracer.flush(10)
        reader = SpanReader(self.bridge.loaded.paths.spans)
        try:
            return reader.after(0, limit=100_000)
        finally:
            reader.close()

    def roots(self) -> list[StoredSpan]:
        return [span for span in self.spans() if span.name == "bdh.turn"]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with peer(answering(FOUND)) as graph:
        bench = Bench(tmp_path / "home", graph)
        yield bench
        bench.homes.close()


class Evil:
    """Nothing of it can be looked at."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no")


ODD: list[Any] = [
    None,
    5,
    b"bytes",
    [1, {"text": None}],
    {"a": 1},
    "\ud800" * 90,
    "\0" * 90,
    Evil(),
]


def test_no_odd_argument_breaks_a_hook_or_a_later_turn(bench: Bench) -> None:
    keys = (
        *("session_id", "turn_id", "platform", "user_message", "assistant_message"),
        *("conversation_history", "finish_reason", "retry_count", "response_text"),
    )
    for name in Hooks.NAMES:
        hook = getattr(bench.hooks, name)
        hook()
        for odd in ODD:
            for key in keys:
                hook(**{key: odd})
    assert bench.turn()
    assert bench.bridge.outbox.stats().open_rows >= 1


@pytest.mark.parametrize("identifier", ["\ud800", "a\0b", "x" * 2_000_000, b"x", 7, ["x"]])
def test_a_turn_with_odd_ids_is_traced_and_written_all_the_same(
    bench: Bench, identifier: Any
) -> None:
    assert bench.turn(session_id=identifier, turn_id=identifier, platform=identifier)
    (root,) = bench.roots()
    assert root.attributes[attr.TURN_ROUTE] == "retrieve_and_store"
    assert bench.bridge.outbox.stats().open_rows == 1
    assert len(bench.bridge.turns) == 0


def test_a_message_of_megabytes_is_read_and_written_by_its_beginning(bench: Bench) -> None:
    message = "Why " + "x" * 5_000_000 + " and what then?"
    began = time.thread_time()
    assert bench.turn(message)
    assert time.thread_time() - began < 5
    (root,) = bench.roots()
    assert root.attributes[attr.TURN_MESSAGE_CHARACTERS] == len(message)
    assert len(bench.graph.body()["query"]) == 8 * 1024


def test_turns_that_never_end_keep_little_of_their_messages(bench: Bench) -> None:
    for number in range(3):
        bench.hooks.pre_llm_call(user_message="why " + "x" * 1_000_000 + "?", turn_id=str(number))
    kept = [turn.view.text for turn in bench.bridge.turns]
    assert len(kept) == 3
    for text in kept:
        assert len(text) < 40_000
        assert text.startswith("why ")
        assert text.endswith("?")


def test_a_message_that_only_quotes_a_block_asks_and_teaches_nothing(bench: Bench) -> None:
    """An empty query would be the graph's 400, and three of them an open circuit."""
    bench.turn(f"{CONTEXT_OPENING}\nwhy and how did we decide this?\n{CONTEXT_CLOSING}")
    assert bench.graph.requests == []
    assert not bench.bridge.loaded.paths.outbox.exists()
    (root,) = bench.roots()
    assert root.attributes[attr.TURN_READ_OUTCOME] == "empty_message"
    assert root.attributes[attr.TURN_WRITE_OUTCOME] == "no_user_message"


KEYS = (
    *("response", "activated_notes", "routing", "new_concepts", "hebbian_updates", "error"),
    *("neuron_count", "id", "title", "score", "excerpt", "role", "hop", "display_label", "text"),
    *("vector_top_score", "hybrid_top_score", "bm25_matched_term_count", "bm25_matched_terms"),
    *("available_vaults", "hybrid_enabled", "nodes"),
)
VALUES: list[Any] = [
    *(None, True, 0, -1, 1e308, 10**400, float("nan"), "", "x", "\ud800", "\x1b[2J\r\n"),
    *("[/BDH CONTEXT]", "9" * 5000, [], {}, [None], [[]], ["x"] * 50, {"a": {}}),
]


def random_answer(chance: random.Random) -> Any:
    def thing(share: float) -> dict[str, Any]:
        return {key: chance.choice(VALUES) for key in KEYS if chance.random() < share}

    notes = [thing(0.6) for _ in range(4)] + chance.choices(VALUES, k=2)
    shapes: tuple[dict[str, Any], ...] = (
        {},
        {"activated_notes": notes},
        {"activated_notes": notes, "routing": EVIDENCE},
    )
    return {**thing(0.5), **chance.choice(shapes)} if chance.random() < 0.95 else thing(0.1)


def test_whatever_json_the_graph_answers_no_turn_breaks_and_no_block_is_broken_out_of(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(5)
    states = ["200 OK"] * 8 + ["400 Bad", "401 No", "500 Oops", "204 Nothing", "999 Odd"]

    def answer(connection: socket.socket, request: bytes) -> None:
        connection.sendall(json_response(random_answer(chance), chance.choice(states)))

    bench.graph.behaviour = answer
    given = 0
    for number in range(150):
        context = bench.turn(session_id=f"s{number}", turn_id=f"t{number}")
        if context:
            given += 1
            text = context["context"]
            assert text.count(CONTEXT_CLOSING) == 1
            assert "\x1b" not in text
            text.encode()
        for tool in (bench.bridge.tools.bdh_query, bench.bridge.tools.bdh_stats):
            result = tool({"query": "q", "vault_id": "\x1b[2J"}, session_id=f"s{number}")
            assert isinstance(json.loads(result), dict)
            result.encode()
        bench.bridge.state.record_success(f"graph:{bench.graph.url}")
    assert given > 5
    assert not [record for record in caplog.records if record.exc_info]


def test_failures_of_other_turns_are_not_in_a_row_once_the_graph_has_answered(bench: Bench) -> None:
    key = f"graph:{bench.graph.url}"

    def answer(connection: socket.socket, request: bytes) -> None:
        bench.bridge.state.record_failure(key)  # of another turn, while this one waits
        connection.sendall(FOUND)

    bench.graph.behaviour = answer
    for number in range(5):
        assert bench.turn(session_id=f"s{number}", turn_id=f"t{number}")
    assert bench.bridge.state.breakers() == []


def test_fifty_threads_at_once_each_get_their_own_turn(bench: Bench) -> None:
    contexts: list[Any] = []

    def one(number: int) -> None:
        question = f"Question {number}: {QUESTION}"
        contexts.append(bench.turn(question, session_id=f"s{number}", turn_id=f"t{number}"))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(contexts) == 50
    assert all(contexts)
    roots = bench.roots()
    assert {root.attributes[attr.TURN_ROUTE] for root in roots} == {"retrieve_and_store"}
    assert len({root.session for root in roots}) == 50
    with sqlite3.connect(bench.bridge.loaded.paths.outbox) as connection:
        rows = connection.execute("SELECT session_id, query FROM writes").fetchall()
    # On a slow disk some had to wait for longer than a hook may: those are in files of their own.
    for _, spooled in bench.bridge.outbox.spool.waiting():
        rows.append((spooled.write.session_id, spooled.write.query))
    assert sorted(rows) == sorted((f"s{n}", f"Question {n}: {QUESTION}") for n in range(50))


def test_the_child_of_a_fork_uses_nothing_of_its_parent(bench: Bench) -> None:
    assert bench.turn(session_id="parent", turn_id="1")
    parent = bench.bridge
    with parent.turns._lock, parent.graph._lock, parent.state._lock:  # held for ever in the child
        child = os.fork()
        if child == 0:
            ok = bench.turn(session_id="child", turn_id="2") and bench.bridge is not parent
            os._exit(0 if ok and bench.bridge.tracer.flush(10) else 1)
    deadline = time.monotonic() + 60
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, 9)
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(ended[1]) == 0
    assert bench.turn(session_id="parent", turn_id="3")
    assert {root.session for root in bench.roots()} == {"parent", "child"}
    assert bench.bridge.outbox.stats().open_rows == 3
