"""The HTTP contract, asked of the real server process."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest

from tests.support.embedded_graph import SAMPLE_NOTES, EmbeddedGraph

QUERY_KEYS = {
    "response",
    "activated_notes",
    "new_concepts",
    "hebbian_synapses",
    "hebbian_updates",
    "routing",
    "queries_processed",
    "neuron_count",
    "synapse_count",
}
NOTE_KEYS = {
    "id",
    "title",
    "score",
    "role",
    "hop",
    "parent_id",
    "vector_score",
    "bm25_score",
    "hybrid_score",
    "hebbian_boost",
    "final_score",
    "display_label",
    "path",
    "relative_path",
    "excerpt",
}
ROUTING_TYPES = {
    "vector_top_score": float,
    "bm25_top_score": float,
    "bm25_query_term_count": int,
    "bm25_matched_term_count": int,
    "bm25_matched_terms": list,
    "hybrid_top_score": float,
    "hybrid_second_score": float,
    "hybrid_margin": float,
    "hybrid_enabled": bool,
    "activation_details": list,
}


def test_a_query_answers_in_the_contracts_shape(graph: EmbeddedGraph) -> None:
    body = graph.retrieve("How is a write kept through a crash of SQLite?")
    assert set(body) == QUERY_KEYS
    assert body["response"] == ""
    assert body["new_concepts"] == body["hebbian_updates"] == []
    notes = body["activated_notes"]
    assert notes
    assert [note["score"] for note in notes] == sorted((n["score"] for n in notes), reverse=True)
    for note in notes:
        assert set(note) == NOTE_KEYS
        assert note["role"] == ("graph_neighbor" if note["hop"] else "seed")
        assert note["excerpt"]
    routing = body["routing"]
    assert {name: type(value) for name, value in routing.items()} == ROUTING_TYPES
    assert routing["bm25_top_score"] == 1.0
    assert {"crash", "sqlite", "write"} <= set(routing["bm25_matched_terms"])
    details = [{k: d[k] for k in d} for d in routing["activation_details"]]
    assert [d["id"] for d in details] == [note["id"] for note in notes]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("When is the database copied?", "operations/backup"),
        ("Quando viene copiato il database?", "operations/backup"),
        ("Wie wird das Brot gebacken?", "cucina/pane"),
        ("How does the mountain hut reach the valley by radio?", "rete/ponte-radio"),
        ("chi scrive lo scheduler?", "people/team"),
    ],
)
def test_questions_find_their_note_in_any_language(
    graph: EmbeddedGraph, query: str, expected: str
) -> None:
    assert graph.retrieve(query)["activated_notes"][0]["id"] == expected


def test_small_talk_is_no_evidence(graph: EmbeddedGraph) -> None:
    routing = graph.retrieve("thanks, good night!")["routing"]
    # One shared word lifts BM25 to 1.0, so the count of words and the vector have to tell.
    assert routing["bm25_matched_terms"] == ["night"]
    assert routing["vector_top_score"] < 0.3


def test_read_only_queries_change_nothing(graph: EmbeddedGraph) -> None:
    before = graph.get("/api/stats"), graph.get("/api/hebbian")
    body = graph.query("How are backups made?", learn=False, user_prompt="A long answer")
    assert body["response"]  # respond is not false
    assert body["queries_processed"] == before[0]["queries_processed"]
    assert (graph.get("/api/stats"), graph.get("/api/hebbian")) == before


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, 'Missing "query" field'),
        ({"query": ""}, 'Missing "query" field'),
        ({"query": " \n\t"}, 'Missing "query" field'),
        ({"query": None}, 'Field "query" must be a string, not null'),
        ({"query": 7}, 'Field "query" must be a string, not int'),
        ({"query": ["a"]}, 'Field "query" must be a string, not list'),
        ({"query": "a", "user_prompt": None}, 'Field "user_prompt" must be a string, not null'),
        ({"query": "a", "source": {}}, 'Field "source" must be a string, not dict'),
        ({"query": "a", "vault_id": 3}, 'Field "vault_id" must be a string'),
    ],
)
def test_bad_fields_are_named(graph: EmbeddedGraph, body: dict[str, Any], error: str) -> None:
    response = httpx.post(f"{graph.url}/api/query", json=body)
    assert response.status_code == 400
    assert response.json()["error"] == error


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"query": ' + b"9" * 10_000 + b"}",
        b'{"query": "' + b"x" * 1_048_576 + b'"}',
    ],
    ids=["empty", "cut", "list", "text", "not utf-8", "deep", "huge number", "over 1 MiB"],
)
@pytest.mark.parametrize("chunked", [False, True])
def test_bad_bodies_are_no_server_errors(
    graph: EmbeddedGraph, content: bytes, chunked: bool
) -> None:
    headers = {"Content-Type": "application/json"}
    response = httpx.post(
        f"{graph.url}/api/query", content=iter([content]) if chunked else content, headers=headers
    )
    assert response.status_code == 400
    assert response.json()["error"].startswith(("Invalid JSON body", 'Field "query"'))


def test_an_unknown_vault_is_told_the_known_ones(graph: EmbeddedGraph) -> None:
    expected = {"error": "Unknown vault 'x'", "available_vaults": ["default"]}
    posted = httpx.post(f"{graph.url}/api/query", json={"query": "a", "vault_id": "x"})
    assert (posted.status_code, posted.json()) == (400, expected)
    for path in ("stats", "graph", "hebbian"):
        got = httpx.get(f"{graph.url}/api/{path}", params={"vault_id": "x"})
        assert (got.status_code, got.json()) == (400, expected)
    for known in ("default", "", None):
        graph.query("a", vault_id=known, learn=False)


@pytest.mark.parametrize(
    "query", ["half \ud800 pair", "nul \x00 byte", "🌱" * 1_000, "a" * 200_000]
)
def test_strange_text_is_searched_for(graph: EmbeddedGraph, query: str) -> None:
    # json.dumps escapes everything, half pairs of surrogates too.
    escaped = json.dumps({"query": query, "learn": False})
    response = httpx.post(
        f"{graph.url}/api/query",
        content=escaped.encode(),
        headers={"Content-Type": "application/json"},
        timeout=30,
    )
    assert response.status_code == 200


def test_unknown_paths_and_methods_answer_json(graph: EmbeddedGraph) -> None:
    missing = httpx.get(f"{graph.url}/api/nothing")
    assert (missing.status_code, missing.json()) == (404, {"error": "Not Found"})
    wrong = httpx.get(f"{graph.url}/api/query")
    assert (wrong.status_code, wrong.json()) == (405, {"error": "Method Not Allowed"})


def test_views_answer_in_the_contracts_shape(graph: EmbeddedGraph) -> None:
    stats = graph.get("/api/stats?vault_id=default")
    assert stats["neurons"] == stats["active_neurons"] == len(SAMPLE_NOTES)
    assert stats["synapses"] == 4
    assert stats["avg_degree"] == 0.5
    (vault,) = graph.get("/api/vaults")["vaults"]
    assert vault["id"] == graph.get("/api/vaults")["default_vault"] == "default"
    assert vault["path"] == str(graph.vault.resolve())
    body = graph.get("/api/graph")
    assert {node["id"] for node in body["nodes"]} == set(SAMPLE_NOTES)
    assert all(0 < len(node["text"]) <= 200 for node in body["nodes"])
    assert {"source": "decisions/durable-outbox", "target": "decisions/Retry Policy"} in body[
        "edges"
    ]
    assert body["phantom"] == body["unresolved"] == []
    assert set(body) == {"nodes", "edges", "hebbian", "phantom", "unresolved", "stats"}


def test_health_declares_idempotency(graph: EmbeddedGraph) -> None:
    health = graph.get("/health")
    assert health["status"] == "ok"
    assert len(health["instance"]) == 36
    assert health["idempotency"] == {"header": "Idempotency-Key", "window_seconds": 86_400}


# Web pages


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_what_a_page_can_send_unasked_is_refused(
    graph: EmbeddedGraph, content_type: str | None
) -> None:
    headers = {"Content-Type": content_type} if content_type else {}
    response = httpx.post(f"{graph.url}/api/query", content=b'{"query": "a"}', headers=headers)
    assert response.status_code == 400
    assert "Content-Type" in response.json()["detail"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example:8643"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": ""},
        {"Host": "[", "Origin": "http://["},
    ],
)
def test_pages_and_rebound_names_are_refused(graph: EmbeddedGraph, headers: dict[str, str]) -> None:
    for path in ("/api/stats", "/health"):
        response = httpx.get(f"{graph.url}{path}", headers=headers)
        assert response.status_code == 403
        assert "error" in response.json()
    preflight = httpx.options(f"{graph.url}/api/query", headers={"Origin": "https://evil.example"})
    assert preflight.status_code == 403
    assert not [name for name in preflight.headers if name.startswith("access-control")]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.8.9.1:80", "[::1]:8643"])
def test_loopback_names_are_welcome(graph: EmbeddedGraph, host: str) -> None:
    assert httpx.get(f"{graph.url}/health", headers={"Host": host}).status_code == 200


def test_a_client_that_leaves_in_mid_body_harms_nobody(graph: EmbeddedGraph) -> None:
    with socket.create_connection(("127.0.0.1", graph.port)) as connection:
        connection.sendall(
            b"POST /api/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b'Content-Length: 500\r\n\r\n{"query": '
        )
    assert graph.get("/health")["status"] == "ok"
    assert "Traceback" not in graph.log.read_text()
