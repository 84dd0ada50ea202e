"""Every code that a span of the chat platform may say is said, for real, and no other is.

The adapter runs here with a real server; what Hermes does at the wrong moment is done between the
claim of a message and its start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("borgee_plugin_sdk", reason="needs the borgee extra")
pytest.importorskip("gateway.config", reason="needs hermes-agent")

from bdh_bridge.paths import BridgePaths
from bdh_otel import attributes as attr
from bdh_otel import database, names
from bdh_otel.reader import StoredSpan
from hermes_borgee import dispatch
from hermes_borgee.failures import SendKind
from hermes_borgee.host import Classified
from hermes_borgee.receipts import DispatchClass, Outcome
from hermes_borgee.tracing import FAILURES
from tests.support.borgee import make_home, until
from tests.support.borgee_adapter import Bench, running
from tests.support.bpp_server import AGENT_ID, LOST, BppServer, Denied
from tests.telemetry.stage import said, spans_of

pytestmark = pytest.mark.timeout(300)

Scenario = Callable[[Bench, BppServer, pytest.MonkeyPatch], Awaitable[None]]


async def intakes(bench: Bench, server: BppServer, patch: pytest.MonkeyPatch) -> None:
    frame = server.message("once", channel_id="in")
    server.send(frame)
    server.send(frame)
    server.push("mine", author_id=AGENT_ID)
    for kind in ("edited", "deleted"):
        server.push("changed", kind=kind, message_id="m1")
    server.push(
        "", kind="reaction", message_id="m1", emoji="👍", reactor_id="u", reaction_added=True
    )
    server.push("poison", channel_id="bad", message_id="")
    server.push("last", kind="mention", channel_id="in")
    await bench.until_state("last", "completed")
    await bench.until_state("poison", "quarantined")


async def turns(bench: Bench, server: BppServer, patch: pytest.MonkeyPatch) -> None:
    bench.errors["boom"] = RuntimeError("the handler broke")
    server.push("boom")
    await bench.until_state("boom", "failed")
    bench.calls_model, bench.answer = False, lambda _: None
    server.push("dropped")
    await bench.until_state("dropped", "failed")
    bench.calls_model, bench.answer = True, lambda event: f"Answer to: {event.text}"
    bench.hold("long")
    server.push("long")
    await bench.until_seen("long")
    server.push("/status")
    await bench.until_state("/status", "completed")
    server.push("/stop")
    await bench.until_state("/stop", "completed")
    await bench.until_state("long", "completed")


async def answers(bench: Bench, server: BppServer, patch: pytest.MonkeyPatch) -> None:
    from tools import clarify_gateway

    key = bench.make_session("asks")
    gate = bench.hold("asking")
    server.push("asking", channel_id="asks")
    await bench.until_seen("asking")
    clarify_gateway.register("clarify-1", key, "Which one?", ["red", "blue"])
    bench.calls_model = False
    try:
        server.push("blue", channel_id="asks")
        assert (await bench.until_state("blue", "completed")).outcome == Outcome.ANSWERED
    finally:
        clarify_gateway.clear_session(key)
        bench.calls_model = True
    gate.set()
    await bench.until_state("asking", "completed")


async def controls(bench: Bench, server: BppServer, patch: pytest.MonkeyPatch) -> None:
    bench.make_session("stuck")
    gate = bench.hold("busy with it")
    server.push("busy with it", channel_id="stuck")
    await bench.until_seen("busy with it")
    assert bench.adapter._dispatcher is not None
    patch.setattr(bench.adapter._dispatcher, "_control_timeout", 0.5)
    hanging = bench.hold("/help")
    server.push("/help", channel_id="stuck")
    await bench.until_state("/help", "quarantined")
    hanging.set()
    gate.set()
    await bench.until_state("busy with it", "completed")


async def wrong_moments(bench: Bench, server: BppServer, patch: pytest.MonkeyPatch) -> None:
    """After the claim of a message, and before its start, Hermes can't take it."""
    runner, adapter, desk = bench.runner, bench.adapter, bench.adapter._desk
    assert desk is not None
    patch.setattr(dispatch, "STORE_PAUSE", 0.05)
    begin, handler = desk.begin, adapter._handler

    async def late(text: str, during: Callable[[], Any], after: Callable[[], Any]) -> None:
        async def meddled(receipt: Any) -> bool:
            if receipt.source_body != text or receipt.attempt > 1:
                return await begin(receipt)
            begun = await begin(receipt)
            answer = during()
            return begun if answer is None else answer

        patch.setattr(desk, "begin", meddled)
        server.push(text, channel_id=text)
        states = ("pending", "completed")
        while (await bench.until_state(text, *states)).attempt == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        after()
        await bench.until_state(text, "completed")

    def unavailable() -> None:
        raise database.StoreUnavailable(desk.path, "disk full", "free some disk space")

    def none() -> None:
        pass

    await late(
        "draining",
        lambda: setattr(runner, "_draining", True),
        lambda: setattr(runner, "_draining", False),
    )
    await late(
        "starting",
        lambda: setattr(runner, "_startup_restore_in_progress", True),
        lambda: setattr(runner, "_startup_restore_in_progress", False),
    )
    await late(
        "not registered",
        lambda: runner.adapters.update({adapter.platform: object()}),
        lambda: runner.adapters.update({adapter.platform: adapter}),
    )
    await late("inbox", unavailable, none)
    await late("claim lost", lambda: False, none)

    def without_runner() -> None:
        adapter.gateway_runner, adapter._handler = None, None

    def with_runner() -> None:
        adapter.gateway_runner, adapter._handler = runner, handler

    await late("no handler", without_runner, with_runner)
    patch.setattr(desk, "begin", begin)


async def overtaken(bench: Bench, server: BppServer, patch: pytest.MonkeyPatch) -> None:
    """The session is taken before the message gets to it; then it is free before a control does."""
    from gateway.platforms.base import MessageEvent

    gate = bench.hold("synthetic")
    hand_over = bench.adapter.hand_over
    source = bench.adapter.build_source(chat_id="taken", chat_type="channel", user_id="x")

    async def meddling(event: Any) -> None:
        if event.text == "real" and "synthetic" not in bench.seen:
            await hand_over(MessageEvent(text="synthetic", source=source, internal=True))
            await bench.until_seen("synthetic")
        if event.text == "too late":
            gate.set()
            await bench.until_state("real", "completed")
            await until(lambda: not bench.adapter.host.turn_runs(key), 60)
        await hand_over(event)

    key = bench.adapter.session_key("taken", "channel")
    patch.setattr(bench.adapter, "hand_over", meddling)
    server.push("real", channel_id="taken")
    await bench.until_seen("synthetic")
    receipt = await bench.until_state("real", "pending")
    assert receipt.attempt == 1
    control = Classified(DispatchClass.CONTROL, "too late")
    patch.setattr(bench.adapter.host, "classify", lambda *_: control)
    server.push("too late", channel_id="taken")
    receipt = await bench.until_state("too late", "completed")
    assert receipt.dispatch_class is DispatchClass.ORDINARY
    patch.setattr(bench.adapter, "hand_over", hand_over)


async def sends(bench: Bench, server: BppServer, patch: pytest.MonkeyPatch) -> None:
    adapter = bench.adapter
    sent = await adapter.send("out", "hello")
    assert sent.message_id
    assert (
        await adapter.edit_message("out", sent.message_id, "hello again", finalize=True)
    ).success
    assert await adapter.delete_message("out", sent.message_id)
    server.answers["send_message"] = lambda _: Denied("message.send")
    server.push("undelivered")
    await bench.until_state("undelivered", "failed")
    server.answers["send_message"] = lambda _: LOST
    assert not (await adapter.send("out", "may have arrived")).success
    del server.answers["send_message"]


async def leaving(bench: Bench, server: BppServer, patch: pytest.MonkeyPatch) -> None:
    """A turn that doesn't end in time, a message that can't be stored, a reply that comes late."""
    adapter, desk = bench.adapter, bench.adapter._desk
    assert desk is not None
    bench.hold("endless")
    server.push("endless")
    await bench.until_seen("endless")
    tried = asyncio.Event()

    async def full(receipt: Any) -> int | None:
        tried.set()
        raise database.StoreUnavailable(desk.path, "disk full", "free some disk space")

    patch.setattr(desk, "commit", full)
    server.push("not stored")
    await asyncio.wait_for(tried.wait(), 60)
    await adapter.cancel_background_tasks()
    assert adapter.link is not None
    await adapter.link.close()
    assert not (await adapter.send("out", "too late")).success


async def _play(home: Path, server: BppServer, scenarios: tuple[Scenario, ...]) -> None:
    async with running(home) as bench:
        for scenario in scenarios:
            with pytest.MonkeyPatch.context() as patch:
                await scenario(bench, server, patch)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[StoredSpan]:
    folder = tmp_path_factory.mktemp("borgee-codes")
    home = folder / "hermes"
    with BppServer() as server, pytest.MonkeyPatch.context() as environ:
        for name, value in {
            "BDH_OTEL_STRICT": "1",
            "HERMES_HOME": str(home),
            "HERMES_GATEWAY_LOCK_DIR": str(folder / "locks"),
            "XDG_STATE_HOME": str(folder / "state"),
        }.items():
            environ.setenv(name, value)
        make_home(home, server.url)
        asyncio.run(
            _play(
                home, server, (intakes, turns, answers, controls, wrong_moments, overtaken, sends)
            )
        )
        make_home(home, server.url, drain_timeout_seconds=0.1)
        asyncio.run(_play(home, server, (leaving,)))
    return spans_of(BridgePaths(home).spans)


@pytest.mark.parametrize("span", attr.BORGEE_OUTCOMES)
def test_every_outcome_is_said_by_its_span_and_no_other(seen: list[StoredSpan], span: str) -> None:
    found = said([one for one in seen if one.name == span], attr.BORGEE_OUTCOME)
    assert found == set(attr.BORGEE_OUTCOMES[span])


def test_every_lane_kind_and_operation_is_said(seen: list[StoredSpan]) -> None:
    assert said(seen, attr.BORGEE_LANE) == set(attr.TABLE[attr.BORGEE_LANE].codes)
    assert said(seen, attr.BORGEE_OPERATION) == set(attr.TABLE[attr.BORGEE_OPERATION].codes)
    # What has no kind can't come from the kit that reads the frames; the inbox has a word for it.
    assert said(seen, attr.BORGEE_KIND) == set(attr.TABLE[attr.BORGEE_KIND].codes) - {"unknown"}


def test_the_declared_codes_are_those_of_the_source() -> None:
    from borgee_plugin_sdk import InboundKind

    table, outcomes = attr.TABLE, attr.BORGEE_OUTCOMES
    assert set(table[attr.BORGEE_LANE].codes) == set(DispatchClass)
    assert set(table[attr.BORGEE_KIND].codes) == {*(one.value for one in InboundKind), "unknown"}
    assert set(outcomes["borgee.send"]) == set(SendKind)
    settled = {code for code in outcomes["borgee.dispatch"] if not code.startswith("deferred_")}
    # What else an outcome of a receipt may be is decided where no span of a dispatch is open.
    elsewhere = {"process_died", "poison", "discarded", "no_inference", "empty"}
    assert settled == set(Outcome) - elsewhere
    assert set(table[attr.BORGEE_OUTCOME].codes) >= FAILURES


def test_only_failures_failed(seen: list[StoredSpan]) -> None:
    for span in seen:
        outcome = span.attributes.get(attr.BORGEE_OUTCOME)
        assert span.end_ns is not None, span.name
        assert span.failed == (outcome in FAILURES), (span.name, outcome)
        assert span.attributes.get(attr.ERROR_TYPE) == (outcome if span.failed else None)


def test_every_span_of_the_platform_was_made(seen: list[StoredSpan]) -> None:
    ours = {one.prefix: one for one in names.SPANS if one.prefix.startswith("borgee.")}
    assert {span.type for span in seen} == set(ours)
    for span in seen:
        assert span.as_json()["kind"] == ours[span.type].kind.name.lower(), span.name
