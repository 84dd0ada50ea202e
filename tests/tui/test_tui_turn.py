"""Screen 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bdh_bridge.paths import BridgePaths
from bdh_bridge.routing.local.feedback import corrections
from tests.tui.conftest import Drive, Driver


async def open_turn(ui: Driver, filter_text: str) -> None:
    """The newest turn that the filter lets through."""
    ui.app.filter_live(filter_text)
    live = ui.pane("live")
    await ui.until(lambda: live._filter.source == filter_text and live.turns and not live._loading)
    trace_id = live.turns[0].trace_id
    await ui.press("enter")
    await ui.until(lambda: ui.app.pane("turn") and ui.pane("turn").trace_id == trace_id)
    await ui.until(lambda: ui.pane("turn").spans, "spans")
    await ui.settled()


async def test_shows_tree_waterfall_and_the_attributes_of_the_selected_span(
    home: Path, drive: Drive
) -> None:
    async with drive(home, size=(140, 60)) as ui:
        await open_turn(ui, "write:learned")
        await ui.sees("├─ ✓ read bridge", "└─ • bdh.deliver", "━", "bdh.turn.route")
        turn = ui.pane("turn")
        index = next(n for n, b in enumerate(turn._branches) if b.span.name == "bdh.deliver")
        turn.lines.select(index)
        await ui.sees("bdh.delivery.new_concepts")
        await ui.press("enter")
        await ui.sees("consumer")
        await ui.press("escape")


async def test_the_context_given_to_the_model_can_be_read(home: Path, drive: Drive) -> None:
    async with drive(home) as ui:
        await open_turn(ui, "read:context text:SQLite")
        await ui.press("c")
        await ui.sees("Context given to the model", "A full disk stops everything")


async def test_the_trace_id_is_copied_and_the_backend_url_made(home: Path, drive: Drive) -> None:
    async with drive(home) as ui:
        await ui.press("enter")
        await ui.until(lambda: ui.pane("turn").spans)
        trace_id = ui.pane("turn").trace_id
        await ui.press("y")
        assert ui.app.clipboard == trace_id
        await ui.press("o")
        assert ui.app.clipboard == f"http://localhost:16686/trace/{trace_id}"


async def test_exported_json_holds_every_span_and_can_be_opened_as_a_source(
    home: Path, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bdh_tui.sources.file import FileSource

    monkeypatch.chdir(tmp_path)
    async with drive(home) as ui:
        await ui.press("enter")
        await ui.until(lambda: ui.pane("turn").spans)
        spans = ui.pane("turn").spans
        await ui.press("e")
    file = tmp_path / f"trace-{spans[0].trace_id[:16]}.jsonl"
    assert file.stat().st_mode & 0o777 == 0o600
    written = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [one["span_id"] for one in written] == [span.span_id for span in spans]
    source = FileSource(file)
    source.start()
    async with drive(home, source=source) as ui:
        await ui.until(lambda: ui.pane("live").turns, "the exported turn")
        await ui.sees("read-only")


async def test_brackets_walk_to_the_neighbours(home: Path, drive: Drive) -> None:
    async with drive(home) as ui:
        await ui.press("down", "enter")
        ids = [turn.trace_id for turn in ui.pane("live").turns]
        turn = ui.pane("turn")
        await ui.until(lambda: turn.trace_id == ids[1])
        await ui.press("left_square_bracket")
        await ui.until(lambda: turn.trace_id == ids[2])
        await ui.press("right_square_bracket", "right_square_bracket")
        await ui.until(lambda: turn.trace_id == ids[0])


async def test_a_broken_parent_ring_hides_nothing(home: Path) -> None:
    from dataclasses import replace

    from bdh_bridge.paths import BridgePaths
    from bdh_otel.reader import SpanReader
    from bdh_tui.turn.waterfall import branches

    reader = SpanReader(BridgePaths(home).spans)
    spans = reader.after(0, 12)
    ring = [
        replace(spans[0], parent_id=spans[1].span_id),
        replace(spans[1], parent_id=spans[0].span_id),
        *spans[2:],
    ]
    assert {branch.span.span_id for branch in branches(ring)} == {span.span_id for span in ring}
    reader.close()


async def test_a_decision_is_corrected_with_the_words_it_was_made_about(
    home: Path, drive: Drive
) -> None:
    async with drive(home) as ui:
        await open_turn(ui, "read:context text:SQLite")
        await ui.press("f")
        await ui.sees("What would have been right", "neither")
        await ui.press("down", "down", "down", "enter")
        await ui.sees("Kept: neither")
    (kept,) = corrections(BridgePaths(home).feedback)
    assert "SQLite" in kept.message
    assert (kept.read, kept.store) == (False, False)
