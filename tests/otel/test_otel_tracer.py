"""Spans as the bridge makes them, and as other users of the OpenTelemetry API see them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)

from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.reader import SpanReader, StoredSpan
from bdh_otel.tracer import LocalSpan, Tracer


def stored(tracer: Tracer, reader: SpanReader) -> dict[str, StoredSpan]:
    assert tracer.flush(10)
    return {span.name: span for span in reader.after(0)}


def test_a_span_is_stored_as_it_was_made(tracer: Tracer, reader: SpanReader) -> None:
    span = tracer.start_span(
        names.retrieval("notes"),
        kind=SpanKind.CLIENT,
        attributes={attr.RETRIEVAL_VAULT: "notes", attr.CONVERSATION_ID: "s"},
        start_time=1_000,
    )
    span.set_attribute(attr.RETRIEVAL_NOTES, 4)
    span.set_attributes({attr.RETRIEVAL_OUTCOME: "ok"})
    span.add_event("retry", {attr.RETRIEVAL_ATTEMPTS: 2}, timestamp=1_500)
    span.end(end_time=2_000)
    found = stored(tracer, reader)["retrieval notes"]
    assert (found.kind, found.start_ns, found.end_ns, found.duration_ns) == (2, 1_000, 2_000, 1_000)
    assert (found.session, found.outcome, found.status) == ("s", "ok", 0)
    assert found.attributes == {
        attr.RETRIEVAL_VAULT: "notes",
        attr.CONVERSATION_ID: "s",
        attr.RETRIEVAL_NOTES: 4,
        attr.RETRIEVAL_OUTCOME: "ok",
    }
    assert [(e.name, e.time_ns, e.attributes) for e in found.events] == [
        ("retry", 1_500, {attr.RETRIEVAL_ATTEMPTS: 2})
    ]
    assert int(found.trace_id, 16) == span.get_span_context().trace_id


def test_children_share_the_trace_and_its_context(tracer: Tracer, reader: SpanReader) -> None:
    context = {
        attr.CONVERSATION_ID: "s",
        attr.TURN_ID: "t",
        attr.PLATFORM: "cli",
        attr.REQUEST_MODEL: "host-model",
    }
    with tracer.span(names.TURN, attributes={**context, attr.TURN_FIRST: True}) as turn:
        with tracer.span(names.REWRITE, parent=turn) as rewrite:
            tracer.start_span(
                names.chat("m"), parent=rewrite, attributes={attr.REQUEST_MODEL: "m"}
            ).end()
        # Set later than the first child: the next one has it.
        turn.set_attribute(attr.REQUEST_MODEL, "other")
        tracer.start_span(names.CONTEXT, parent=turn).end()
    spans = stored(tracer, reader)
    assert {span.trace_id for span in spans.values()} == {spans[names.TURN].trace_id}
    assert spans["chat m"].parent_id == spans[names.REWRITE].span_id
    assert spans[names.REWRITE].attributes == context
    assert spans["chat m"].attributes == {**context, attr.REQUEST_MODEL: "m"}
    assert spans[names.CONTEXT].attributes[attr.REQUEST_MODEL] == "other"


def test_without_a_parent_a_span_starts_a_trace(tracer: Tracer) -> None:
    first, second = tracer.start_span("a"), tracer.start_span("b")
    assert first.parent_id is None
    assert first.trace_id != second.trace_id


def test_an_exception_is_a_failure_and_goes_on(tracer: Tracer, reader: SpanReader) -> None:
    with pytest.raises(TimeoutError), tracer.span(names.CONTEXT):
        raise TimeoutError("the text")
    found = stored(tracer, reader)[names.CONTEXT]
    assert found.failed
    assert (found.error_type, found.status_message) == ("TimeoutError", "the text")
    assert found.events[0].name == "exception"
    assert found.events[0].attributes == {
        attr.EXCEPTION_TYPE: "TimeoutError",
        attr.EXCEPTION_MESSAGE: "the text",
    }


def test_what_a_span_says_of_its_failure_outlives_the_exception(
    tracer: Tracer, reader: SpanReader
) -> None:
    span = tracer.start_span(names.CONTEXT)
    span.fail("timeout", "after 2 s")
    with pytest.raises(TimeoutError), span:
        raise TimeoutError("the text")
    found = stored(tracer, reader)[names.CONTEXT]
    assert (found.error_type, found.status_message) == ("timeout", "after 2 s")


def test_leaving_by_keyboard_interrupt_is_no_failure(tracer: Tracer, reader: SpanReader) -> None:
    with pytest.raises(KeyboardInterrupt), tracer.span(names.CONTEXT):
        raise KeyboardInterrupt
    assert not stored(tracer, reader)[names.CONTEXT].failed


def test_status_follows_the_api(tracer: Tracer, reader: SpanReader) -> None:
    error = tracer.start_span("error")
    error.set_status(Status(StatusCode.ERROR, "why"))
    error.set_status(StatusCode.UNSET)
    good = tracer.start_span("good")
    good.set_status(StatusCode.OK)
    good.set_status(StatusCode.ERROR, "too late")
    for span in (error, good):
        span.end()
    spans = stored(tracer, reader)
    assert (spans["error"].status, spans["error"].status_message) == (2, "why")
    assert spans["error"].error_type == "_OTHER"
    assert (spans["good"].status, spans["good"].error_type) == (1, None)


def test_content_off_keeps_no_text_of_failures(store_path: Path, reader: SpanReader) -> None:
    tracer = Tracer(store_path, content="off", strict=True)
    with pytest.raises(ValueError), tracer.span(names.TURN, attributes={attr.TURN_MESSAGE: "hi"}):
        raise ValueError("secret")
    found = stored(tracer, reader)[names.TURN]
    assert attr.TURN_MESSAGE not in found.attributes
    assert "secret" not in str(found)
    tracer.shutdown()


def test_after_its_end_a_span_changes_no_more(tracer: Tracer, reader: SpanReader) -> None:
    span = tracer.start_span(names.TURN)
    span.end(end_time=span.start_ns + 5)
    span.set_attribute(attr.TURN_ROUTE, "skip")
    span.set_status(StatusCode.ERROR)
    span.add_event("late")
    span.update_name("other")
    span.save_provisional()
    span.end()
    assert tracer.flush(10)
    (found,) = reader.after(0)
    assert (found.name, found.duration_ns, found.attributes) == (names.TURN, 5, {})
    assert not span.is_recording()


@pytest.mark.parametrize("flush_between", [True, False])
def test_a_provisional_span_is_replaced_when_it_ends(
    tracer: Tracer, reader: SpanReader, flush_between: bool
) -> None:
    turn = tracer.start_span(names.TURN)
    for route in ("skip", "retrieve_only"):
        turn.set_attribute(attr.TURN_ROUTE, route)
        turn.save_provisional()
        if flush_between:
            assert tracer.flush(10)
            (found,) = reader.after(0)
            assert (found.end_ns, found.outcome) == (None, route)
    seen = reader.last_seq() if flush_between else 0
    tracer.start_span(names.CONTEXT, parent=turn).end()
    turn.set_attribute(attr.TURN_ROUTE, "store_only")
    turn.end()
    assert tracer.flush(10)
    spans = {span.name: span for span in reader.after(seen)}
    assert len(reader.after(0)) == len(spans) == 2
    assert spans[names.TURN].outcome == "store_only"
    assert spans[names.TURN].end_ns is not None


def test_the_first_end_wins(tracer: Tracer, reader: SpanReader) -> None:
    import copy

    span = tracer.start_span(names.TURN)
    twin = copy.copy(span)
    span.end(end_time=span.start_ns + 1)
    assert tracer.flush(10)
    twin.provisional = True
    twin.end(end_time=span.start_ns + 2)
    assert tracer.flush(10)
    (found,) = reader.after(0)
    assert found.duration_ns == 1


def test_links(tracer: Tracer, reader: SpanReader) -> None:
    first, second = tracer.start_span("a"), tracer.start_span("b")
    span = tracer.start_span(
        names.DELIVER,
        links=[
            first,
            second.get_span_context(),
            Link(first.get_span_context(), {attr.DELIVERY_ATTEMPT: 2}),
        ],
    )
    span.end()
    found = stored(tracer, reader)[names.DELIVER]
    assert [link.span_id for link in found.links] == [
        f"{one.span_id:016x}" for one in (first, second, first)
    ]
    assert found.links[2].attributes == {attr.DELIVERY_ATTEMPT: 2}


def test_traceparent_leads_back_to_the_span(tracer: Tracer, reader: SpanReader) -> None:
    span = tracer.start_span(names.WRITE, kind=SpanKind.PRODUCER)
    parent = tracer.remote_parent(span.traceparent)
    assert parent is not None
    assert parent.is_remote
    child = tracer.start_span(names.DELIVER, parent=parent)
    assert (child.trace_id, child.parent_id) == (span.trace_id, span.span_id)


@pytest.mark.parametrize(
    ("value", "known"),
    [
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", True),
        (" 00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-00 ", True),
        ("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes-later", True),
        ("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", False),
        ("00-00000000000000000000000000000000-b7ad6b7169203331-01", False),
        ("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", False),
        ("00-0af7-b7ad-01", False),
        ("", False),
        (None, False),
        ("\x00" * 500, False),
    ],
)
def test_traceparent_is_read_leniently(value: str | None, known: bool) -> None:
    assert (Tracer.remote_parent(value) is not None) is known


def test_another_plugins_current_span_is_joined(tracer: Tracer, reader: SpanReader) -> None:
    foreign = SpanContext(
        0xABC, 0xDEF, False, TraceFlags(0), TraceState([("vendor", "x"), ("b", "y")])
    )
    with trace.use_span(NonRecordingSpan(foreign)):
        turn = tracer.start_span(names.TURN)
    tracer.start_span(names.CONTEXT, parent=turn).end()
    turn.end()
    spans = stored(tracer, reader)
    assert spans[names.TURN].trace_id == f"{0xABC:032x}"
    assert spans[names.TURN].parent_id == f"{0xDEF:016x}"
    # Recorded although the other plugin does not sample, and said so to whom we call.
    assert spans[names.CONTEXT].flags == 0
    assert spans[names.CONTEXT].trace_state == "vendor=x,b=y"
    assert turn.traceparent.endswith("-00")


def test_the_api_can_use_our_spans(tracer: Tracer, reader: SpanReader) -> None:
    assert isinstance(tracer, trace.Tracer)
    with tracer.start_as_current_span("outer", attributes={attr.PLATFORM: "cli"}) as outer:
        assert trace.get_current_span() is outer
        inner = tracer.start_span("inner")
        with trace.use_span(inner, end_on_exit=True):
            tracer.start_span("innermost").end()
    assert not trace.get_current_span().get_span_context().is_valid
    apart = tracer.start_span("apart", context=trace.set_span_in_context(outer))
    apart.end()
    with (
        pytest.raises(RuntimeError),
        trace.use_span(tracer.start_span("failing"), end_on_exit=True),
    ):
        raise RuntimeError("x")
    spans = stored(tracer, reader)
    assert spans["inner"].parent_id == spans["outer"].span_id == spans["apart"].parent_id
    assert spans["innermost"].parent_id == spans["inner"].span_id
    assert spans["innermost"].platform == "cli"
    assert spans["failing"].failed
    assert spans["failing"].error_type == "_OTHER"
    assert spans["failing"].events[0].attributes[attr.EXCEPTION_TYPE] == "RuntimeError"


def test_the_global_provider_is_left_alone(tracer: Tracer) -> None:
    before = trace.get_tracer_provider()
    tracer.start_span("a").end()
    tracer.flush()
    assert trace.get_tracer_provider() is before


def _python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, **environment},
    )


def test_the_agents_process_loads_nothing_heavy(store_path: Path) -> None:
    done = _python(
        "import sys, pathlib\n"
        "from bdh_otel.tracer import Tracer\n"
        "tracer = Tracer(pathlib.Path(sys.argv[1]))\n"
        "tracer.start_span('a').end()\n"
        "assert tracer.flush(10)\n"
        "heavy = ('opentelemetry.sdk', 'grpc', 'google', 'textual', 'numpy', 'httpx', 'pydantic')\n"
        "print([name for name in heavy if name in sys.modules])",
        str(store_path),
        OTEL_SDK_DISABLED="true",
        OTEL_TRACES_SAMPLER="always_off",
    )
    assert done.stdout.strip() == "[]", done.stderr
    assert len(SpanReader(store_path).after(0)) == 1


def test_what_was_flushed_survives_os_exit(store_path: Path) -> None:
    done = _python(
        "import os, sys, pathlib\n"
        "from bdh_otel.tracer import Tracer\n"
        "tracer = Tracer(pathlib.Path(sys.argv[1]))\n"
        "turn = tracer.start_span('bdh.turn'); turn.save_provisional()\n"
        "for i in range(20): tracer.start_span('bdh.route', parent=turn).end()\n"
        "turn.end()\n"
        "ok = tracer.flush(10)\n"
        "tracer.start_span('never').end()\n"
        "os._exit(0 if ok else 1)",
        str(store_path),
    )
    assert done.returncode == 0, done.stderr
    spans = SpanReader(store_path).after(0)
    assert [span.name for span in spans].count("bdh.route") == 20
    assert [span.end_ns is None for span in spans if span.name == "bdh.turn"] == [False]


def test_an_ordinary_exit_flushes(store_path: Path) -> None:
    done = _python(
        "import sys, pathlib\n"
        "from bdh_otel.tracer import Tracer\n"
        "Tracer(pathlib.Path(sys.argv[1])).start_span('a').end()",
        str(store_path),
    )
    assert done.returncode == 0, done.stderr
    # Nobody holds the tracer any more at exit; its thread does.
    assert len(SpanReader(store_path).after(0)) == 1


def test_a_forked_child_writes_its_own_spans_only(store_path: Path) -> None:
    done = _python(
        "import os, sys, pathlib\n"
        "from bdh_otel.tracer import Tracer\n"
        "tracer = Tracer(pathlib.Path(sys.argv[1]))\n"
        "tracer.start_span('before').end()\n"
        "assert tracer.flush(10)\n"
        "tracer.start_span('queued').end()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    tracer.start_span('child').end()\n"
        "    os._exit(0 if tracer.flush(10) else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "tracer.start_span('parent').end()\n"
        "assert tracer.flush(10)",
        str(store_path),
    )
    assert done.returncode == 0, done.stderr
    spans = SpanReader(store_path).after(0)
    assert sorted(span.name for span in spans) == ["before", "child", "parent", "queued"]
    of = {span.name: span.resource for span in spans}
    assert of["child"] != of["parent"] == of["queued"] == of["before"]


def test_spans_are_typed(tracer: Tracer) -> None:
    span = tracer.start_span("a")
    assert isinstance(span, LocalSpan)
    assert span.get_span_context().is_valid
