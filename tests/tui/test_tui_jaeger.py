"""``--source jaeger=URL`` against the real Jaeger, fed by the real exporter."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bdh_bridge.paths import BridgePaths
from bdh_otel.export import Exporter
from bdh_otel.reader import SpanReader
from bdh_tui.sources import polling
from bdh_tui.sources.polling import JaegerSource
from tests.support.jaeger import Jaeger, running_jaeger
from tests.tui import scenes
from tests.tui.conftest import Drive

TURNS = 30


@pytest.fixture
def jaeger(tmp_path: Path) -> Iterator[Jaeger]:
    with running_jaeger(tmp_path) as running:
        yield running


def export(store: Path, jaeger: Jaeger) -> int:
    exporter = Exporter(store, {"OTEL_EXPORTER_OTLP_ENDPOINT": jaeger.http})
    try:
        return exporter.run_once(time.monotonic() + 60, force=True).sent
    finally:
        exporter.close()


@pytest.mark.timeout(300)
async def test_the_screens_show_what_jaeger_keeps(
    empty_home: Path,
    jaeger: Jaeger,
    drive: Drive,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(polling, "LIMIT", 20)  # answers that hold less than there is
    path = BridgePaths(tmp_path / "elsewhere").spans
    scenes.play(path, TURNS, over_seconds=600)
    with_reader = SpanReader(path)
    before = {span.span_id: span for span in with_reader.after(0, 100_000)}
    assert export(path, jaeger) == len(before)
    source = JaegerSource(jaeger.query)
    source.start()
    async with drive(empty_home, source=source, size=(140, 45)) as ui:
        live = ui.pane("live")
        await ui.until(lambda: len(live.turns) == TURNS, "every turn of Jaeger's")
        await ui.sees("jaeger 127.0.0.1", "read-only", "(message not kept)", "blacklisted")
        assert not source.trouble
        here = SpanReader(source.store)
        after = {span.span_id: span for span in here.after(0, 100_000)}
        here.close()
        assert set(after) == set(before)
        for span_id, span in before.items():
            for name in ("trace_id", "parent_id", "name", "gate", "path", "decision", "reason",
                         "outcome", "platform", "error_type", "status"):  # fmt: skip
                assert getattr(after[span_id], name) == getattr(span, name), name
            # Jaeger counts in microseconds.
            assert abs(after[span_id].start_ns - span.start_ns) < 1_000

        await ui.press("enter")
        await ui.until(lambda: ui.pane("turn").spans, "the spans of a turn")
        await ui.sees("bdh.turn")
        await ui.press("3")
        await ui.sees(f"{TURNS} turns", "hybrid score")
        await ui.press("4")
        await ui.sees("openrouter")

        await ui.press("1")
        scenes.play(path, 2, over_seconds=1)
        assert export(path, jaeger) > 0
        await ui.until(lambda: len(live.turns) == TURNS + 2, "turns that came later")
    with_reader.close()
    assert not source.store.exists()
