"""A store, a tracer, and a conversation's worth of spans as the bridge makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import SpanKind

from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.export import Exporter
from bdh_otel.reader import SpanReader
from bdh_otel.tracer import LocalSpan, Tracer
from tests.support.otlp_receiver import GrpcReceiver, HttpReceiver, Receiver


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    return tmp_path / "bdh-bridge" / "spans.sqlite3"


@pytest.fixture
def tracer(store_path: Path) -> Iterator[Tracer]:
    tracer = Tracer(store_path, {"service.version": "1.2.3"}, strict=True)
    yield tracer
    tracer.shutdown()


@pytest.fixture
def reader(store_path: Path) -> Iterator[SpanReader]:
    reader = SpanReader(store_path)
    yield reader
    reader.close()


def gate(
    tracer: Tracer, turn: LocalSpan, name: str, path: str, decision: str, reason: str, **more: Any
) -> None:
    with tracer.span(
        names.gate(name),
        parent=turn,
        attributes={
            attr.GATE_NAME: name,
            attr.GATE_PATH: path,
            attr.GATE_DECISION: decision,
            attr.GATE_REASON: reason,
            **{getattr(attr, key): value for key, value in more.items()},
        },
    ):
        pass


def converse(tracer: Tracer, session: str = "s-1", turn_id: str = "t-1") -> LocalSpan:
    """One turn that reads, whose answer is too short to be written; 9 spans."""
    turn = tracer.start_span(
        names.TURN,
        attributes={
            attr.CONVERSATION_ID: session,
            attr.TURN_ID: turn_id,
            attr.PLATFORM: "cli",
            attr.REQUEST_MODEL: "host-model",
            attr.TURN_MESSAGE: "Why did we choose SQLite for the outbox?",
        },
    )
    gate(tracer, turn, "cron", "read", "allow", "not_cron")
    gate(tracer, turn, "blacklist", "read", "allow", "no_rule_matched", GATE_RULES=3)
    gate(tracer, turn, "eligibility", "read", "allow", "knowledge_cue", GATE_RULE="why did we")
    with tracer.span(
        names.chat("router-model"),
        parent=turn,
        kind=SpanKind.CLIENT,
        attributes={
            attr.OPERATION_NAME: "chat",
            attr.PROVIDER_NAME: "openrouter",
            attr.REQUEST_MODEL: "router-model",
            attr.HOP_INDEX: 1,
        },
    ) as hop:
        hop.set_attributes({attr.HOP_OUTCOME: "timeout", attr.HOP_ERROR: "read timed out"})
        hop.fail("timeout")
    with tracer.span(
        names.retrieval("notes"),
        parent=turn,
        kind=SpanKind.CLIENT,
        attributes={
            attr.RETRIEVAL_VAULT: "notes",
            attr.RETRIEVAL_QUERY: "choose SQLite outbox",
            attr.RETRIEVAL_OUTCOME: "ok",
            attr.RETRIEVAL_NOTES: 5,
            attr.RETRIEVAL_HYBRID_TOP: 0.8061,
            attr.RETRIEVAL_HYBRID_SECOND: 0.5438,
            attr.RETRIEVAL_VECTOR_TOP: 0.723,
            attr.RETRIEVAL_BM25_TOP: 1.0,
            attr.RETRIEVAL_QUERY_TERMS: 3,
            attr.RETRIEVAL_MATCHED_TERMS_COUNT: 2,
            attr.RETRIEVAL_MATCHED_TERMS: ["sqlite", "outbox"],
        },
    ):
        pass
    gate(
        tracer,
        turn,
        "relevance",
        "read",
        "allow",
        "terms_matched",
        GATE_VALUE=0.8061,
        GATE_THRESHOLD=0.3,
        GATE_UNIT="hybrid score",
    )
    with tracer.span(
        names.CONTEXT,
        parent=turn,
        attributes={
            attr.CONTEXT_NOTES: 2,
            attr.CONTEXT_CHARACTERS: 1_204,
            attr.CONTEXT_ALREADY_PRESENT: 1,
            attr.CONTEXT_TITLES: ["Write-Ahead Logging", "SQLite"],
        },
    ):
        pass
    gate(
        tracer,
        turn,
        "answer",
        "write",
        "skip",
        "short_answer",
        GATE_VALUE=140,
        GATE_THRESHOLD=200,
        GATE_UNIT="characters",
    )
    turn.set_attributes(
        {
            attr.TURN_ROUTE: "retrieve_only",
            attr.TURN_READ_OUTCOME: "context",
            attr.TURN_WRITE_OUTCOME: "short_answer",
            attr.TURN_CLOSE_REASON: "end_of_turn",
        }
    )
    turn.end()
    return turn


@pytest.fixture
def conversation(tracer: Tracer) -> Callable[..., LocalSpan]:
    """``conversation(session=…, turn_id=…)``: one whole turn, committed; returns its root."""

    def one_turn(session: str = "s-1", turn_id: str = "t-1") -> LocalSpan:
        turn = converse(tracer, session, turn_id)
        assert tracer.flush(10)
        return turn

    return one_turn


@pytest.fixture(params=["http", "grpc"])
def receiver(request: pytest.FixtureRequest) -> Iterator[Receiver]:
    receiver = HttpReceiver() if request.param == "http" else GrpcReceiver()
    yield receiver
    receiver.close()


@pytest.fixture
def http() -> Iterator[HttpReceiver]:
    receiver = HttpReceiver()
    yield receiver
    receiver.close()


def otlp_environment(receiver: Any, **more: str) -> dict[str, str]:
    protocol = "grpc" if isinstance(receiver, GrpcReceiver) else "http/protobuf"
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        **more,
    }


@pytest.fixture
def exporter_for(store_path: Path) -> Iterator[Callable[..., Exporter]]:
    made: list[Exporter] = []

    def make(receiver: Any, *, export_content: bool = False, **more: str) -> Exporter:
        exporter = Exporter(
            store_path, otlp_environment(receiver, **more), export_content=export_content
        )
        made.append(exporter)
        return exporter

    yield make
    for exporter in made:
        exporter.close()
