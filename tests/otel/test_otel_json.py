"""``spans export``: lines of OTLP JSON, as the Collector reads them from a file."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.otlp import Encoder
from bdh_otel.otlp_json import MAX_LINE, lines
from bdh_otel.reader import SpanReader, StoredSpan
from bdh_otel.tracer import LocalSpan, Tracer
from tests.support.jaeger import line_reader

#: Of the receiver: what is longer is torn apart, and neither half is JSON.
MAX_LOG_SIZE = 1 << 20


@pytest.fixture
def talkative(store_path: Path) -> Iterator[Tracer]:
    tracer = Tracer(store_path, {}, content="full", strict=True)
    yield tracer
    tracer.shutdown()


def long_story(tracer: Tracer, letter: str, turns: int) -> None:
    """Turns as long as content may be: up to six bytes of JSON for a letter, twelve for a smile."""
    for _ in range(turns):
        tracer.start_span(
            names.TURN,
            attributes={
                attr.TURN_MESSAGE: letter * attr.MAX_CONTENT,
                attr.CONTEXT_TEXT: "short",
                attr.TURN_FIRST: True,
            },
        ).end()
    assert tracer.flush(30)


def written(reader: SpanReader, path: Path, encoder: Encoder) -> int:
    """What ``bdh-bridge spans export --output`` writes; how many spans."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for spans, line in lines(reader, encoder):
            file.write(f"{line}\n")
            count += spans
    return count


@pytest.mark.parametrize("letter", ["x", "é", "語", "🙂"])
def test_no_line_is_too_long_for_the_receiver(
    talkative: Tracer, reader: SpanReader, letter: str
) -> None:
    long_story(talkative, letter, 30)
    found = list(lines(reader, Encoder(content=True)))
    assert len(found) > 1
    seen: list[str] = []
    for count, line in found:
        assert len(line.encode()) <= MAX_LINE < MAX_LOG_SIZE
        spans = [
            span["spanId"]
            for resource in json.loads(line)["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]
        assert len(spans) == count
        seen += spans
    assert seen == [span.span_id for span in reader.after(0, limit=100)], "all of them, in order"


def read_back(path: Path, count: int) -> list[list[str]]:
    """By the Collector's own file consumer and decoder, with the receiver's defaults."""
    done = subprocess.run(
        [line_reader(), path, str(count)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


def told(span: StoredSpan, *, content: bool = False) -> list[str]:
    leaves = ("exportable", "content") if content else ("exportable",)
    exported = [name for name in span.attributes if attr.TABLE[name].privacy in leaves]
    numbers = [str(len(exported)), str(len(span.links))]
    return [span.trace_id, span.span_id, span.parent_id or "", span.name, *numbers]


def test_the_collectors_file_consumer_reads_every_span(
    conversation: Callable[..., LocalSpan], tracer: Tracer, reader: SpanReader, tmp_path: Path
) -> None:
    line_reader()
    for number in range(60):  # more than one line
        root = conversation(turn_id=f"t-{number}")
        tracer.start_span(names.DELIVER, links=[root]).end()
    assert tracer.flush(30)
    path = tmp_path / "spans.jsonl"
    count = written(reader, path, Encoder())
    assert count == 600
    stored = reader.after(0, limit=1_000)
    assert sorted(read_back(path, count)) == sorted(told(span) for span in stored)


def test_it_reads_the_longest_lines_too(
    talkative: Tracer, reader: SpanReader, tmp_path: Path
) -> None:
    line_reader()
    long_story(talkative, "語", 30)
    path = tmp_path / "spans.jsonl"
    count = written(reader, path, Encoder(content=True))
    stored = reader.after(0, limit=100)
    assert sorted(read_back(path, count)) == sorted(told(span, content=True) for span in stored)
