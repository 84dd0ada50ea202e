"""The user goes on working in the vault while it is served; and what people's vaults hold."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.embedded_graph import SAMPLE_NOTES, EmbeddedGraph, embedded_graph


def wait_for(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def nodes(graph: EmbeddedGraph) -> dict[str, dict[str, Any]]:
    return {node["id"]: node for node in graph.get("/api/graph")["nodes"]}


def test_added_edited_renamed_and_removed_notes_are_followed(vault: Path) -> None:
    with embedded_graph(vault) as graph:
        (vault / "new note.md").write_text("The greenhouse is heated by a heat pump. [[pane]]")
        wait_for(lambda: "new note" in nodes(graph))
        assert graph.retrieve("greenhouse heat pump")["activated_notes"][0]["id"] == "new note"
        assert graph.get("/api/stats")["synapses"] == 5

        (vault / "new note.md").write_text("---\ntitle: Orchard\n---\nThe orchard has nine trees.")
        wait_for(lambda: nodes(graph)["new note"]["title"] == "Orchard")
        routing = graph.retrieve("greenhouse pump")["routing"]
        assert routing["bm25_matched_terms"] == []

        (vault / "new note.md").rename(vault / "people" / "renamed.md")
        wait_for(lambda: "people/renamed" in nodes(graph) and "new note" not in nodes(graph))

        (vault / "people" / "renamed.md").unlink()
        wait_for(lambda: set(nodes(graph)) == set(SAMPLE_NOTES))
        assert graph.get("/api/stats")["synapses"] == 4


def test_an_unmounted_vault_keeps_serving_what_it_held(vault: Path) -> None:
    with embedded_graph(vault) as graph:
        vault.rename(vault.with_name("away"))
        wait_for(lambda: "can't be looked through" in graph.log.read_text())
        assert set(nodes(graph)) == set(SAMPLE_NOTES)
        vault.with_name("away").rename(vault)
        (vault / "back.md").write_text("Mounted again.")
        wait_for(lambda: "back" in nodes(graph))
        assert graph.log.read_text().count("can't be looked through") == 1


def test_learning_outlives_a_note_that_goes_and_comes_back(vault: Path) -> None:
    with embedded_graph(vault) as graph:
        graph.query("durable outbox write-ahead log crash SQLite", respond=False)
        learned = graph.get("/api/hebbian")["synapses"]
        path = vault / "databases" / "write-ahead-log.md"
        kept = path.read_bytes()
        path.unlink()
        wait_for(lambda: "databases/write-ahead-log" not in nodes(graph))
        graph.retrieve("durable outbox")  # its synapses lead nowhere, and nothing minds
        path.write_bytes(kept)
        wait_for(lambda: "databases/write-ahead-log" in nodes(graph))
        assert graph.get("/api/hebbian")["synapses"] == learned


def test_a_newcomers_vault_is_served(tmp_path: Path) -> None:
    vault = tmp_path / "My Vault ✨"
    (vault / ".obsidian").mkdir(parents=True)
    (vault / ".obsidian" / "workspace.md").write_text("not a note")
    (vault / "Daily Notes").mkdir()
    (vault / "Daily Notes" / "2024-05-01.md").write_bytes(
        "\ufeff---\r\ntags: [día]\r\n---\r\n# Mayo\r\nVimos [[Ideas & Más#Jardín|las ideas]].\r\n"
        "![[foto.png]] ![[Ideas & Más]]\r\n".encode()
    )
    (vault / "Ideas & Más.md").write_text("---\ntitle: [broken yaml\n---\nUn jardín con riego.")
    (vault / "空のノート.md").write_text("")
    (vault / "huge.md").write_text("ballast " * 400_000)
    (vault / "junk.md").write_bytes(os.urandom(2_000) + b"\0")
    (vault / "latin1.md").write_bytes(b"caf\xe9 cr\xe8me")
    (vault / "loop").symlink_to(vault)
    (vault / "dangling.md").symlink_to("nowhere")
    Path(os.fsdecode(os.fsencode(vault) + b"/bad\xff.md")).write_text("x")
    locked = vault / "locked.md"
    locked.write_text("secret")
    locked.chmod(0)
    before = {
        path: path.stat().st_mtime_ns
        for path in vault.rglob("*")
        if path.is_file() and not path.is_relative_to(vault / "loop")
    }
    with embedded_graph(vault) as graph:
        found = nodes(graph)
        assert {"Daily Notes/2024-05-01", "Ideas & Más", "空のノート", "huge", "latin1"} <= set(
            found
        )
        assert not {"junk", "dangling", ".obsidian/workspace"} & set(found)
        assert found["Ideas & Más"]["title"] == "[broken yaml"
        edges = graph.get("/api/graph")["edges"]
        assert edges == [{"source": "Daily Notes/2024-05-01", "target": "Ideas & Más"}]
        assert graph.retrieve("riego del jardín")["activated_notes"][0]["id"] == "Ideas & Más"
        log = graph.log.read_text()
        assert log.count("junk.md") == 1
        assert "Traceback" not in log
    after = {path: path.stat().st_mtime_ns for path in before}
    assert after == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_note_is_taken_up_once_it_may_be_read(vault: Path) -> None:
    locked = vault / "locked.md"
    locked.write_text("The vault's locked note.")
    locked.chmod(0)
    with embedded_graph(vault) as graph:
        assert "locked" not in nodes(graph)
        locked.chmod(0o600)
        wait_for(lambda: "locked" in nodes(graph))


def test_an_empty_vault_learns_its_first_note(tmp_path: Path) -> None:
    vault = tmp_path / "vault"
    vault.mkdir()
    with embedded_graph(vault) as graph:
        assert graph.retrieve("anything")["activated_notes"] == []
        assert graph.get("/api/stats")["avg_degree"] == 0.0
        body = graph.query("First question about rye?", user_prompt="Rye needs a sourdough.")
        assert body["neuron_count"] == 1
        assert graph.retrieve("rye sourdough")["activated_notes"]
    shutil.rmtree(vault / "concepts")
    with embedded_graph(vault) as graph:
        assert graph.get("/api/stats")["neurons"] == 0  # what the user deletes stays deleted
