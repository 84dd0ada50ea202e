"""Screens 3, 4, 5 and 7, the help, the palette, and what they share."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

import pytest

from bdh_bridge.outbox.review import Review, Selection
from bdh_bridge.outbox.states import State
from bdh_bridge.outbox.store import Outbox
from bdh_bridge.paths import BridgePaths
from tests.support.embedded_graph import EmbeddedGraph, embedded_graph, sample_vault
from tests.tui.conftest import Drive


def states(home: Path) -> dict[str, State]:
    """Vault → state; every write of the scenes has a vault of its own."""
    paths = BridgePaths(home)
    with contextlib.closing(Outbox(paths.outbox, spool=paths.outbox_spool)) as outbox:
        return {write.vault_id: write.state for write in Review(outbox).select(Selection())}


# Decisions


async def test_decisions_count_gates_reasons_and_scores(home: Path, drive: Drive) -> None:
    async with drive(home, size=(140, 45)) as ui:
        await ui.press("3")
        await ui.sees("120 turns", "Read path", "120 asked", "hybrid score", "threshold 0.3")
        figures = ui.pane("decisions")._figures
        assert sum(figures.turns) == 120
        read = {step.gate: (step.allowed, step.skipped) for step in figures.funnels["read"]}
        assert read["blacklist"] == (110, 10)
        assert read["eligibility"][1] == 50
        assert [sum(one.counts) for one in figures.histograms] == [50, 50, 50]
        assert figures.reasons[0].reason == "short_answer"
        await ui.sees("e.g. ")


async def test_decisions_of_a_shorter_window_are_fewer(home: Path, drive: Drive) -> None:
    async with drive(home) as ui:
        await ui.press("3")
        await ui.sees("120 turns")
        await ui.press("left")
        pane = ui.pane("decisions")
        await ui.until(lambda: pane._figures is not None)
        assert 0 < sum(pane._figures.turns) < 30


async def test_enter_on_a_reason_lists_its_turns(home: Path, drive: Drive) -> None:
    async with drive(home) as ui:
        await ui.press("3")
        await ui.sees("short answer")
        await ui.press("enter")
        live = ui.pane("live")
        await ui.until(lambda: live.display and live.turns)
        await ui.until(lambda: all(turn.write == "short_answer" for turn in live.turns))


# Providers


async def test_providers_show_the_chain_its_failures_and_the_circuits(
    home: Path, drive: Drive
) -> None:
    async with drive(home, size=(130, 40)) as ui:
        await ui.press("4")
        await ui.sees("1. ollama", "2. nous", "3. openrouter", "4. local", "closed, 1 failed")
        providers = {one.name: one for one in ui.pane("providers")._providers}
        assert providers["local"].outcomes == {"network": 10}
        assert providers["nous"].asked == 0
        assert providers["ollama"].answered + providers["openrouter"].answered == 20
        assert providers["openrouter"].percentile(0.5) >= 0.5
        assert providers["ollama"].circuit == "closed"
        assert providers["openrouter"].circuit in ("open", "probe is due")
        await ui.press("end")
        await ui.sees("network failed", "connection refused")
        await ui.press("enter")
        live = ui.pane("live")
        await ui.until(lambda: live.display and len(live.turns) == 10)


# Graph


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> object:
    vault = sample_vault(tmp_path_factory.mktemp("graph") / "vault")
    with embedded_graph(vault) as server:
        server.query("durable outbox and write-ahead log")
        yield server


async def test_the_graph_screen_shows_a_real_server_and_its_links(
    home: Path, graph: EmbeddedGraph, drive: Drive
) -> None:
    (home / ".env").write_text(f"BDH_API_URL={graph.url}\n", encoding="utf-8")
    async with drive(home) as ui:
        await ui.press("5")
        await ui.sees("✓ up", "8 neurons", "Strongest Hebbian synapses", "↔", "graph up")
        await ui.press("v")
        await ui.sees("Look at which vault?", "default")
        await ui.press("escape")


async def test_an_unreachable_graph_is_told_calmly_and_comes_back_by_itself(
    home: Path, drive: Drive, tmp_path: Path
) -> None:
    vault = sample_vault(tmp_path / "vault")
    with embedded_graph(vault) as server:
        port, url = server.port, server.url
    (home / ".env").write_text(f"BDH_API_URL={url}\n", encoding="utf-8")
    async with drive(home) as ui:
        await ui.press("5")
        await ui.sees("The graph does not answer", "unreachable", "tried again in", "! down")
        with embedded_graph(vault, port=port):
            await ui.press("r")
            await ui.sees("✓ up", "8 neurons")


# Outbox


async def test_the_outbox_shows_what_is_open_and_why(home: Path, drive: Drive) -> None:
    async with drive(home, size=(200, 40)) as ui:
        await ui.press("7")
        await ui.sees("waits for the graph (unreachable: connection refused)", "given up")
        await ui.sees("you decide", "most likely learned", "! 1 in doubt", "! 1 failed")
        shown = {item.where for item in ui.pane("outbox")._items}
        assert shown == {"pending", "retried", "failed", "quarantined", "unconfirmed"}
        await ui.press("f")
        await ui.until(
            lambda: {i.where for i in ui.pane("outbox")._items} == {"failed", "quarantined"}
        )
        await ui.press("f")
        await ui.until(lambda: len(ui.pane("outbox")._items) == 6)


async def select(ui: object, vault: str) -> None:
    pane = ui.pane("outbox")  # type: ignore[attr-defined]
    await ui.until(lambda: pane._items)  # type: ignore[attr-defined]
    pane.lines.select([item.where for item in pane._items].index(vault))
    await ui.settled()  # type: ignore[attr-defined]


async def test_requeueing_what_may_be_learned_twice_needs_the_word(
    home: Path, drive: Drive
) -> None:
    (home / ".env").write_text("BDH_API_URL=http://127.0.0.1:9\nBDH_WORKER=off\n", encoding="utf-8")
    async with drive(home) as ui:
        await ui.press("7")
        await select(ui, "quarantined")
        await ui.press("r")
        await ui.sees("would then learn it twice", "Type requeue")
        await ui.press("y", "enter")
        assert states(home)["quarantined"] is State.QUARANTINED
        ui.fill("Input", "requeue")
        await ui.press("enter")
        await ui.until(lambda: states(home)["quarantined"] is State.PENDING)


async def test_a_write_is_discarded_after_a_yes_and_its_trace_tells(
    home: Path, drive: Drive
) -> None:
    from bdh_otel import attributes as attr

    async with drive(home) as ui:
        await ui.press("7")
        await select(ui, "failed")
        await ui.press("x", "n")
        assert states(home)["failed"] is State.FAILED
        await ui.press("x", "y")
        await ui.until(lambda: states(home)["failed"] is State.DISCARDED)
        reader = ui.app.history.reader
        told = reader.select("name = 'bdh.deliver' ORDER BY seq DESC LIMIT 1")
        assert told[0].attributes[attr.DELIVERY_STATE] == "discarded"


@pytest.mark.parametrize("key", ["x", "r"])
async def test_a_write_that_another_process_settled_meanwhile_stays_as_it_is(
    home: Path, drive: Drive, key: str
) -> None:
    async with drive(home) as ui:
        await ui.press("7")
        await select(ui, "failed")
        await ui.press(key)
        paths = BridgePaths(home)
        outbox = Outbox(paths.outbox, spool=paths.outbox_spool)
        review = Review(outbox)
        writes = [w for w in review.select(Selection()) if w.vault_id == "failed"]
        (review.requeue if key == "x" else review.discard)(writes)
        outbox.close()
        settled = State.PENDING if key == "x" else State.DISCARDED
        assert states(home)["failed"] is settled
        await ui.press("y")
        await ui.sees("has changed meanwhile")
        assert states(home)["failed"] is settled


async def test_the_payload_is_shown_and_the_turn_opened(home: Path, drive: Drive) -> None:
    async with drive(home) as ui:
        await ui.press("7")
        await select(ui, "retried")
        await ui.press("enter")
        await ui.sees("The spare siren is stored in the boathouse.", "user_prompt:")
        await ui.press("escape", "o")
        await ui.until(lambda: ui.app.pane("turn") and ui.pane("turn").spans)


async def test_deliver_now_starts_a_worker_that_delivers(
    home: Path, graph: EmbeddedGraph, drive: Drive
) -> None:
    from tests.tui.scenes import GRAPH

    (home / ".env").write_text(f"BDH_API_URL={graph.url}\n", encoding="utf-8")
    paths = BridgePaths(home)
    outbox = Outbox(paths.outbox, spool=paths.outbox_spool)
    with contextlib.closing(outbox), outbox.handle.use(5) as connection:
        for table in ("writes", "lanes"):
            connection.execute(
                f"UPDATE {table} SET destination = ?, vault_id = '' WHERE vault_id = 'pending'"
                " AND destination = ?",
                (graph.url, GRAPH),
            )
    try:
        async with drive(home) as ui:
            await ui.press("7", "n")
            await ui.until(lambda: states(home).get("") is State.DELIVERED, "the delivery")
    finally:
        command = [sys.executable, "-m", "bdh_bridge.cli", "--home", str(home), "worker", "stop"]
        stopping = await asyncio.create_subprocess_exec(*command, stdout=-3, stderr=-3)
        await asyncio.wait_for(stopping.wait(), 60)


# What all share


async def test_help_names_marks_keys_and_filters(home: Path, drive: Drive) -> None:
    async with drive(home, size=(120, 60)) as ui:
        await ui.press("question_mark")
        await ui.sees("Marks", "Keys of Live", "Saved filters", "Filter of Live", "hybrid<0.4")
        await ui.press("escape")


async def test_the_palette_offers_screens_and_themes(home: Path, drive: Drive) -> None:
    async with drive(home) as ui:
        await ui.press("ctrl+p")
        ui.fill("Input", "show outbox")
        await ui.sees("Go to the screen Outbox")
        await ui.press("enter")
        await ui.until(lambda: ui.app.pane("outbox") and ui.pane("outbox").display)


async def test_the_theme_is_kept_and_one_of_them_has_no_colour(home: Path, drive: Drive) -> None:
    async with drive(home) as ui:
        await ui.press("t")
        assert ui.app.theme == "bridge-light"
        await ui.press("t")
        assert ui.app.theme == "bridge-plain"
        colours = {
            channel
            for strip in ui.app.screen._compositor.render_strips()
            for segment in strip
            if segment.style is not None
            for colour in (segment.style.color, segment.style.bgcolor)
            if colour is not None and (channel := colour.triplet) is not None
        }
        assert colours
        assert all(len(set(colour)) == 1 for colour in colours), "grey alone"
    async with drive(home) as ui:
        assert ui.app.theme == "bridge-plain"
