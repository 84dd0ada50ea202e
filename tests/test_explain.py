"""``bdh-bridge explain``: the decisions of a turn without its consequences."""

from __future__ import annotations

import io
import json
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bdh_bridge import cli
from bdh_bridge.paths import BridgePaths
from bdh_bridge.state import SharedState
from tests.support import model_server as ms
from tests.support.embedded_graph import EmbeddedGraph, embedded_graph, sample_vault

QUESTION = "What does the outbox do when the agent crashes?"
ROUTE = {**ms.ANSWER, "query": QUESTION, "search_query": "durable SQLite outbox crash"}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedGraph]:
    with embedded_graph(sample_vault(tmp_path_factory.mktemp("graph") / "vault")) as running:
        yield running


@pytest.fixture
def router() -> Iterator[ms.ModelServer]:
    with ms.ModelServer(ms.answer(ROUTE)) as running:
        yield running


class Home:
    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self._capsys = capsys
        path.mkdir(mode=0o700)
        self.out = self.err = ""

    def set(self, **variables: str) -> None:
        lines = "".join(f"{name}={value}\n" for name, value in variables.items())
        (self.path / ".env").write_text(lines, encoding="utf-8")

    def explain(self, *arguments: str) -> int:
        status = cli.main(["--home", str(self.path), "explain", *arguments])
        self.out, self.err = self._capsys.readouterr()
        return status

    def lines(self, text: str | bytes, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
        file = self.path / "in.jsonl"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        status = self.explain("--jsonl", str(file), *arguments)
        file.unlink()
        return status, [json.loads(line) for line in self.out.splitlines()]

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.path)): path.read_bytes()
            for path in self.path.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def home(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Home:
    monkeypatch.setattr(cli, "GROUPS", ("explain",))
    for name in ("BDH_API_URL", "BDH_QUERY_REWRITE_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    return Home(tmp_path / "home", capsys)


def routed(router: ms.ModelServer, **more: str) -> dict[str, str]:
    return {
        "BDH_API_URL": "http://127.0.0.1:9",
        "BDH_QUERY_REWRITE_ENABLED": "true",
        "BDH_REWRITE_CHAIN": "ollama,local",
        "BDH_REWRITE_LOCAL_URL": router.url,
        **more,
    }


def test_a_message_is_explained_with_scores_and_context(home: Home, graph: EmbeddedGraph) -> None:
    home.set(BDH_API_URL=graph.url)
    before = graph.get("/api/stats")
    assert home.explain(QUESTION) == 0
    for expected in ("read   yes", "store  yes", "eligibility", "hybrid", "Durable Outbox"):
        assert expected in home.out
    assert "[BDH CONTEXT" in home.out
    assert home.out.rstrip().endswith("[/BDH CONTEXT]")
    assert graph.get("/api/stats") == before, "it learned nothing"
    assert set(home.files()) == {".env"}, "it wrote nothing"


def test_json_holds_every_decision_the_scores_and_the_context(
    home: Home, graph: EmbeddedGraph
) -> None:
    home.set(BDH_API_URL=graph.url)
    assert home.explain(QUESTION, "--json") == 0
    found = json.loads(home.out)
    gates = [(one["path"], one["gate"]) for one in found["decisions"]]
    assert gates[:2] == [("read", "bridge"), ("read", "origin")]
    assert ("read", "relevance") in gates
    assert gates[-1] == ("write", "blacklist")
    assert found["retrievals"][0]["hybrid_top"] > 0.3
    assert found["retrievals"][0]["query"] == QUESTION
    assert found["read_outcome"] == "context"
    assert "Durable Outbox" in found["context"]


def test_the_routers_decision_is_acted_on(home: Home, router: ms.ModelServer) -> None:
    home.set(**routed(router))
    assert home.explain(QUESTION, "--json", "--no-graph") == 0
    found = json.loads(home.out)
    assert (found["should_retrieve"], found["store_candidate"]) == (True, False)
    assert (found["router"], found["write_reason"]) == ("rewrite", "router_no_store")
    assert found["queries"] == [ROUTE["search_query"]]
    assert [hop["outcome"] for hop in found["hops"]] == ["no_credential", "ok"]
    assert found["rewrite"]["confidence"] == 0.9
    assert found["retrievals"] == []


def test_history_is_given_to_the_router_without_the_message(
    home: Home, router: ms.ModelServer, tmp_path: Path
) -> None:
    home.set(**routed(router))
    messages = [
        {"role": "assistant", "content": "The outbox keeps writes."},
        {"role": "user", "content": "I see."},
    ]
    file = tmp_path / "history.json"
    shapes = (
        json.dumps(messages),
        json.dumps({"history": messages}),
        "\n".join(json.dumps(message) for message in messages),
    )
    for text in shapes:
        file.write_text(text, encoding="utf-8")
        assert home.explain("And then?", "--history", str(file), "--no-graph") == 0, home.err
        asked = json.loads(router.requests[-1].body["messages"][1]["content"])
        assert [item["text"] for item in asked["context"]] == ["The outbox keeps writes.", "I see."]
        assert asked["message"] == "And then?"


def test_nothing_changes_a_breaker_and_an_open_one_counts(
    home: Home, router: ms.ModelServer
) -> None:
    home.set(**routed(router))
    router.reply = ms.body(b"", 500)
    for _ in range(4):
        home.explain(QUESTION, "--json")
    assert json.loads(home.out)["router"] == "fallback"
    assert set(home.files()) == {".env"}
    state = SharedState(BridgePaths(home.path).state)
    for key in ("provider:local", "graph:http://127.0.0.1:9"):
        state.record_failure(key, retry_after=600)
    before = state.breakers()
    home.explain(QUESTION, "--json")
    found = json.loads(home.out)
    assert found["hops"][-1]["outcome"] == "circuit_open"
    assert found["read_outcome"] == "circuit_open"
    assert len(router.requests) == 4
    assert state.breakers() == before
    state.close()


def test_a_provider_on_probation_is_left_out_and_not_asked_on_the_side(
    home: Home, router: ms.ModelServer
) -> None:
    home.set(**routed(router))
    path = BridgePaths(home.path).state
    state = SharedState(path)
    state.record_failure("provider:local", retry_after=60)
    state.close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE breakers SET failed_at = failed_at - 120")
    connection.commit()
    connection.close()
    home.explain(QUESTION, "--json", "--no-graph")
    assert json.loads(home.out)["hops"][-1]["outcome"] == "circuit_open"
    assert router.requests == []


def test_platform_sender_and_pause_count(home: Home) -> None:
    home.set(BDH_READ_SENDERS="telegram:anna", BDH_API_URL="http://127.0.0.1:9")
    home.explain(QUESTION, "--json", "--platform", "telegram", "--sender", "carl")
    assert json.loads(home.out)["read_reason"] == "sender_not_listed"
    home.explain(QUESTION, "--json", "--platform", "cron")
    found = json.loads(home.out)
    assert (found["read_reason"], found["write_reason"]) == ("cron_record_unavailable",) * 2
    assert (found["should_retrieve"], found["store_candidate"]) == (False, False)
    state = SharedState(BridgePaths(home.path).state)
    state.pause("s-9")
    state.close()
    home.explain(QUESTION, "--json", "--session", "s-9")
    assert json.loads(home.out)["read_reason"] == "paused_session"


def test_many_give_one_result_a_line_and_ask_no_graph(home: Home, graph: EmbeddedGraph) -> None:
    home.set(BDH_API_URL=graph.url)
    given = (
        json.dumps({"id": "a", "message": QUESTION})
        + "\n\n"
        + json.dumps({"message": "grazie!", "platform": "telegram", "extra": 1})
        + "\r\n"
        + json.dumps("Why SQLite?")
    )
    status, found = home.lines(given)
    assert status == 0
    assert [one["id"] for one in found] == ["a", 3, 4]
    assert [one["should_retrieve"] for one in found] == [True, False, True]
    assert all(one["retrievals"] == [] and one["context"] is None for one in found)
    status, found = home.lines(given, "--graph")
    assert "Durable Outbox" in found[0]["context"]


def test_a_bad_line_is_named_and_the_others_go_on(home: Home) -> None:
    bad = [
        b"no json",
        b'{"id": 1}',
        b'{"message": 7}',
        b'{"message": "m", "history": {"role": "user"}}',
        b'{"message": "m", "history": ["text"]}',
        b'{"message": "m", "platform": []}',
        b"[1, 2]",
        b'{"message": "\xff"}',
        b"[" * 100_000,
    ]
    status, found = home.lines(b"\n".join([b'"first?"', *bad, b'"last?"']))
    assert status == 1
    assert [one["id"] for one in found] == [1, len(bad) + 2]
    named = [line for line in home.err.splitlines() if line.startswith("line ")]
    assert [line.partition(":")[0] for line in named] == [
        f"line {number}" for number in range(2, len(bad) + 2)
    ]


def test_standard_input_is_read_as_it_comes(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'"Why?"\n')))
    assert home.explain("--jsonl", "-") == 0
    assert json.loads(home.out)["id"] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("m", "--jsonl", "-"),
        ("--jsonl", "/no/such/file"),
        ("--jsonl", "-", "--history", "x"),
        ("m", "--history", "/no/such/file"),
    ],
)
def test_a_mistake_is_a_sentence(home: Home, arguments: tuple[str, ...]) -> None:
    assert home.explain(*arguments) == 2
    assert home.err.startswith("error: ")
    assert "Traceback" not in home.err


@pytest.mark.parametrize("text", ["{", '{"role": 1}', "[1]", '"x"', "\x00", '{"history": 1}'])
def test_a_history_that_is_none_is_a_sentence(home: Home, tmp_path: Path, text: str) -> None:
    file = tmp_path / "history.json"
    file.write_text(text)
    assert home.explain("m", "--history", str(file)) == 2
    assert str(file) in home.err


def test_what_people_write_can_not_reach_the_terminal(home: Home) -> None:
    home.set(BDH_API_URL="http://127.0.0.1:9")
    message = "Why \x1b[2J\x9b31m \u202egnirts?"
    for arguments in ((), ("--json",)):
        home.explain(message, *arguments)
        assert not set(home.out) & {"\x1b", "\x9b", "\u202e"}
    json.loads(home.out)
