"""``bdh-bridge spans`` as an operator runs it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from bdh_bridge.cli import main
from bdh_otel import attributes as attr
from bdh_otel import lane, names
from bdh_otel.reader import SpanReader, StoredSpan
from bdh_otel.tracer import LocalSpan, Tracer
from tests.support.otlp_receiver import HttpReceiver

Conversation = Callable[..., LocalSpan]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    return tmp_path


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(home: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: str) -> tuple[int, str, str]:
        status = main(["--home", str(home), "spans", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return command


def test_tail_shows_the_latest_turns_oldest_first(run: Run, conversation: Conversation) -> None:
    for number in range(4):
        conversation(turn_id=f"t-{number}", session=f"s-{number}")
    status, out, err = run("tail", "-n", "2")
    assert (status, err) == (0, "")
    assert out.index("session s-2") < out.index("session s-3")
    assert "session s-1" not in out
    assert out.count("✗ write answer        short_answer  140 < 200 characters") == 2
    assert "\x1b" not in out


def test_tail_of_one_session(run: Run, conversation: Conversation) -> None:
    conversation(session="mine")
    conversation(session="yours")
    _, out, _ = run("tail", "--session", "mine")
    assert "session mine" in out
    assert "session yours" not in out
    status, out, err = run("tail", "--session", "nobody's")
    assert (status, out, err) == (0, "", "No turns on record yet for this session.\n")


def test_json_has_the_documented_shape(run: Run, conversation: Conversation) -> None:
    conversation()
    status, out, _ = run("tail", "--json")
    assert status == 0
    assert out.isascii()
    spans = [json.loads(line) for line in out.splitlines()]
    assert len(spans) == 9
    assert set(spans[0]) == {field.name for field in fields(StoredSpan)} | {"duration_ns"}
    turn = spans[0]
    assert (turn["name"], turn["kind"], turn["status"]) == ("bdh.turn", "internal", "unset")
    chat = next(span for span in spans if span["name"] == "chat router-model")
    assert (chat["kind"], chat["status"], chat["error_type"]) == ("client", "error", "timeout")
    assert chat["duration_ns"] == chat["end_ns"] - chat["start_ns"]


def test_a_trace_by_the_start_of_an_id(run: Run, conversation: Conversation) -> None:
    root = conversation()
    other = conversation(session="s-2")
    trace_id = f"{root.trace_id:032x}"
    for prefix in (trace_id, trace_id[:12], trace_id[:12].upper(), f"{root.span_id:016x}"):
        status, out, _ = run("trace", prefix)
        assert status == 0
        assert f"trace {trace_id[:8]}" in out
        assert out.count("bdh.turn") == 1
    status, out, _ = run("trace", "last", "--json")
    assert json.loads(out.splitlines()[0])["trace_id"] == f"{other.trace_id:032x}"


def test_an_ambiguous_or_unknown_id_is_explained(run: Run, tracer: Tracer) -> None:
    for last in (1, 2):
        parent = tracer.remote_parent(f"00-{'ab' * 15}0{last}-b7ad6b7169203331-01")
        tracer.start_span(names.TURN, parent=parent).end()
    assert tracer.flush(10)
    status, _, err = run("trace", "abab")
    assert status == 2
    assert "ambiguous" in err
    assert f"{'ab' * 15}01" in err
    status, _, err = run("trace", "\x1b[31mxyz")
    assert (status, err) == (2, "error: no trace or span starts with ␛[31mxyz\n")


def test_a_store_that_is_not_there(run: Run, store_path: Path) -> None:
    status, out, err = run("tail")
    assert (status, out) == (0, "")
    assert err == f"No spans yet: {store_path} appears with the first turn.\n"
    status, _, err = run("trace", "abc")
    assert status == 2
    assert "no spans yet" in err
    assert not store_path.parent.exists()


@pytest.mark.parametrize(
    ("content", "reason"), [(b"\xff" * 8_192, "damaged"), (b"", "No spans yet")]
)
def test_a_store_that_is_damaged_or_empty(
    run: Run, store_path: Path, content: bytes, reason: str
) -> None:
    store_path.parent.mkdir(mode=0o700)
    store_path.touch(mode=0o600)
    store_path.write_bytes(content)
    _, out, err = run("tail")
    assert out == ""
    assert reason in err
    assert "Traceback" not in err
    assert store_path.read_bytes() == content


def test_check_tells_what_is_there_and_whether_it_is_intact(
    run: Run, conversation: Conversation, tracer: Tracer, store_path: Path
) -> None:
    assert run("check")[0] == 2
    conversation()
    status, out, _ = run("check")
    assert status == 0
    assert "9 spans, 0 of them open, 0 lost" in out
    assert "no damage found" in out
    tracer.shutdown()
    with contextlib.closing(sqlite3.connect(store_path)) as store:
        root = store.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'spans_place'"
        ).fetchone()[0]
        size = store.execute("PRAGMA page_size").fetchone()[0]
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with store_path.open("r+b") as file:  # an index that has lost its entries
        file.seek((root - 1) * size)
        file.write(b"\x0a" + bytes(4) + size.to_bytes(2, "big") + bytes(size - 7))
    status, out, _ = run("check")
    assert status == 1
    assert "damage: " in out


def test_json_lines_since(run: Run, tracer: Tracer, tmp_path: Path) -> None:
    old = int((time.time() - 7_200) * 1e9)
    tracer.start_span("old", start_time=old).end(end_time=old + 1)
    tracer.start_span("young").end()
    tracer.start_span("open").save_provisional()
    assert tracer.flush(10)
    for since, expected in ((["--since", "1h"], ["young"]), ([], ["old", "young"])):
        status, out, err = run("export", *since)
        assert status == 0
        found = [
            span["name"]
            for line in out.splitlines()
            for resource in json.loads(line)["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]
        assert found == expected
        assert f"{len(expected)} spans written" in err
    target = tmp_path / "spans.jsonl"
    assert run("export", "-o", str(target))[0] == 0
    assert target.stat().st_mode & 0o777 == 0o600
    status, _, err = run("export", "-o", str(target))
    assert status == 2, "nothing is overwritten"
    assert "File exists" in err
    today = time.strftime("%Y-%m-%d")
    assert run("export", "--since", today)[0] == 0
    with pytest.raises(SystemExit):
        run("export", "--since", "yesterday or so")


def test_metrics_are_shown(run: Run, conversation: Conversation) -> None:
    conversation()
    status, out, _ = run("metrics")
    assert status == 0
    assert "bdh.spans.stored  9" in out.splitlines()
    (score,) = [line for line in out.splitlines() if line.startswith("bdh.retrieval.hybrid_top")]
    assert "count 1  mean 0.806  max 0.806" in score
    assert any("bdh.gate.reason=short_answer" in line for line in out.splitlines())
    status, out, _ = run("metrics", "--json")
    series = [json.loads(line) for line in out.splitlines()]
    (stored,) = [one for one in series if one["name"] == "bdh.spans.stored"]
    assert (stored["kind"], stored["value"], stored["attributes"]) == ("counter", 9, {})


def test_a_store_of_a_newer_version(run: Run, tracer: Tracer, store_path: Path) -> None:
    import sqlite3

    tracer.start_span("a").end()
    assert tracer.flush(10)
    connection = sqlite3.connect(store_path)
    connection.execute("PRAGMA user_version=99")
    connection.close()
    status, _, err = run("tail")
    assert status == 2
    assert "newer" in err
    assert "upgrade" in err


def test_lost_spans_are_told(run: Run, conversation: Conversation, store_path: Path) -> None:
    from bdh_otel.store import SpanStore

    conversation()
    store = SpanStore(store_path)
    assert store.insert([], 1, dropped=1_200)
    store.close()
    status, out, err = run("tail")
    assert (status, err) == (0, "1,200 spans were lost while the store could not be written.\n")
    assert "bdh.turn" in out


class Follower:
    """``spans tail --follow`` as a process of its own; its output as it comes."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.text = ""
        self._process = subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-c",
                    "from bdh_bridge.cli import main; raise SystemExit(main())",
                ),
                *("--home", str(home), "spans", "tail", "--follow", *arguments),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.text += line

    def until(self, text: str) -> None:
        end = time.monotonic() + 60
        while text not in self.text:
            assert time.monotonic() < end, f"{text!r} never came:\n{self.text}"
            assert self._process.poll() is None, self.text
            time.sleep(0.02)

    def stop(self) -> int:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(60)
        self._thread.join(60)
        return self._process.returncode

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()


@pytest.fixture
def follow(home: Path) -> Iterator[Callable[..., Follower]]:
    started: list[Follower] = []

    def start(*arguments: str) -> Follower:
        started.append(Follower(home, *arguments))
        return started[-1]

    yield start
    for follower in started:
        follower.kill()


def test_follow_shows_a_turn_when_it_ends_and_a_late_delivery_after_it(
    follow: Callable[..., Follower], tracer: Tracer
) -> None:
    follower = follow()
    follower.until("No spans yet")
    turn = tracer.start_span(names.TURN, attributes={attr.CONVERSATION_ID: "s-live"})
    turn.save_provisional()
    with tracer.span(names.WRITE, parent=turn) as write:
        write.set_attribute(attr.WRITE_OUTCOME, "queued")
    assert tracer.flush(10)
    turn.end()
    assert tracer.flush(10)
    follower.until("└─ • bdh.write  queued")
    assert follower.text.count("bdh.turn") == 1
    late = tracer.remote_parent(write.traceparent)
    with tracer.span(names.DELIVER, parent=late) as delivery:
        delivery.set_attribute(attr.DELIVERY_OUTCOME, "delivered")
    assert tracer.flush(10)
    follower.until("• bdh.deliver  delivered")
    assert "later in trace" in follower.text
    # A trace without a turn is shown as well, once it is quiet.
    tracer.start_span(names.SYNTHESIS).end()
    assert tracer.flush(10)
    follower.until("• bdh.synthesis")
    assert follower.stop() == 130
    assert "Traceback" not in follower.text
    for shown_once in ("bdh.turn", "bdh.write", "bdh.deliver", "bdh.synthesis"):
        assert follower.text.count(shown_once) == 1


def test_follow_as_json_shows_open_spans_too(
    follow: Callable[..., Follower], tracer: Tracer, conversation: Conversation
) -> None:
    conversation()
    follower = follow("--json")
    follower.until('"name": "bdh.turn"')
    turn = tracer.start_span(names.TURN, attributes={attr.TURN_ID: "t-open"})
    turn.save_provisional()
    assert tracer.flush(10)
    follower.until('"t-open"')
    turn.end()
    assert tracer.flush(10)
    end = time.monotonic() + 60
    while follower.text.count('"turn": "t-open"') < 2:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert follower.stop() == 130
    spans = [json.loads(line) for line in follower.text.splitlines()]
    assert len(spans) == 9 + 2
    assert [span["end_ns"] is None for span in spans[-2:]] == [True, False]


def test_push_sends_what_waits(
    run: Run, conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation()
    status, _, err = run("push")
    assert status == 2
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in err
    receiver = HttpReceiver()
    try:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        assert run("push") == (0, f"9 spans sent to {receiver.url}/v1/traces\n", "")
        assert len(receiver.spans) == 9
        assert b"Why did we choose" not in b"".join(receiver.raw)
        conversation()
        receiver.answers = [(503, {}, b"")]
        status, out, err = run("push")
        assert status == 1
        assert "0 spans sent" in out
        assert "9 spans wait" in err
    finally:
        receiver.close()


def test_push_goes_on_with_one_endpoint_where_another_is_dead(
    run: Run, tracer: Tracer, monkeypatch: pytest.MonkeyPatch, http: HttpReceiver
) -> None:
    for _ in range(30):
        tracer.start_span(names.ROUTE).end()
    assert tracer.flush(10)
    monkeypatch.setattr(lane, "BATCH", 5)
    monkeypatch.setenv("BDH_OTEL_ENDPOINTS", f"http://127.0.0.1:9 {http.url}")
    status, out, err = run("push")
    assert status == 1
    assert len(http.spans) == 30
    assert "30 spans sent\n" in out
    assert "30 spans wait" in err


def test_push_sends_content_only_if_asked_twice(
    run: Run, conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = HttpReceiver()
    try:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        for once in (
            {"BDH_OTEL_EXPORT_CONTENT": "true"},
            {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"},
        ):
            with monkeypatch.context() as patch:
                for name, value in once.items():
                    patch.setenv(name, value)
                conversation()
                assert run("push")[0] == 0
        assert b"Why did we choose" not in b"".join(receiver.raw)
        monkeypatch.setenv("BDH_OTEL_EXPORT_CONTENT", "true")
        monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
        conversation()
        assert run("push")[0] == 0
        assert b"Why did we choose" in receiver.raw[-1]
    finally:
        receiver.close()


def test_reader_finds_a_new_file_in_place_of_the_old(
    tracer: Tracer, reader: SpanReader, store_path: Path
) -> None:
    tracer.start_span("a").end()
    assert tracer.flush(10)
    assert reader.last_seq() == 1
    for file in list(store_path.parent.iterdir()):
        file.rename(file.with_name(f"old-{file.name}"))
    tracer.start_span("b").end()
    assert tracer.flush(10)
    assert [span.name for span in reader.after(0)] == ["b"]
