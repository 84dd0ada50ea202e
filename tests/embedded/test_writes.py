"""What a write leaves: synapses, notes, evidence; once for each idempotency key."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from bdh_bridge.graph.embedded import views
from bdh_bridge.graph.embedded.encoder import Encoder
from bdh_bridge.graph.embedded.requests import QueryRequest
from bdh_bridge.graph.embedded.service import GraphService
from bdh_bridge.graph.embedded.state import GraphState
from tests.support.embedded_graph import SAMPLE_NOTES, EmbeddedGraph, embedded_graph

ASKED = "Why does the mast carry two antennas?"
ANSWER = (
    "The mast carries two antennas because the valley station and the weather relay lie in "
    "opposite directions, and one dish can't serve both during storms."
)


def write(graph: EmbeddedGraph, query: str = ASKED, text: str = ANSWER, **more: Any) -> Any:
    return graph.query(query, user_prompt=text, source="assistant_response", **more)


def concepts(vault: Path) -> list[str]:
    return sorted(path.name for path in (vault / "concepts").glob("*"))


def frequencies(graph: EmbeddedGraph) -> dict[str, float]:
    synapses = graph.get("/api/hebbian")["synapses"]
    return {f"{s['note_a']}|{s['note_b']}": s["frequency"] for s in synapses}


def test_a_write_becomes_a_note_that_is_found_and_survives_a_restart(vault: Path) -> None:
    with embedded_graph(vault) as graph:
        body = write(graph)
        (concept,) = body["new_concepts"]
        assert concept["id"] == "concepts/why-does-the-mast-carry-two-antennas"
        assert concept["title"] == ASKED
        assert body["neuron_count"] == len(SAMPLE_NOTES) + 1
        found = graph.retrieve("What serves the weather relay?")["activated_notes"][0]
        assert found["id"] == concept["id"]
        assert "weather relay" in found["excerpt"]
        text = (vault / f"{concept['id']}.md").read_text()
        assert ANSWER in text
        instance = graph.get("/health")["instance"]
    with embedded_graph(vault) as graph:
        assert "embedding notes" not in graph.log.read_text().split("listening")[-1]
        assert graph.get("/health")["instance"] == instance
        assert graph.retrieve("What serves the weather relay?")["activated_notes"][0] == found
        assert graph.get("/api/stats")["queries_processed"] == 1


def test_an_equal_title_or_meaning_merges_as_evidence(vault: Path) -> None:
    with embedded_graph(vault) as graph:
        write(graph)
        name = concepts(vault)[0]
        before = (vault / "concepts" / name).read_bytes()
        second = "In March the weather relay moved to Monte Alto, so one antenna was turned."
        body = write(graph, ASKED.upper(), second)
        (concept,) = body["new_concepts"]
        assert concept["merged"] is True
        assert 0 < concept["similarity"] <= 1
        near = write(graph, "Why does the mast carry two antennas, again?")
        assert near["new_concepts"][0]["merged"] is True
        assert near["new_concepts"][0]["similarity"] >= 0.82
        assert concepts(vault) == [name]
        assert (vault / "concepts" / name).read_bytes() == before
        found = graph.retrieve("Where did it move in March, Monte Alto?")["activated_notes"][0]
        assert found["id"] == concept["id"]
        assert "Monte Alto" in found["excerpt"]
    with embedded_graph(vault) as graph:
        again = graph.retrieve("Where did it move in March, Monte Alto?")["activated_notes"][0]
        assert again == found
        # The user's edit of the file doesn't lose what was merged.
        (vault / "concepts" / name).write_text("---\ntitle: Mast\n---\nRewritten by hand.\n")
        wait_for(lambda: titles(graph).get(found["id"]) == "Mast")
        kept = graph.retrieve("Where did it move in March, Monte Alto?")["activated_notes"][0]
        assert (kept["id"], "Monte Alto" in kept["excerpt"]) == (found["id"], True)


def test_evidence_can_join_a_note_of_the_user_without_touching_its_file(vault: Path) -> None:
    path = vault / "operations/backup.md"
    before = path.read_bytes()
    with embedded_graph(vault) as graph:
        body = write(graph, "Nightly backup", "Since June the copies also go to a tape robot.")
        assert body["new_concepts"][0]["id"] == "operations/backup"
        top = graph.retrieve("tape robot copies")["activated_notes"][0]
        assert (top["id"], "tape robot" in top["excerpt"]) == ("operations/backup", True)
    assert path.read_bytes() == before
    assert not (vault / "concepts").exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"respond": False},
        {"learn": False},
        {"source": "cron"},
        {"user_prompt": ""},
        {"user_prompt": " \n "},
    ],
)
def test_no_note_without_an_answer_to_learn(graph: EmbeddedGraph, fields: dict[str, Any]) -> None:
    body = graph.query(ASKED, **{"user_prompt": ANSWER, **fields})
    assert body["new_concepts"] == []
    assert body["neuron_count"] == len(SAMPLE_NOTES)
    assert not (graph.vault / "concepts").exists()


@pytest.mark.parametrize("no", [0, "false", None, "", []])
def test_only_json_false_switches_off(no: object) -> None:
    request = QueryRequest.of({"query": "a", "learn": no, "respond": no})
    assert (request.learn, request.respond) == (True, True)
    request = QueryRequest.of({"query": "a", "learn": False, "respond": False})
    assert (request.learn, request.respond) == (False, False)


def ask(service: GraphService, query: str, text: str = "", **fields: Any) -> dict[str, Any]:
    request = QueryRequest.of({"query": query, "user_prompt": text, **fields})
    body: dict[str, Any] = json.loads(service.query(request, None))
    return body


def test_assistant_answers_teach_less_than_tools(service: GraphService) -> None:
    pair = "databases/write-ahead-log|decisions/durable-outbox"
    query = "durable outbox write-ahead log crash SQLite"
    body = ask(service, query, source="hermes_tool", respond=False)
    assert {u["pair"]: u["frequency"] for u in body["hebbian_updates"]}[pair] == 1.0
    assert body["hebbian_synapses"] == len(body["hebbian_updates"])
    body = ask(service, query, source="assistant_response", respond=False)
    assert {u["pair"]: u["frequency"] for u in body["hebbian_updates"]}[pair] == 1.3
    assert body["queries_processed"] == 2
    boosted = ask(service, query, learn=False)["activated_notes"][0]
    assert boosted["hebbian_boost"] == pytest.approx(0.9 * 0.391, abs=1e-3)


def test_titles_in_any_language_get_files_side_by_side(vault: Path, service: GraphService) -> None:
    assert ask(service, "なぜアンテナは二本?", "谷側と気象局の方向が逆だからです。")["new_concepts"]
    assert ask(service, "???", "Punctuation alone still gets a file of its own.")["new_concepts"]
    assert ask(service, "!!! …", "Another one that is about sourdough and rye.")["new_concepts"]
    names = concepts(vault)
    assert "なぜアンテナは二本.md" in names
    assert len(names) == 3


def test_a_repeated_answer_adds_nothing(service: GraphService) -> None:
    """As after a crash between the answer and its delivery, with a key that has expired."""
    text = "First line.\r\nSecond line.\rThird, about the mast."
    created = ask(service, ASKED, text)["new_concepts"][0]["id"]
    again = ask(service, ASKED, text)["new_concepts"][0]
    assert (again["id"], again["merged"]) == (created, True)
    assert service.index.notes[created].evidence == ()


def test_a_taken_file_name_is_left_alone(vault: Path, service: GraphService) -> None:
    (vault / "concepts").mkdir()
    taken = vault / "concepts" / "why-does-the-mast-carry-two-antennas.md"
    taken.write_bytes(b"\0 no note, and not ours")
    assert ask(service, ASKED, ANSWER)["new_concepts"][0]["id"].endswith("-antennas-2")
    assert taken.read_bytes() == b"\0 no note, and not ours"


def test_a_note_strong_in_a_query_wakes(service: GraphService) -> None:
    views.consolidate(service, False)
    assert views.stats(service)["dormant_neurons"] == len(SAMPLE_NOTES)
    ask(service, "nightly backup of the database on another machine", learn=False)
    assert views.stats(service)["dormant_neurons"] == len(SAMPLE_NOTES)
    ask(service, "nightly backup of the database on another machine", respond=False)
    assert views.stats(service)["active_neurons"] >= 1


# Idempotency keys


def post(graph: EmbeddedGraph, key: str, **body: Any) -> httpx.Response:
    body = {"query": ASKED, "user_prompt": ANSWER, "source": "assistant_response", **body}
    return httpx.post(
        f"{graph.url}/api/query", json=body, headers={"Idempotency-Key": key}, timeout=30
    )


def test_a_key_is_answered_once_also_after_a_restart(vault: Path) -> None:
    with embedded_graph(vault) as graph:
        first = post(graph, "key 1")
        assert post(graph, "key 1").content == first.content
        learned = graph.get("/api/hebbian")
        assert graph.get("/api/stats")["queries_processed"] == 1
        other = post(graph, "key 1", query="Something else?")
        assert other.status_code == 422
        assert "another request" in other.json()["error"]
        assert post(graph, "key 2").content != first.content
    with embedded_graph(vault) as graph:
        assert post(graph, "key 1").content == first.content
        assert graph.get("/api/stats")["queries_processed"] == 2
        assert learned["queries"] == 1
    assert len(concepts(vault)) == 1


def test_concurrent_duplicates_learn_once(vault: Path) -> None:
    with embedded_graph(vault) as graph, ThreadPoolExecutor(12) as pool:
        barrier = threading.Barrier(12)

        def send(number: int) -> bytes:
            barrier.wait()
            return post(graph, f"key-{number % 3}", query=f"Question {number % 3} on snow?").content

        answers = list(pool.map(send, range(12)))
        assert len(set(answers)) == 3
        assert graph.get("/api/stats")["queries_processed"] == 3


def test_a_read_only_query_ignores_the_key(graph: EmbeddedGraph) -> None:
    assert post(graph, "read", learn=False).status_code == 200
    assert post(graph, "read", learn=False, query="Other?").status_code == 200


@pytest.mark.parametrize("key", ["", "x" * 256, "tab\there", b"caf\xc3\xa9"])
def test_unusable_keys_are_refused(graph: EmbeddedGraph, key: str | bytes) -> None:
    headers: Any = [(b"Idempotency-Key", key if isinstance(key, bytes) else key.encode())]
    response = httpx.post(f"{graph.url}/api/query", json={"query": "a"}, headers=headers)
    assert response.status_code == 400
    assert "Idempotency-Key" in response.json()["error"]


def test_the_longest_key_is_accepted(graph: EmbeddedGraph) -> None:
    assert post(graph, "k" * 255, respond=False).status_code == 200


# Files that can't be written


def test_a_note_whose_file_fails_is_kept_and_written_later(
    vault: Path, tmp_path: Path, encoder: Encoder, caplog: pytest.LogCaptureFixture
) -> None:
    (vault / "concepts").write_text("a file where the folder should be")
    state = GraphState(tmp_path / "s.sqlite3", vault)
    service = GraphService(vault, state, encoder)
    service.load(lambda *_: None)
    service.query(QueryRequest.of({"query": ASKED, "user_prompt": ANSWER}), None)
    service.write_pending_files()
    assert caplog.text.count("no files yet") == 1
    assert len(service.index) == len(SAMPLE_NOTES) + 1
    for batch in service.sync.changes(service.snapshot()):
        service.apply(batch)
    assert len(service.index) == len(SAMPLE_NOTES) + 1  # not taken for a removed file
    state.close()

    (vault / "concepts").unlink()
    state = GraphState(tmp_path / "s.sqlite3", vault)
    service = GraphService(vault, state, encoder)
    service.load(lambda *_: None)
    assert len(service.index) == len(SAMPLE_NOTES) + 1
    assert state.pending_files() == []
    assert len(concepts(vault)) == 1
    assert list(service.sync.changes(service.snapshot())) == []
    state.close()


def test_a_failed_transaction_leaves_memory_as_it_was(vault: Path, service: GraphService) -> None:
    # The last statement of the transaction fails, as it does on a full disk.
    db = service.state.connection
    db.execute("DROP TABLE answers")
    db.execute("CREATE TABLE answers (vault, key, created, request, response CHECK (0))")
    for query in ("Nightly backup", ASKED):
        request = QueryRequest.of({"query": query, "user_prompt": ANSWER})
        with pytest.raises(sqlite3.IntegrityError):
            service.query(request, "key")
    assert service.state.queries == 0
    assert views.synapses(service)["total"] == 0
    assert len(service.index) == len(SAMPLE_NOTES)
    assert service.index.notes["operations/backup"].evidence == ()
    assert not (vault / "concepts").exists()


def titles(graph: EmbeddedGraph) -> dict[str, str]:
    return {node["id"]: node["title"] for node in graph.get("/api/graph")["nodes"]}


def wait_for(condition: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
