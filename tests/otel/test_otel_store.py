"""The store and the way into it: several processes, bounds, and everything that can break."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bdh_otel import attributes as attr
from bdh_otel import database, names, writer
from bdh_otel.reader import SpanReader
from bdh_otel.store import SCHEMA, SpanStore
from bdh_otel.tracer import LocalSpan, Tracer
from tests.support.waiting import DEADLINE, eventually


def test_files_are_the_owners_alone(tracer: Tracer, store_path: Path) -> None:
    tracer.start_span("a").end()
    assert tracer.flush(10)
    assert stat.S_IMODE(store_path.parent.stat().st_mode) == 0o700
    for file in store_path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_without_a_flush_spans_are_committed_in_the_background(
    tracer: Tracer, reader: SpanReader
) -> None:
    def stored() -> list[str]:
        try:
            return [span.name for span in reader.after(0)]
        except FileNotFoundError:
            return []

    tracer.start_span("a").end()
    eventually(lambda: stored() == ["a"])
    tracer.start_span("b").end()
    eventually(lambda: stored() == ["a", "b"])


def test_a_tracer_that_made_no_span_makes_no_file(store_path: Path) -> None:
    tracer = Tracer(store_path)
    assert tracer.flush()
    assert tracer.shutdown()
    assert not store_path.parent.exists()


def test_shutdown_ends_the_thread_and_a_later_span_starts_anew(
    tracer: Tracer, reader: SpanReader
) -> None:
    tracer.start_span("a").end()
    assert tracer.shutdown(10)
    tracer.start_span("b").end()
    eventually(lambda: [span.name for span in reader.after(0)] == ["a", "b"])


_WRITER = """
import sys, pathlib
from bdh_otel.tracer import Tracer
tracer = Tracer(pathlib.Path(sys.argv[1]))
print('ready', flush=True); sys.stdin.readline()
for turn in range(40):
    root = tracer.start_span('bdh.turn', attributes={'gen_ai.conversation.id': sys.argv[2]})
    root.save_provisional()
    for _ in range(10):
        tracer.start_span('bdh.route', parent=root).end()
    root.end()
    while not tracer.flush(5): pass
"""


def test_processes_write_and_read_at_once(store_path: Path, reader: SpanReader) -> None:
    """A reader that remembers the last number sees every span, each in its last state."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(store_path), f"s{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        seen = 0
        followed: dict[str, int | None] = {}
        end = time.monotonic() + DEADLINE
        while True:
            running = any(process.poll() is None for process in processes)
            try:
                fresh = reader.after(seen)
            except FileNotFoundError:
                fresh = []
            for span in fresh:
                assert span.seq > seen
                seen = span.seq
                followed[span.span_id] = span.end_ns
            if not running and not fresh:
                break
            assert time.monotonic() < end
        assert [process.returncode for process in processes] == [0, 0, 0]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert len(followed) == 3 * 40 * 11
    assert None not in followed.values()
    assert reader.status().spans == len(followed)
    assert reader.status().dropped == 0
    assert len(reader.resources()) == 3


def test_a_full_queue_drops_and_the_loss_is_on_record(
    store_path: Path, reader: SpanReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "QUEUE_LIMIT", 100)
    store_path.parent.mkdir(mode=0o700)
    store_path.mkdir()  # a directory in the file's place: it can't be opened
    tracer = Tracer(store_path, strict=True)
    for _ in range(130):
        tracer.start_span("a").end()
    assert not tracer.flush(0.1)
    assert tracer.dropped == 30
    store_path.rmdir()
    eventually(lambda: tracer.dropped == 0)
    status = reader.status()
    assert (status.spans, status.dropped) == (100, 30)
    tracer.shutdown()


def test_a_span_that_sqlite_refuses_holds_up_no_other(tracer: Tracer, reader: SpanReader) -> None:
    tracer.start_span("before").end()
    tracer.start_span("poison").end(end_time=1 << 70)
    tracer.start_span("half \ud800 surrogate").end()
    assert tracer.flush(10)
    assert [span.name for span in reader.after(0)] == ["before", "half ? surrogate"]
    assert reader.status().dropped == 1


def test_many_threads_lose_nothing(tracer: Tracer, reader: SpanReader) -> None:
    def work() -> None:
        for _ in range(50):
            with tracer.span(names.TURN) as turn:
                turn.save_provisional()
                tracer.start_span(names.ROUTE, parent=turn).end()
            tracer.flush(0.01)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: tracer.flush(1))
    spans = reader.after(0, limit=10_000)
    assert len(spans) == 8 * 50 * 2
    assert not [span for span in spans if span.end_ns is None]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_costs_nothing_but_the_spans(store_path: Path) -> None:
    store_path.parent.mkdir(mode=0o500)
    tracer = Tracer(store_path)
    tracer.start_span("a").end()
    assert not tracer.flush(0.1)
    tracer.shutdown()


@pytest.mark.parametrize("kind", ["loose", "foreign", "newer"])
def test_a_store_that_is_not_ours_to_write_is_left_alone_with_one_warning(
    kind: str, store_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    SpanStore(store_path).close()
    if kind == "loose":
        store_path.chmod(0o644)
    else:
        connection = sqlite3.connect(store_path)
        connection.execute(f"PRAGMA {'user_version=99' if kind == 'newer' else 'application_id=7'}")
        connection.close()
    before = store_path.read_bytes()
    tracer = Tracer(store_path)
    with caplog.at_level(logging.WARNING):
        tracer.start_span("a").end()
        assert not tracer.flush(0.1)
        tracer.start_span("b").end()
        assert not tracer.flush(0.1)
        assert not tracer.shutdown(0.1)
    assert [
        record.getMessage() for record in caplog.records if str(store_path) in record.getMessage()
    ]
    assert len(caplog.records) == 1
    assert store_path.read_bytes() == before


@pytest.mark.parametrize("open_before", [False, True])
def test_a_damaged_store_is_set_aside_and_a_new_one_started(
    store_path: Path, reader: SpanReader, caplog: pytest.LogCaptureFixture, open_before: bool
) -> None:
    tracer = Tracer(store_path, strict=True)
    for _ in range(2_000):
        tracer.start_span(names.ROUTE).end()
    assert tracer.flush(30)
    if not open_before:
        tracer.shutdown()
    # Another process's write makes the tracer's connection forget the pages that it holds.
    other = SpanStore(store_path)
    other.connection.execute("INSERT INTO cursors (endpoint, seq) VALUES ('x', 0)")
    move_log = "PRAGMA wal_checkpoint(TRUNCATE)"
    eventually(lambda: other.connection.execute(move_log).fetchone()[0] == 0)
    other.close()
    with store_path.open("r+b") as file:
        # The first page whole, as after a torn write; or nothing at all that SQLite knows.
        file.seek(4_096 if open_before else 0)
        file.write(b"\xff" * (store_path.stat().st_size - file.tell()))
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            tracer.start_span("after").end()
        eventually(lambda: tracer.flush(1))
    eventually(lambda: len(reader.after(0)) == 50)
    assert [*store_path.parent.glob("*.corrupt-*")]
    assert len([r for r in caplog.records if "damaged" in r.getMessage()]) == 1
    tracer.shutdown()


def test_two_processes_that_find_the_damage_move_the_file_once(store_path: Path) -> None:
    SpanStore(store_path).close()
    inode = store_path.stat().st_ino
    moved = writer.set_aside_once(store_path, inode)
    assert moved is not None
    SpanStore(store_path).close()
    assert writer.set_aside_once(store_path, inode) is None
    assert store_path.exists()


def test_a_deleted_store_is_made_again(
    tracer: Tracer, reader: SpanReader, store_path: Path
) -> None:
    tracer.start_span("a").end()
    assert tracer.flush(10)
    assert len(reader.after(0)) == 1
    for file in store_path.parent.iterdir():
        file.unlink()
    with pytest.raises(FileNotFoundError):
        reader.after(0)
    tracer.start_span("b").end()
    assert tracer.flush(10)
    assert [span.name for span in reader.after(0)] == ["b"]


def test_a_locked_store_holds_up_a_flush_within_its_bound_and_loses_nothing(
    tracer: Tracer, reader: SpanReader, store_path: Path
) -> None:
    tracer.start_span("a").end()
    assert tracer.flush(10)
    holder = sqlite3.connect(store_path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    for _ in range(5):
        tracer.start_span("b").end()
        assert not tracer.flush(0.05)
    holder.execute("COMMIT")
    holder.close()
    eventually(lambda: len(reader.after(0)) == 6)


def test_the_resource_describes_the_process(tracer: Tracer, reader: SpanReader) -> None:
    tracer.start_span("a").end()
    assert tracer.flush(10)
    ((_, resource),) = reader.resources().items()
    assert resource["service.name"] == "hermes-bdh-bridge"
    assert resource["service.version"] == "1.2.3"
    assert resource["process.pid"] == os.getpid()
    assert resource["host.name"]
    assert len(resource["service.instance.id"]) == 36


def test_reading_turns_traces_and_counts(
    tracer: Tracer, reader: SpanReader, conversation: Callable[..., LocalSpan]
) -> None:
    roots = [conversation("s-1", "t-1"), conversation("s-2", "t-2"), conversation("s-1", "t-3")]
    turns = reader.turns()
    assert [turn.root.turn for turn in turns] == ["t-3", "t-2", "t-1"]
    assert (turns[0].spans, turns[0].skips, turns[0].failures) == (9, 1, 1)
    assert [turn.root.turn for turn in reader.turns(session="s-1")] == ["t-3", "t-1"]
    assert [t.root.turn for t in reader.turns(1, before=turns[0].root)] == ["t-2"]
    trace_id = f"{roots[1].trace_id:032x}"
    trace = reader.trace(trace_id)
    assert trace[0].name == names.TURN
    assert len(trace) == 9
    assert {span.session for span in trace} == {"s-2"}
    assert reader.find_traces(trace_id[:20]) == [trace_id]
    assert reader.find_traces(trace[3].span_id.upper()) == [trace_id]
    assert reader.find_traces("xyz") == []
    assert len(reader.find_traces("")) == 3
    assert len(reader.after(0, session="s-1")) == 18
    counted = {(c.type, c.gate, c.outcome, c.reason): c.count for c in reader.counts(0)}
    assert counted["bdh.gate", "answer", "skip", "short_answer"] == 3
    assert counted["retrieval", None, "ok", None] == 3
    assert counted["chat", None, "timeout", None] == 3
    assert reader.counts(0, until_ns=1) == []
    assert reader.trace("0" * 32) == []


@pytest.mark.parametrize(
    ("sql", "index"),
    [
        ("trace_id = 'x'", "spans_place"),
        ("trace_id = 'x' AND span_id = 'y'", "spans_place"),
        ("name = 'bdh.turn' ORDER BY start_ns DESC LIMIT 9", "spans_name"),
        ("session = 'x' ORDER BY start_ns", "spans_session"),
        ("gate = 'x' AND decision = 'skip' AND start_ns > 5", "spans_skips"),
        ("start_ns BETWEEN 5 AND 6", "spans_start"),
        ("end_ns IS NULL ORDER BY start_ns", "spans_open"),
    ],
)
def test_questions_are_answered_from_an_index(sql: str, index: str, store_path: Path) -> None:
    store = SpanStore(store_path)
    plan = store.connection.execute(f"EXPLAIN QUERY PLAN SELECT * FROM spans WHERE {sql}")
    described = " ".join(row["detail"] for row in plan)
    assert index in described
    assert "TEMP B-TREE" not in described
    store.close()


def test_a_store_of_the_first_schema_is_migrated_with_its_spans(
    store_path: Path, reader: SpanReader, conversation: Callable[..., LocalSpan]
) -> None:
    first = database.Schema("span store", SCHEMA.application_id, SCHEMA.migrations[:1])
    database.connect(store_path, first).close()
    old = sqlite3.connect(store_path)
    old.execute(
        "INSERT INTO spans (trace_id, span_id, flags, name, kind, start_ns, end_ns, status,"
        " attributes, resource) VALUES ('a', 'b', 1, 'old', 0, 1, 2, 0, '{}', 1)"
    )
    old.commit()
    turn = conversation()  # another process, of the new version
    assert [span.name for span in reader.trace("a")] == ["old"]
    assert len(reader.trace(f"{turn.trace_id:032x}")) == 9
    # What was open meanwhile can still write.
    old.execute("UPDATE spans SET name = 'older' WHERE span_id = 'b'")
    old.commit()
    old.close()
    assert [span.name for span in reader.trace("a")] == ["older"]
    assert len(reader.find_traces("b")) >= 1


def test_a_flush_stores_also_what_a_failed_batch_put_back_over_the_limit(
    tracer: Tracer, reader: SpanReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracer._writer, "_start_thread", lambda: None)  # nobody else stores them
    for _ in range(writer.QUEUE_LIMIT):
        tracer.start_span(names.ROUTE).end()
    tracer._writer._queue.extendleft([tracer._writer._queue[0]] * writer.BATCH)
    assert tracer.flush(30)
    assert tracer._writer.waiting == 0
    assert reader.status().spans == writer.QUEUE_LIMIT


def test_a_full_disk_costs_spans_and_no_time_and_the_loss_is_on_record(
    tracer: Tracer, reader: SpanReader, caplog: pytest.LogCaptureFixture
) -> None:
    tracer.start_span(names.ROUTE).end()
    assert tracer.flush(10)
    store = tracer._writer._store
    assert store is not None
    pages = store.connection.execute("PRAGMA page_count").fetchone()[0]

    def opened(wait: float) -> SpanStore | None:
        """The store as on a full disk: SQLite itself says that there is no room."""
        store = open_store(wait)
        if store is not None:
            store.connection.execute(f"PRAGMA max_page_count={pages + 4}")
        return store

    open_store = tracer._writer._open
    tracer._writer._open = opened  # type: ignore[method-assign]
    text = {attr.TURN_MESSAGE: "x" * 3_000}
    with caplog.at_level(logging.WARNING):
        for _ in range(writer.QUEUE_LIMIT + 3_000):
            tracer.start_span(names.TURN, attributes=text).end()
        assert not tracer.flush(0.05)
    assert tracer.dropped > 0
    eventually(lambda: "database or disk is full; free some disk space" in caplog.text)
    # Somebody made room.
    tracer._writer._open = open_store  # type: ignore[method-assign]
    store = tracer._writer._store
    if store is not None:
        store.connection.execute("PRAGMA max_page_count=1000000")
    eventually(lambda: tracer.flush(1.0))
    status = reader.status()
    assert status.dropped > 0
    assert caplog.text.count("disk is full") == 1, "one warning for one trouble"
    assert status.spans + status.dropped == writer.QUEUE_LIMIT + 3_001
