"""What an operator reads."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.escape import escape, escape_lines, one_line
from bdh_otel.reader import SpanReader
from bdh_otel.tracer import LocalSpan, Tracer
from bdh_otel.tree import colours_wanted, duration, render


def rendered(tracer: Tracer, reader: SpanReader, colour: bool = False) -> str:
    assert tracer.flush(10)
    return render(reader.after(0), colour=colour)


def test_why_was_this_retrieved_and_that_not_stored(
    tracer: Tracer, reader: SpanReader, conversation: Callable[..., LocalSpan]
) -> None:
    conversation()
    lines = render(reader.after(0)).splitlines()
    assert "cli · session s-1" in lines[0]
    assert lines[1].startswith(
        "• bdh.turn  retrieve_only  read: context · write: short_answer · closed by end_of_turn"
    )
    assert lines[2] == "│  “Why did we choose SQLite for the outbox?”"
    assert [line for line in lines if line.startswith(("├─", "└─"))] == [
        "├─ ✓ read  cron          not_cron",
        "├─ ✓ read  blacklist     no_rule_matched",
        "├─ ✓ read  eligibility   knowledge_cue  rule “why did we”",
        "├─ ! chat router-model  timeout  openrouter · hop 1",
        "├─ • retrieval notes  ok  5 notes · hybrid 0.81 (second 0.54) · vector 0.72 · bm25 1 · "
        "terms 2 of 3: “sqlite”, “outbox”",
        "├─ ✓ read  relevance     terms_matched  0.81 ≥ 0.30 hybrid score",
        "├─ • bdh.context  2 notes given  1,204 characters · 1 already in the conversation",
        "└─ ✗ write answer        short_answer  140 < 200 characters",
    ]


def test_rounding_does_not_hide_how_the_local_router_decided(
    tracer: Tracer, reader: SpanReader
) -> None:
    span = tracer.start_span(names.ROUTE)
    span.set_attributes(
        {
            attr.ROUTE_ROUTER: "local",
            attr.ROUTE_REASON: "in_doubt",
            attr.ROUTE_RETRIEVE_PROBABILITY: 0.71,
            attr.ROUTE_RETRIEVE_THRESHOLD: 0.59,
            attr.ROUTE_STORE_PROBABILITY: 0.6571,
            attr.ROUTE_STORE_THRESHOLD: 0.66,
            attr.ROUTE_GREY_ZONE: True,
        }
    )
    span.end()
    assert "in_doubt · retrieve yes (0.71 of 0.59) · store no (0.657 of 0.66)" in rendered(
        tracer, reader
    )


def test_folded_what_decided_stands_out(
    reader: SpanReader, conversation: Callable[..., LocalSpan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bdh_otel.tree._WORTH_A_LINE", 10**15)
    conversation()
    full, folded = (render(reader.after(0), fold=fold).splitlines() for fold in (False, True))
    assert folded[3] == "├─ ✓ read  cron · blacklist"
    # A gate that has something to tell keeps its line, and so does everything else.
    assert folded[4:] == full[5:]


def test_a_gate_that_took_long_is_not_folded(
    reader: SpanReader, conversation: Callable[..., LocalSpan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bdh_otel.tree._WORTH_A_LINE", 0)
    conversation()
    assert render(reader.after(0), fold=True) == render(reader.after(0))


def test_the_message_is_quoted_once(tracer: Tracer, reader: SpanReader) -> None:
    with tracer.span(names.TURN, attributes={attr.TURN_MESSAGE: "a question"}) as turn:
        query = {attr.RETRIEVAL_QUERY: "a question", attr.RETRIEVAL_ERROR: "refused"}
        retrieval = tracer.start_span(names.retrieval("v"), parent=turn, attributes=query)
        retrieval.fail("unreachable", "refused")
        retrieval.end()
        other = {attr.RETRIEVAL_QUERY: "another"}
        tracer.start_span(names.retrieval("v"), parent=turn, attributes=other).end()
    text = rendered(tracer, reader)
    assert [text.count(said) for said in ("“a question”", "“another”", "refused")] == [1, 1, 1]


@pytest.fixture(autouse=True)
def _no_durations(monkeypatch: pytest.MonkeyPatch) -> None:
    # What takes how long depends on the machine.
    monkeypatch.setattr("bdh_otel.tree._WORTH_TELLING", 10**15)


def test_close_values_are_told_apart(tracer: Tracer, reader: SpanReader) -> None:
    attributes = {
        attr.GATE_NAME: "relevance",
        attr.GATE_DECISION: "skip",
        attr.GATE_VALUE: 0.2991,
        attr.GATE_THRESHOLD: 0.3,
    }
    tracer.start_span(names.gate("relevance"), attributes=attributes).end()
    assert "0.2991 < 0.3000" in rendered(tracer, reader)


def test_a_blacklist_rule_is_shown_with_its_line(tracer: Tracer, reader: SpanReader) -> None:
    attributes = {
        attr.GATE_NAME: "blacklist",
        attr.GATE_PATH: "read",
        attr.GATE_DECISION: "skip",
        attr.GATE_REASON: "blacklisted",
        attr.GATE_RULE: "re:.*password.*",
        attr.GATE_RULE_LINE: 12,
    }
    tracer.start_span(names.gate("blacklist"), attributes=attributes).end()
    assert "✗ read  blacklist     blacklisted  rule “re:.*password.*” (line 12)" in rendered(
        tracer, reader
    )


def test_a_span_whose_parent_is_elsewhere_is_a_root(tracer: Tracer, reader: SpanReader) -> None:
    parent = tracer.remote_parent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    with tracer.span(names.DELIVER, parent=parent) as delivery:
        tracer.start_span(names.DUTY, parent=delivery).end()
    text = rendered(tracer, reader)
    assert "parent b7ad6b7169203331 is not in this store" in text
    assert "└─ • bdh.worker" in text


def test_parents_in_a_ring_hide_nothing(tracer: Tracer, reader: SpanReader) -> None:
    a, b = tracer.start_span("a"), tracer.start_span("b")
    a.trace_id = b.trace_id
    a.parent_id, b.parent_id = b.span_id, a.span_id
    itself = tracer.start_span("itself", parent=a)
    itself.parent_id = itself.span_id
    for span in (a, b, itself):
        span.end()
    text = rendered(tracer, reader)
    assert [text.count(name) for name in ("• a", "• b", "• itself")] == [1, 1, 1]


def test_a_very_deep_trace_is_shown(tracer: Tracer, reader: SpanReader) -> None:
    span = tracer.start_span("0")
    span.end()
    for number in range(1, 2_000):
        span = tracer.start_span(str(number), parent=span)
        span.end()
    assert tracer.flush(10)
    assert render(reader.after(0, limit=5_000)).count("•") == 2_000


def test_open_failed_and_linked_spans_say_so(tracer: Tracer, reader: SpanReader) -> None:
    turn = tracer.start_span(names.TURN)
    turn.save_provisional()
    with pytest.raises(ConnectionError), tracer.span(names.CONTEXT, parent=turn):
        raise ConnectionError("peer\x1b]0;title\x07 said no")
    tracer.start_span(names.DELIVER, links=[turn]).end()
    text = rendered(tracer, reader)
    assert "… bdh.turn  open" in text
    assert "! bdh.context" in text
    assert "ConnectionError" in text
    assert "peer␛]0;title␇ said no" in text
    assert f"linked to span {turn.span_id:016x}" in text


def test_unknown_spans_show_what_they_carry(tracer: Tracer, reader: SpanReader) -> None:
    attributes = {attr.WORKER_DUTY: "prune_spans", attr.WORKER_ITEMS: 12}
    tracer.start_span("something.new", attributes=attributes).end()
    assert "• something.new  worker.duty prune_spans  worker.items 12" in rendered(tracer, reader)


def test_the_way_of_a_chat_message_is_told_in_words(tracer: Tracer, reader: SpanReader) -> None:
    received = {attr.BORGEE_OUTCOME: "pending", attr.BORGEE_KIND: "message"}
    with tracer.span(names.BORGEE_RECEIVE, attributes=received) as root:
        claimed = {
            attr.BORGEE_RECEIPT: 7,
            attr.BORGEE_ATTEMPT: 2,
            attr.BORGEE_LANE: "control",
            attr.BORGEE_WAITED: 0.0032,
        }
        tracer.start_span(names.BORGEE_CLAIM, parent=root, attributes=claimed).end()
        sent = {
            attr.BORGEE_OPERATION: "edit",
            attr.BORGEE_OUTCOME: "sent",
            attr.BORGEE_CHANNEL: "buoys",
            attr.BORGEE_PARTS: 1,
        }
        tracer.start_span(names.BORGEE_SEND, parent=root, attributes=sent).end()
    assert rendered(tracer, reader).splitlines()[1:] == [
        "• borgee.receive  pending  message",
        "├─ • borgee.claim  receipt 7  control lane · attempt 2 · waited 0.00 s",
        "└─ • borgee.send  sent  edit · in buoys",
    ]


def test_no_text_reaches_the_terminal_raw(store_path: Path, reader: SpanReader) -> None:
    tracer = Tracer(store_path, strict=False)  # a code may be hostile, too
    hostile = "a\x1b[2J\x9b31m\r\n\u202eb\u200b\u2028\x00\x7f\U000e0041"
    turn = tracer.start_span(
        f"bdh.turn{hostile}",
        attributes={
            name: [hostile] if one.type == "strings" else hostile
            for name, one in attr.TABLE.items()
            if one.type in ("string", "strings")
        },
    )
    turn.add_event(hostile, {attr.EXCEPTION_MESSAGE: hostile})
    turn.fail(hostile, hostile)
    for name in (span.prefix for span in names.SPANS):
        child = tracer.start_span(f"{name} {hostile}", parent=turn)
        child.set_attributes({k: v for k, v in turn.attributes.items() if k != attr.GATE_NAME})
        child.end()
    turn.end()
    for character in rendered(tracer, reader):
        assert character == "\n" or unicodedata.category(character) not in (
            "Cc",
            "Cf",
            "Cs",
            "Zl",
            "Zp",
        )


def test_colours_are_for_terminals() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert colours_wanted(Terminal(), {"TERM": "xterm"})
    assert not colours_wanted(Terminal(), {"NO_COLOR": "1"})
    assert not colours_wanted(Terminal(), {"TERM": "dumb"})
    assert not colours_wanted(io.StringIO(), {})


def test_colour_changes_nothing_but_colour(
    tracer: Tracer, reader: SpanReader, conversation: Callable[..., LocalSpan]
) -> None:
    import re

    conversation()
    plain, coloured = render(reader.after(0)), render(reader.after(0), colour=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert "\x1b[33m✗" in coloured
    assert "\x1b[1;31m!" in coloured


@pytest.mark.parametrize(
    ("nanoseconds", "shown"),
    [
        (None, "open"),
        (0, "0.0 ms"),
        (9_940_000, "9.9 ms"),
        (37_000_000, "37 ms"),
        (1_240_000_000, "1.2 s"),
        (180_000_000_000, "3 min"),
    ],
)
def test_durations(nanoseconds: int | None, shown: str) -> None:
    assert duration(nanoseconds) == shown


def test_escaping() -> None:
    assert escape("plain, è, 日本, 👍") == "plain, è, 日本, 👍"
    assert escape("a\n\t\x1b\x7f\x9b") == "a␊␉␛␡\\x9b"
    assert escape("\u202e\u200b\u2066\ufeff\ud800") == "\\u202e\\u200b\\u2066\\ufeff\\ud800"
    assert escape("\U000e0041") == "\\U000e0041"
    assert escape_lines("a\nb\x1b") == "a\nb␛"
    assert one_line("  a\n\n b\x1b " + "x" * 50, 10) == "a b␛ xxxx…".replace("␛ ", "␛ ")
    assert one_line("short", 10) == "short"
