"""kill -9 at any moment: a write is there as a whole or not at all, and repeating it is safe."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import httpx

from tests.support.embedded_graph import EmbeddedGraph, embedded_graph

TOPICS = ("mast", "oven", "greenhouse", "ledger", "turbine", "archive", "orchard", "antenna")


def body_of(number: int) -> dict[str, str]:
    topic = TOPICS[number % len(TOPICS)]
    return {
        "query": f"Durable outbox log SQLite: question {number} about the {topic}",
        "user_prompt": f"Answer {number}: the {topic} was looked after by crew {number * 37}.",
        "source": "assistant_response",
    }


def send(url: str, number: int) -> httpx.Response:
    return httpx.post(
        f"{url}/api/query",
        json=body_of(number),
        headers={"Idempotency-Key": f"write-{number}"},
        timeout=30,
    )


def test_killed_writes_are_whole_or_absent(vault: Path) -> None:
    rng = random.Random(11)
    total = 24
    answered: dict[int, bytes] = {}

    def writer(graph: EmbeddedGraph, numbers: list[int]) -> None:
        for number in numbers:
            try:
                answered[number] = send(graph.url, number).content
            except httpx.TransportError:
                return

    for _ in range(3):
        left = [number for number in range(total) if number not in answered]
        with embedded_graph(vault) as graph:
            thread = threading.Thread(target=writer, args=(graph, left))
            goal = len(answered) + rng.randint(2, 5)
            thread.start()
            while len(answered) < goal and thread.is_alive():
                time.sleep(0.001)
            time.sleep(rng.random() * 0.05)  # any moment of the next write
            graph.kill()
            thread.join(30)

    with embedded_graph(vault) as graph:
        for number in range(total):
            content = send(graph.url, number).content
            assert answered.setdefault(number, content) == content
        stats = graph.get("/api/stats")
        assert stats["queries_processed"] == total
        # Every answer's text is in exactly one place: a file of its own, or evidence.
        folder = vault / "concepts"
        files = [path.read_text() for path in folder.glob("*.md")]
        graph_nodes = graph.get("/api/graph")["nodes"]
        evidence = sum(node["evidence"] for node in graph_nodes)
        assert len(files) + evidence == total
        assert {path.suffix for path in folder.iterdir()} <= {".md", ".tmp"}
        for number in range(total):
            assert sum(f"Answer {number}:" in text for text in files) <= 1
    for path in folder.glob(".bdh-*"):  # a kill between writing and naming may leave one
        assert path.name.endswith(".tmp")


def test_a_committed_note_gets_its_file_at_the_next_start(vault: Path) -> None:
    """The moment between the commit and the file, made by taking the file away again."""
    import sqlite3

    with embedded_graph(vault) as graph:
        note = send(graph.url, 1).json()["new_concepts"][0]["id"]
        graph.kill()
        path = vault / f"{note}.md"
        content = path.read_text()
        with sqlite3.connect(graph.state) as connection:
            connection.execute("INSERT INTO pending_files VALUES (1, ?, ?)", (note, content))
        connection.close()
    path.unlink()
    with embedded_graph(vault) as graph:
        assert path.read_text() == content
        assert note in {node["id"] for node in graph.get("/api/graph")["nodes"]}
        assert send(graph.url, 1).json()["new_concepts"][0]["id"] == note
        assert len(list(path.parent.iterdir())) == 1
        graph.kill()
        # Killed once more after the file and before the row went: nothing is doubled. A
        # stranger's file of that name in between loses nothing either.
        with sqlite3.connect(graph.state) as connection:
            connection.execute("INSERT INTO pending_files VALUES (1, ?, ?)", (note, content))
        connection.close()
    with embedded_graph(vault) as graph:
        assert len(list(path.parent.iterdir())) == 1
        graph.kill()
        with sqlite3.connect(graph.state) as connection:
            connection.execute("INSERT INTO pending_files VALUES (1, ?, ?)", (note, content))
        connection.close()
    path.write_text("A stranger's words.")
    with embedded_graph(vault) as graph:
        assert path.read_text() == "A stranger's words."
        (other,) = (p for p in path.parent.iterdir() if p != path)
        assert other.read_text() == content
