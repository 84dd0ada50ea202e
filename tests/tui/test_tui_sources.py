"""Spans from elsewhere: OTLP, Jaeger, Tempo, files."""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from bdh_bridge.paths import BridgePaths
from bdh_otel.export import Exporter
from bdh_otel.reader import SpanReader, StoredSpan
from bdh_tui.history import History
from bdh_tui.sources import LocalSource, Source, SourceError
from bdh_tui.sources.choose import choose
from bdh_tui.sources.feed import FeedSource
from bdh_tui.sources.file import FileSource
from bdh_tui.sources.otlp import OtlpSource
from bdh_tui.sources.polling import JaegerSource, TempoSource
from bdh_tui.sources.wire import from_jaeger, from_otlp_json, from_stored_json
from tests.tui import scenes
from tests.tui.conftest import PATIENCE, Drive
from tests.tui.shapes import JAEGER_TRACE, OTLP_JSON, TEMPO_TRACE, jaeger, line


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def stored(path: Path) -> list[StoredSpan]:
    reader = SpanReader(path)
    try:
        return reader.after(0, 100_000)
    finally:
        reader.close()


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[StoredSpan]]:
    """A store with 12 turns, and what is in it."""
    path = BridgePaths(tmp_path_factory.mktemp("spans")).spans
    scenes.play(path, 12, over_seconds=60)
    return path, stored(path)


def _free_pair() -> int:
    """A port that is free together with the one below it."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as one:
            port = int(one.getsockname()[1])
            try:
                with socket.create_server(("127.0.0.1", port - 1)):
                    return port
            except OSError:
                continue


@pytest.fixture
def otlp() -> Iterator[OtlpSource]:
    source = OtlpSource("127.0.0.1", _free_pair())
    source.start()
    yield source
    source.stop()


# OTLP


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_what_the_worker_exports_arrives_whole_without_content(
    otlp: OtlpSource, spans: tuple[Path, list[StoredSpan]], protocol: str, tmp_path: Path
) -> None:
    import shutil

    path = Path(shutil.copy(spans[0], tmp_path / "spans.sqlite3"))
    port = otlp.port - (protocol == "grpc")
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
    }
    exporter = Exporter(path, environment)
    sent = exporter.run_once(time.monotonic() + 30, force=True).sent
    exporter.close()
    assert sent == len(spans[1])
    got = {span.span_id: span for span in stored(otlp.store)}
    assert set(got) == {span.span_id for span in spans[1]}
    for span in spans[1]:
        other = got[span.span_id]
        same = ("trace_id", "parent_id", "name", "kind", "start_ns", "end_ns", "status", "gate",
                "decision", "reason", "outcome", "session", "platform")  # fmt: skip
        assert [getattr(other, one) for one in same] == [getattr(span, one) for one in same]
    history = History(otlp.store)
    turns = history.page(100)
    assert len(turns) == 12
    assert not any(turn.message for turn in turns), "content stays where it was"
    history.close()


def test_otlp_as_json_and_gzip_are_taken_and_nonsense_is_refused(otlp: OtlpSource) -> None:
    url = f"http://127.0.0.1:{otlp.port}/v1/traces"
    json_headers = {"Content-Type": "application/json"}
    body = json.dumps(OTLP_JSON).encode()
    packed = {**json_headers, "Content-Encoding": "gzip"}
    with httpx.Client(trust_env=False) as http:
        assert http.post(url, content=gzip.compress(body), headers=packed).status_code == 200
        assert http.post(url, content=b"{", headers=json_headers).status_code == 400
        assert http.post(url, content=b"\xff\xff").status_code == 400
        assert http.post(url, content=b"x", headers=packed).status_code == 400
        assert http.post(f"{url}/other", content=b"").status_code == 404
        metrics = f"http://127.0.0.1:{otlp.port}/v1/metrics"
        assert http.post(metrics, content=b"").status_code == 200
        bomb = gzip.compress(b"0" * (40 << 20))
        assert http.post(url, content=bomb, headers=packed).status_code == 413
    assert [span.name for span in stored(otlp.store)] == ["bdh.turn"]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"[" * 100_000, {}),
        (b'{"resourceSpans": ' + b"9" * 10_000 + b"}", {}),
        (b"{}", {"Content-Length": "-5"}),
        (b"{}", {"Content-Length": "99999999999"}),
        (gzip.compress(b"{}")[:-4], {"Content-Encoding": "gzip"}),
        (gzip.compress(b" " * (33 << 20)), {"Content-Encoding": "gzip"}),
    ],
    ids=["deep", "a number too long", "negative length", "huge", "cut off", "a bomb"],
)
def test_what_is_refused_gets_an_answer_and_the_next_request_is_served(
    otlp: OtlpSource, body: bytes, headers: dict[str, str]
) -> None:
    head = {"Content-Length": str(len(body)), "Content-Type": "application/json", **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    with socket.create_connection(("127.0.0.1", otlp.port), timeout=PATIENCE) as client:
        client.sendall(f"POST /v1/traces HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode() + body)
        assert client.recv(1_000).startswith(b"HTTP/1.1 4")  # while the client still listens
    address = f"http://127.0.0.1:{otlp.port}/v1/traces"
    assert httpx.post(address, json=OTLP_JSON, trust_env=False).status_code == 200
    assert stored(otlp.store)


def test_a_taken_port_is_one_clear_sentence() -> None:
    port = _free_pair()
    told = pytest.raises(SourceError, match=f"can't listen on 127.0.0.1:{port}")
    with socket.create_server(("127.0.0.1", port)), told:
        OtlpSource("127.0.0.1", port).start()


def test_the_private_store_is_gone_afterwards(otlp: OtlpSource) -> None:
    directory = otlp.store.parent
    assert directory.stat().st_mode & 0o777 == 0o700
    otlp.stop()
    assert not directory.exists()


async def test_a_remote_hermes_is_watched_and_what_it_lacks_is_hidden(
    otlp: OtlpSource, empty_home: Path, drive: Drive
) -> None:
    async with drive(empty_home, source=otlp) as ui:
        await ui.sees("otlp 127.0.0.1", "read-only")
        assert "Blacklist" not in ui.screen.splitlines()[0]
        assert "Outbox" not in ui.screen.splitlines()[0]
        async with httpx.AsyncClient(trust_env=False) as http:
            await http.post(
                f"http://127.0.0.1:{otlp.port}/v1/traces",
                content=json.dumps(OTLP_JSON).encode(),
                headers={"Content-Type": "application/json"},
            )
        await ui.sees("(message not kept)")
        assert "Blacklist" not in ui.screen, "nothing here can be blacklisted"
        await ui.press("6")
        await ui.sees("belongs to a Hermes home")


# Files


def test_a_file_is_followed_through_half_lines_and_rotation(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_bytes(line("aa") + b"not json\n\n" + line("bb")[:40])
    source = FileSource(path)
    source.start()
    try:
        until(lambda: len(stored(source.store)) == 1)
        assert (source.unreadable, source.trouble) == (1, "")
        with path.open("ab") as file:
            file.write(line("bb")[40:])
        until(lambda: len(stored(source.store)) == 2)
        path.rename(tmp_path / "spans.1.jsonl")
        path.write_bytes(line("cc"))
        until(lambda: len(stored(source.store)) == 3)
        path.write_bytes(line("d"))  # cut and written anew
        until(lambda: len(stored(source.store)) == 4)
    finally:
        source.stop()


# Jaeger and Tempo: a server with their API, fed with shapes as they answer


def followed(path: Path) -> FileSource:
    source = FileSource(path)
    source.start()
    return source


def test_a_last_line_without_an_end_is_read_once_it_stands_still(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_bytes(line("aa") + line("bb").rstrip())
    source = followed(path)
    try:
        until(lambda: len(stored(source.store)) == 2)
        with path.open("ab") as file:
            file.write(b"\n" + line("cc"))
        until(lambda: len(stored(source.store)) == 3)
        assert source.unreadable == 0
    finally:
        source.stop()


def test_a_line_without_end_is_counted_and_what_follows_is_read(tmp_path: Path) -> None:
    """Such as a sparse file of a gigabyte: it is passed over and not held in memory."""
    path = tmp_path / "spans.jsonl"
    with path.open("wb") as file:
        file.truncate(100 << 20)
        file.seek(0, 2)
        file.write(b"\n\xff\xfe binary\n" + b"[" * 100_000 + b"\n" + line("aa"))
    source = followed(path)
    try:
        until(lambda: stored(source.store))
        assert source.unreadable == 3
        assert not source.trouble
    finally:
        source.stop()


def test_a_file_that_goes_away_is_told_and_taken_up_again(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_bytes(line("aa"))
    source = followed(path)
    try:
        until(lambda: stored(source.store))
        path.unlink()
        until(lambda: "is gone" in source.trouble)
        path.write_bytes(b"\n" * 2_000 + line("bb"))
        until(lambda: len(stored(source.store)) == 2 and not source.trouble)
    finally:
        source.stop()


class Api:
    """``answers``: path without its query → function of the query's fields."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[dict[str, str]], Any]] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                fields = {key: values[0] for key, values in parse_qs(parts.query).items()}
                api.asked.append((parts.path, fields))
                found = next(
                    (make for path, make in api.answers.items() if parts.path.startswith(path)),
                    None,
                )
                body = json.dumps(found(fields) if found else {}).encode()
                self.send_response(200 if found else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api()
    yield api
    api.close()


def _run(source: FeedSource, ready: Callable[[], Any]) -> list[StoredSpan]:
    source.start()
    try:
        until(ready)
        return stored(source.store)
    finally:
        source.stop()


def test_jaeger_is_polled_and_its_spans_are_ours_again(api: Api) -> None:
    api.answers["/api/traces"] = lambda fields: {"data": [JAEGER_TRACE]}
    source = JaegerSource(api.url)
    got = _run(source, lambda: len(stored(source.store)) == 2)
    root, gate = sorted(got, key=lambda span: span.start_ns)
    assert (root.name, root.parent_id, root.platform) == ("bdh.turn", None, "cli")
    assert (gate.parent_id, gate.decision, gate.reason) == (root.span_id, "skip", "casual")
    assert gate.failed
    assert gate.attributes["bdh.context.titles"] == ["one", "two"]
    assert gate.attributes["bdh.gate.value"] == 3.0
    assert gate.events[0].name == "exception"
    fields = api.asked[0][1]
    assert fields["service"] == "hermes-bdh-bridge"
    assert int(fields["end"]) > int(fields["start"]) > 1e15, "microseconds"


def test_a_full_answer_of_jaeger_is_asked_for_in_halves(api: Api) -> None:
    """400 traces in one hour, at most 200 in an answer: none may be missing."""
    now = time.time()
    times = [now - 9 * number for number in range(400)]

    def answer(fields: dict[str, str]) -> Any:
        since, until_ = int(fields["start"]) / 1e6, int(fields["end"]) / 1e6
        found = [n for n, at in enumerate(times) if since <= at <= until_]
        return {"data": [jaeger(number, times[number]) for number in found[:200]]}

    api.answers["/api/traces"] = answer
    source = JaegerSource(api.url)
    within_the_hour = sum(at >= now - 3_600 for at in times)
    assert within_the_hour >= 399
    got = _run(source, lambda: len(stored(source.store)) >= within_the_hour)
    assert len({span.trace_id for span in got}) >= within_the_hour


def test_tempo_is_searched_and_its_traces_are_fetched(api: Api) -> None:
    trace_id = "5b8efff798038103d269b633813fc60c"
    started = time.time_ns() - 10**9
    found = {"traceID": trace_id, "startTimeUnixNano": str(started), "durationMs": 12}
    api.answers["/api/search"] = lambda fields: {"traces": [found]}
    api.answers["/api/traces/"] = lambda fields: TEMPO_TRACE  # no /api/v2: an older Tempo
    source = TempoSource(api.url)
    got = _run(source, lambda: stored(source.store))
    assert [(span.name, span.trace_id) for span in got] == [("bdh.turn", trace_id)]
    assert api.asked[0][1]["q"] == '{ resource.service.name = "hermes-bdh-bridge" }'


def test_an_api_that_is_away_is_told_and_comes_back(api: Api) -> None:
    source = JaegerSource(api.url)
    source.start()
    try:
        until(lambda: "404" in source.trouble)
        assert "tried again in" in source.trouble
        api.answers["/api/traces"] = lambda fields: {"data": [JAEGER_TRACE]}
        until(lambda: not source.trouble and stored(source.store))
    finally:
        source.stop()


@pytest.mark.parametrize("kind", [JaegerSource, TempoSource])
def test_no_answer_of_an_api_ends_the_asking(api: Api, kind: type[Any]) -> None:
    good = {"/api/traces": {"data": [JAEGER_TRACE]}, "/api/search": {"traces": []}}
    source, odd = kind(api.url), iter([5, [], {"data": 5, "traces": 5}, {"data": [{"spans": 5}]}])

    def answer(fields: dict[str, str]) -> Any:
        return next(odd, good["/api/traces" if kind is JaegerSource else "/api/search"])

    api.answers["/api/traces"] = api.answers["/api/search"] = answer
    source.every = 0.02
    source.start()
    try:
        until(lambda: len(api.asked) >= 6)
        until(lambda: not source.trouble)
        assert kind is TempoSource or stored(source.store)
    finally:
        source.stop()


# What is not trusted


def test_spans_that_can_t_be_read_are_counted_and_the_others_kept() -> None:
    good = OTLP_JSON["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    bad = [
        {**good, "traceId": "xyz"},
        {**good, "spanId": "0" * 16},
        {**good, "startTimeUnixNano": "-1"},
        {**good, "startTimeUnixNano": str(1 << 70)},
        {**good, "endTimeUnixNano": "soon"},
        {},
        None,
    ]
    document = {"resourceSpans": [{"scopeSpans": [{"spans": [*bad, good]}]}]}
    batch = from_otlp_json(document)
    assert (len(batch.rows), batch.unreadable) == (1, len(bad))


def test_what_comes_over_a_wire_is_bounded() -> None:
    attributes = [
        {"key": f"k{number}", "value": {"stringValue": "x" * 100_000}} for number in range(300)
    ]
    good = OTLP_JSON["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    span = {**good, "name": "n" * 9_999, "attributes": attributes}
    (row,) = from_otlp_json({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).rows
    kept = json.loads(row.attributes)
    assert len(kept) == 128
    assert max(map(len, kept.values())) == 65_536
    assert len(row.name) == 1_000
    odd: list[Any] = [None, [], {"resourceSpans": 3}, {"batches": [{"scopeSpans": "x"}]}]
    for document in odd:
        assert not from_otlp_json(document).rows
    assert not from_jaeger({"spans": [{"traceID": 1}]}).rows


_DEEP: Any = json.loads("[" * 900 + "]" * 900)


@pytest.mark.parametrize(
    "odd", [None, 5, -1, 0.5, True, "\ud800", "x", [], [1], {"a": 1}, 1e400, 1 << 70, _DEEP]
)
def test_no_shape_of_a_span_stops_those_beside_it(odd: Any) -> None:
    """Each value of a span is something else once: nothing is raised, and all that is kept can
    be stored."""
    good = OTLP_JSON["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    own = {
        "trace_id": "a" * 32,
        "span_id": "b" * 16,
        "name": "bdh.turn",
        "start_ns": 1,
        "end_ns": 2,
        "status_message": "x",
        "attributes": {"a": 1},
        "events": [{"name": "e", "time_ns": 1, "attributes": {"b": 1}}],
        "links": [{"trace_id": "a" * 32, "span_id": "b" * 16, "attributes": {"c": 1}}],
    }
    batches = [from_otlp_json({"trace": odd}), from_jaeger({"spans": odd})]
    for spans in (odd, [*_each_once(good, odd), good]):
        document = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
        batches.append(from_otlp_json(document))
    batches += [from_stored_json(one) for one in _each_once(own, odd) if isinstance(one, dict)]
    batches.append(from_jaeger({"spans": [*_each_once(JAEGER_TRACE["spans"][0], odd)]}))
    source = FeedSource("odd")
    try:
        for batch in batches:
            source.take(batch)
        assert stored(source.store)
    finally:
        source.stop()


def _each_once(value: Any, odd: Any) -> Iterator[Any]:
    """``value`` with each of its parts replaced by ``odd``, one at a time."""
    yield odd
    if not isinstance(value, dict | list):
        return
    for place, part in list(value.items() if isinstance(value, dict) else enumerate(value)):
        for changed in _each_once(part, odd):
            copy = value.copy()
            copy[place] = changed
            yield copy


# --source


def test_the_source_is_chosen_by_one_word(tmp_path: Path) -> None:
    paths = BridgePaths(tmp_path)
    made: list[Source] = []

    def chosen(text: str) -> Source:
        made.append(choose(text, paths))
        return made[-1]

    assert isinstance(chosen("local"), LocalSource)
    otlp = chosen("otlp:14318")
    assert isinstance(otlp, OtlpSource)
    assert (otlp.host, otlp.port) == ("127.0.0.1", 14318)
    anywhere = chosen("otlp:0.0.0.0:14318")
    assert isinstance(anywhere, OtlpSource)
    assert anywhere.host == "0.0.0.0"
    assert chosen("otlp").label == "otlp 127.0.0.1:4318 (gRPC 4317)"
    secret = chosen("jaeger=http://me:secret@localhost:16686")
    assert secret.label == "jaeger localhost:16686"
    assert isinstance(chosen("tempo=http://localhost:3200"), TempoSource)
    for wrong in (
        "otlp:99999",
        "otlp:1",
        "jaeger=localhost",
        "jaeger=http://",
        "tempo=http://[::1",
        "jaeger=http://x:99999",
        "jaeger=http://a b",
        "~nobody-here/x",
        "nowhere",
        str(tmp_path),
    ):
        with pytest.raises(SourceError):
            choose(wrong, paths)
    for source in made:
        source.stop()
