"""What is said of a request afterwards, against servers that fail in every phase of it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bdh_bridge.outbox.schema import find_write
from bdh_bridge.outbox.states import State, Write
from bdh_bridge.outbox.transitions import Result
from bdh_bridge.worker.delivery import Client
from tests.support import faulty_graph as behave
from tests.support.faulty_graph import Behaviour, FaultyGraph
from tests.support.outbox import TRACEPARENT, accept, open_outbox

TIMEOUT = 1.0
#: More than loopback's socket buffers take in.
LARGE = "x" * 30_000_000


@pytest.fixture
def write(tmp_path) -> Write:
    outbox = open_outbox(tmp_path)
    write_id = accept(outbox, "Which port does the relay use?", vault_id="alpine")
    with outbox.handle.use(1) as connection:
        found = find_write(connection, write_id)
    outbox.close()
    assert found is not None
    return found


@pytest.fixture
def graph() -> Iterator[FaultyGraph]:
    with FaultyGraph(behave.learns) as running:
        yield running


def deliver(url: str, write: Write, *, timeout: float = TIMEOUT, token: str = "") -> Result:
    client = Client(url, token, timeout=timeout)
    try:
        return client.deliver(write)
    finally:
        client.close()


def large(write: Write) -> Write:
    return replace(write, user_prompt=LARGE)


def test_a_write_arrives_with_its_key_its_trace_and_the_token(graph, write):
    result = deliver(graph.url, write, token="s3cret")
    assert result == Result(State.DELIVERED, http_status=200, new_concepts=1, hebbian_updates=2)
    [request] = graph.requests
    assert (request.method, request.path) == ("POST", "/api/query")
    assert request.headers["idempotency-key"] == write.id
    assert request.headers["traceparent"] == TRACEPARENT
    assert request.headers["authorization"] == "Bearer s3cret"
    assert request.json == {
        "query": write.query,
        "user_prompt": write.user_prompt,
        "source": "assistant_response",
        "vault_id": "alpine",
    }


def test_refused_is_certainly_not_arrived(graph, write):
    graph.go_down()
    result = deliver(graph.url, write)
    assert (result.state, result.error_type) == (State.PENDING, "refused")


def test_an_unknown_host_is_certainly_not_arrived(write):
    result = deliver("http://no-such-host.invalid:8643", write)
    assert (result.state, result.error_type) == (State.PENDING, "dns")


def test_a_connect_timeout_is_certainly_not_arrived(write):
    # A queue of one that nobody takes from: the kernel drops further connection attempts.
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        waiting = []
        for _ in range(4):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(address)
        result = deliver(f"http://127.0.0.1:{address[1]}", write)
        for connection in waiting:
            connection.close()
    assert (result.state, result.error_type) == (State.PENDING, "connect_timeout")


def test_a_tls_failure_is_certainly_not_arrived(graph, write):
    result = deliver(graph.url.replace("http:", "https:"), write)
    assert (result.state, result.error_type) == (State.PENDING, "tls")
    assert graph.requests == []


@pytest.mark.parametrize("status", [429, 503])
def test_too_busy_is_not_arrived_and_says_when_to_come_back(graph, write, status):
    graph.behave = behave.answers(status, {"error": "busy"}, retry_after="17")
    result = deliver(graph.url, write)
    assert (result.state, result.error_type, result.retry_after) == (
        State.PENDING,
        str(status),
        17.0,
    )
    assert result.detail == f"HTTP {status}: busy"


def test_retry_after_may_be_a_date(graph, write):
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 100))
    graph.behave = behave.answers(503, b"", retry_after=date)
    retry_after = deliver(graph.url, write).retry_after
    assert retry_after is not None
    assert 30 < retry_after <= 100


@pytest.mark.parametrize("value", ["soon", "", "-3", "1" * 400, "Mon, 99 Foo 2026"])
def test_a_senseless_retry_after_is_none(graph, write, value):
    graph.behave = behave.answers(429, b"", retry_after=value)
    result = deliver(graph.url, write)
    assert (result.state, result.retry_after) == (State.PENDING, None)


@pytest.mark.parametrize("status", [400, 401, 404, 422, 302])
def test_a_refusal_has_failed_with_the_servers_message(graph, write, status):
    graph.behave = behave.answers(status, {"error": "Unknown vault 'alpine'"})
    result = deliver(graph.url, write)
    assert (result.state, result.http_status) == (State.FAILED, status)
    assert result.detail == f"HTTP {status}: Unknown vault 'alpine'"


def test_compression_is_not_asked_for(graph, write):
    deliver(graph.url, write)
    assert graph.requests[0].headers["accept-encoding"] == "identity"


def test_a_token_that_the_server_quotes_is_not_repeated(graph, write):
    graph.behave = behave.answers(401, {"error": "Bearer s3cret is wrong"})
    assert deliver(graph.url, write, token="s3cret").detail == "HTTP 401: Bearer (secret) is wrong"


@pytest.mark.parametrize("status", [500, 502, 504])
def test_a_server_error_is_in_doubt(graph, write, status):
    graph.behave = behave.answers(status, b"<html>oops")
    result = deliver(graph.url, write)
    assert (result.state, result.error_type) == (State.IN_DOUBT, str(status))


@pytest.mark.parametrize(
    "behaviour", [behave.hangs_after_reading, behave.learns_and_hangs, behave.hangs_before_reading]
)
def test_sent_in_full_and_timed_out_is_unconfirmed(graph, write, behaviour: Behaviour):
    graph.behave = behaviour
    result = deliver(graph.url, write)
    assert (result.state, result.error_type) == (State.UNCONFIRMED, "timeout")


def test_a_timeout_while_sending_is_in_doubt(graph, write):
    graph.behave = behave.hangs_before_reading
    result = deliver(graph.url, large(write))
    assert (result.state, result.error_type) == (State.IN_DOUBT, "broken_while_sending")


def test_a_connection_lost_while_sending_is_in_doubt(graph, write):
    graph.behave = behave.resets_at_once
    result = deliver(graph.url, large(write), timeout=20)
    assert (result.state, result.error_type) == (State.IN_DOUBT, "broken_while_sending")


def test_a_refusal_while_still_sending_is_a_refusal(graph, write):
    def refuses_early(_: FaultyGraph, connection: socket.socket) -> None:
        connection.recv(1_000)
        connection.sendall(behave.response(413, {"error": "too large"}))
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1_000_000):
            pass

    graph.behave = refuses_early
    result = deliver(graph.url, large(write), timeout=30)
    assert (result.state, result.detail) == (State.FAILED, "HTTP 413: too large")


@pytest.mark.parametrize(
    "behaviour",
    [behave.closes_after_reading, behave.learns_and_closes, behave.answers_half_a_header],
)
def test_a_connection_lost_before_the_answer_is_in_doubt(graph, write, behaviour: Behaviour):
    graph.behave = behaviour
    result = deliver(graph.url, write)
    assert (result.state, result.error_type) == (State.IN_DOUBT, "connection_lost")


def test_half_an_answer_is_unconfirmed(graph, write):
    graph.behave = behave.answers_half
    result = deliver(graph.url, write)
    assert (result.state, result.error_type) == (State.UNCONFIRMED, "answer_broken")


def test_a_trickling_answer_can_not_move_the_deadline(graph, write):
    graph.behave = behave.trickles
    started = time.monotonic()
    result = deliver(graph.url, write)
    assert result.state is State.UNCONFIRMED
    # Trickled in full, it takes more than twenty seconds.
    assert time.monotonic() - started < 15


def test_an_endless_answer_is_cut(graph, write):
    graph.behave = behave.never_stops_answering
    result = deliver(graph.url, write, timeout=30)
    assert (result.state, result.error_type) == (State.UNCONFIRMED, "answer_broken")


@pytest.mark.parametrize("body", [b"", b"\xff\xfe garbage", b"[1]", b'{"hello": 1}', b"[" * 99_999])
def test_an_answer_that_is_not_the_graphs_is_in_doubt(graph, write, body):
    graph.behave = behave.answers(200, body)
    result = deliver(graph.url, write)
    assert (result.state, result.error_type) == (State.IN_DOUBT, "not_a_graph_answer")


@pytest.mark.parametrize(
    "changes", [{"response": "[LLM error: model not loaded]"}, {"routing": {}}]
)
def test_a_graph_whose_model_failed_has_delivered_but_degraded(graph, write, changes):
    graph.behave = behave.answers(200, {**behave.ANSWER, **changes})
    result = deliver(graph.url, write)
    assert (result.state, result.degraded) == (State.DELIVERED, True)


def test_the_counts_may_be_numbers_as_well(graph, write):
    graph.behave = behave.answers(200, {"response": "", "hebbian_updates": 7, "new_concepts": None})
    result = deliver(graph.url, write)
    assert (result.new_concepts, result.hebbian_updates) == (0, 7)


def test_a_request_in_flight_can_be_ended(graph, write):
    graph.behave = behave.learns_and_hangs
    client = Client(graph.url, "", timeout=60)
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(client.deliver(write)))
    thread.start()
    while not graph.requests:
        time.sleep(0.01)
    client.abort()
    thread.join(30)
    client.close()
    assert [result.state for result in results] == [State.UNCONFIRMED]


def test_a_server_that_died_between_two_writes_is_not_a_doubt(graph, write):
    """A kept connection would still be there, half closed, and swallow the second write."""
    client = Client(graph.url, "", timeout=TIMEOUT)
    assert client.deliver(write).state is State.DELIVERED
    graph.go_down()
    assert client.deliver(write).error_type == "refused"
    client.close()


def test_health_says_who_honours_keys():
    with FaultyGraph(behave.learns, keys=True, window=600) as graph:
        client = Client(graph.url, "", timeout=TIMEOUT)
        server = client.health().server
        client.close()
    assert server is not None
    assert (server.instance, server.window) == (graph.instance, 600)


def test_health_without_keys_or_without_health_is_fine(graph):
    client = Client(graph.url, "", timeout=TIMEOUT)
    assert client.health().server is None
    graph.health = False
    assert client.health().problem is None
    graph.go_down()
    down = client.health()
    client.close()
    assert down.unreachable
    assert down.problem is not None
    assert down.problem.error_type == "refused"


@pytest.mark.parametrize("traceparent", ["00-a\r\nX-Evil: 1", "00-\u00e4\u4e2d", "\x00"])
def test_what_can_never_be_sent_fails_and_does_not_hold_up_its_lane(graph, write, traceparent):
    result = deliver(graph.url, replace(write, traceparent=traceparent))
    assert (result.state, result.error_type) == (State.FAILED, "not_sendable")
    assert graph.requests == []
