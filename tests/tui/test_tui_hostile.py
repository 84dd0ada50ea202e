"""No text of a message, a file or a peer is markup, and none of it steers the terminal."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
import unicodedata
from pathlib import Path

from textual.command import CommandPalette
from textual.widgets import Input

from bdh_bridge.outbox.store import NewWrite, Outbox
from bdh_bridge.paths import BridgePaths
from bdh_bridge.state import SharedState
from bdh_otel import attributes as attr
from bdh_otel.tracer import Tracer
from bdh_tui.sources.polling import JaegerSource
from bdh_tui.sources.wire import from_otlp_json
from tests.support.http_peer import Peer, answering, json_response
from tests.tui import scenes
from tests.tui.conftest import Drive, Driver

#: ESC, OSC 52 (clipboard), C1 CSI, bidi override, zero width, bell, and markup that crashes.
EVIL = (
    "\x1b[2J\x1b]52;c;ZXZpbA==\x07\x9b31m\u202egnp.exe\u200b[/foo] [red]x[/] [@click=app.quit]y[/]"
)


def evil_home(home: Path, graph: str) -> None:
    paths = BridgePaths(home)
    tracer = Tracer(paths.spans, content="full", strict=True)
    scene = scenes.Scene(
        tracer, f"{EVIL} message", f"{EVIL} s", f"{EVIL} p", time.time_ns() - 10**9
    )
    scene.gates("read", until="blacklist")
    scene.gate("read", "blacklist", "blacklisted", "skip", GATE_RULE=EVIL, GATE_VALUE=1,
               GATE_THRESHOLD=2)  # fmt: skip
    scene.hop(f"pro{EVIL}", "timeout", 5, 1, **{attr.HOP_ERROR: f"said {EVIL}"})
    values = {attr.CONTEXT_NOTES: 1, attr.CONTEXT_TITLES: [EVIL], attr.CONTEXT_TEXT: EVIL}
    scene.span("bdh.context", 1, values)
    failing = scene.tracer.start_span(f"odd {EVIL}", parent=scene.root)
    failing.record_exception(ValueError(EVIL))
    failing.fail("x", EVIL)
    failing.end()
    scene.short_answer()
    scene.end("skip", "blacklisted", "short_answer")
    assert tracer.flush(10)
    tracer.shutdown()
    forge_codes(paths.spans)
    outbox = Outbox(paths.outbox, spool=paths.outbox_spool)
    with contextlib.closing(outbox):
        outbox.accept(
            NewWrite(
                query=EVIL, user_prompt=EVIL, source="x", destination=EVIL, vault_id=EVIL,
                traceparent=EVIL, session_id=EVIL, turn_id=EVIL, platform=EVIL, model=EVIL,
                created_ns=0,
            )
        )  # fmt: skip
    paths.blacklist.write_text(f"# {EVIL}\n{EVIL}\nre:{EVIL}(\n", encoding="utf-8")
    state = SharedState(paths.state, busy_timeout=5.0)
    state.record_failure(f"provider:pro{EVIL}")
    state.close()
    (home / ".env").write_text(f"BDH_API_URL={graph}\n", encoding="utf-8")


def forge_codes(path: Path) -> None:
    """Put text where the bridge writes codes alone, as a peer or another program could."""
    connection = sqlite3.connect(path)
    codes = (attr.TURN_ROUTE, attr.TURN_READ_OUTCOME, attr.TURN_WRITE_OUTCOME, attr.GATE_REASON,
             attr.GATE_NAME, attr.GATE_UNIT, attr.HOP_OUTCOME, attr.TURN_CLOSE_REASON)  # fmt: skip
    for seq, attributes, gate in connection.execute("SELECT seq, attributes, gate FROM spans"):
        values = json.loads(attributes)
        values.update({name: EVIL for name in codes if name in values or name == attr.GATE_UNIT})
        connection.execute(
            "UPDATE spans SET attributes = ?, gate = ?, reason = ?, outcome = ?, error_type = ?"
            " WHERE seq = ?",
            (json.dumps(values), gate and EVIL + gate, EVIL, EVIL, EVIL, seq),
        )
    connection.commit()
    connection.close()


def raw(ui: Driver) -> str:
    """What would be written to the terminal, without the application's own styles."""
    return "".join(strip.text for strip in ui.app.screen._compositor.render_strips())


def assert_harmless(ui: Driver) -> None:
    hidden = {
        char for char in raw(ui) if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    }
    assert not hidden, f"{hidden!r} reached the screen:\n{ui.screen!r}"


async def test_hostile_text_is_shown_and_never_obeyed_on_every_screen(
    empty_home: Path, drive: Drive
) -> None:
    pair = {"pair": f"{EVIL}|{EVIL}", "weight": 0.5, "frequency": 1.0}
    stats = {
        "neurons": EVIL,
        "synapses": None,
        "queries_processed": 10**40,
        "top_hebbian": [pair, 3],
    }
    peer = Peer(answering(json_response(stats)))
    evil_home(empty_home, peer.url)
    async with drive(empty_home, size=(200, 60)) as ui:
        for key in "1234567":
            await ui.press(key)
            assert_harmless(ui)
            assert "Traceback" not in ui.screen
        await ui.sees("[/foo]")
        await ui.press("7", "enter")
        await ui.sees("user_prompt")
        assert_harmless(ui)
        await ui.press("escape", "5")
        await ui.sees("↔")
        await ui.press("1", "enter")
        await ui.until(lambda: ui.app.pane("turn") and ui.pane("turn").spans)
        turn = ui.pane("turn")
        for index in range(turn.lines.count):
            turn.lines.select(index)
            await ui.settled()
            assert_harmless(ui)
        await ui.press("enter")
        assert_harmless(ui)
        await ui.press("escape", "c")
        assert_harmless(ui)
        await ui.press("escape", "6", "v")
        await ui.settled()
        assert_harmless(ui)
        await ui.press("escape", "1", "b")
        await ui.until(lambda: ui.app.screen.query("#rule"))
        assert "\x1b" in ui.app.screen.query_one("#rule", Input).value
        assert_harmless(ui)
        await ui.press("escape", "slash")
        ui.fill("Input", f"text:{EVIL[:5]} nofield:{EVIL}")
        await ui.settled()
        assert_harmless(ui)


async def test_an_error_of_the_graph_is_escaped_too(empty_home: Path, drive: Drive) -> None:
    peer = Peer(answering(json_response({"error": EVIL}, "500 Broken")))
    (empty_home / ".env").write_text(f"BDH_API_URL={peer.url}\n", encoding="utf-8")
    async with drive(empty_home) as ui:
        await ui.press("5")
        await ui.sees("http error", "/foo")
        assert_harmless(ui)
        await ui.press("v")
        await ui.sees("No list of vaults")
        assert_harmless(ui)


async def test_attributes_of_ours_with_values_they_can_t_have_break_no_screen(
    empty_home: Path, drive: Drive
) -> None:
    wrong = [
        {"key": name, "value": {"stringValue": "nan"} if declared.type != "string" else
         {"arrayValue": {"values": [{"intValue": "1"}]}}}
        for name, declared in attr.TABLE.items()
    ]  # fmt: skip
    assert len(wrong) > 100
    start = time.time_ns() - 10**9
    names = ["bdh.turn", "bdh.gate relevance", "bdh.context", "chat m", "retrieval", "bdh.write",
             "bdh.deliver", "bdh.rewrite", "bdh.route", "execute_tool t"]  # fmt: skip
    spans = [
        {
            "traceId": f"{trace:032x}", "spanId": f"{16 * trace + number:016x}",
            "parentSpanId": f"{16 * trace:016x}" if number else "",
            "name": name, "kind": 1, "status": {}, "startTimeUnixNano": str(start + number),
            "endTimeUnixNano": str(start + 10**6), "attributes": wrong[skip : skip + 120],
        }
        for trace, skip in ((1, 0), (2, len(wrong) - 120))
        for number, name in enumerate(names)
    ]  # fmt: skip
    source = JaegerSource("http://127.0.0.1:9")  # not started: it only keeps what it is given
    source.take(from_otlp_json({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}))
    async with drive(empty_home, source=source, size=(120, 40)) as ui:
        live = ui.pane("live")
        await ui.until(lambda: len(live.turns) == 2, "both turns")
        for key in "12345":
            await ui.press(key)
            assert_harmless(ui)
        for turn in live.turns:
            ui.app.open_turn(turn.trace_id)
            await ui.settled()
            pane = ui.pane("turn")
            assert len(pane.spans) == len(names)
            for index in range(pane.lines.count):
                pane.lines.select(index)
                await ui.settled()
                assert_harmless(ui)
            assert "(no int)" in ui.screen or "(no " in ui.screen


async def test_long_wide_and_empty_texts_keep_every_line_as_wide_as_the_screen(
    empty_home: Path, drive: Drive
) -> None:
    path = BridgePaths(empty_home).spans
    tracer = Tracer(path, content="full", strict=True)
    texts = ("x" * 4_000, "漢字かな交じり文" * 500, "👩‍👩‍👧‍👦🏳️‍🌈🇮🇹" * 300, "e\u0301\u0316" * 2_000,
             "\u202e\u2066abc\u200d\ufeff", " ", "\t\n\n")  # fmt: skip
    for number, text in enumerate(texts):
        scene = scenes.Scene(tracer, text, text, "cli", time.time_ns() - number * 10**9)
        scene.gates("read")
        scene.hop("local", "timeout", 5, 1, **{attr.HOP_ERROR: text})
        scene.short_answer()
        scene.end("skip", "casual", "short_answer")
    assert tracer.flush(10)
    tracer.shutdown()
    BridgePaths(empty_home).blacklist.write_text("\n".join(texts), encoding="utf-8")
    async with drive(empty_home, size=(200, 60)) as ui:
        for size in ((200, 60), (80, 24), (20, 5), (120, 40)):
            await ui.pilot.resize_terminal(*size)
            for key in "1234567":
                await ui.press(key)
                assert_harmless(ui)
                lines = ui.app.screen._compositor.render_strips()
                assert {strip.cell_length for strip in lines} == {size[0]}
        await ui.press("1", "enter")
        assert_harmless(ui)
        await ui.press("1", "b")
        assert_harmless(ui)


async def test_a_saved_filter_of_brackets_is_found_in_the_palette(home: Path, drive: Drive) -> None:
    wild = (
        "text:[/]",
        "text:[bold red]x[/bold",
        "text:[@click=app.quit]y",
        "text:\\\\[",
        "text:\x1b[31m",
    )
    folder = BridgePaths(home).directory
    (folder / "tui.json").write_text(json.dumps({"filters": wild}), encoding="utf-8")
    async with drive(home) as ui:
        for query in ("", "text:["):
            await ui.press("ctrl+p", *query)
            await ui.sees("text:[/]", "text:[bold red]x[/bold", "text:[@click=app.quit]y", "␛[31m")
            await ui.press("escape")
            await ui.until(lambda: not isinstance(ui.app.screen, CommandPalette), "the list")
        assert ui.app.is_running
