"""The end of a session in the real host: its hooks, its processes, and what is learned then."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from bdh_bridge.transcripts import Transcripts
from bdh_otel import attributes as attr
from tests.support import model_server as ms
from tests.support.hermes import Host, InProcess, attributes

pytestmark = pytest.mark.hermes

QUESTION = "What does the outbox do when the agent crashes?"
SUMMARY = {
    "durable": True,
    "topic": "What the outbox does when the agent crashes",
    "summary": "A crash of the agent loses nothing, because each write is committed first.",
}


@pytest.fixture
def provider() -> Iterator[ms.ModelServer]:
    with ms.ModelServer(ms.answer(SUMMARY)) as server:
        yield server


@pytest.fixture
def host(host: Host, provider: ms.ModelServer) -> Host:
    host.environ |= {
        "BDH_SESSION_SYNTH_ENABLED": "true",
        "BDH_SESSION_SYNTH_MIN_TURNS": "2",
        "BDH_REWRITE_CHAIN": "local",
        "BDH_REWRITE_LOCAL_URL": provider.url,
    }
    return host


def say(hermes: InProcess, session: str, turns: int, **kwargs: Any) -> None:
    agent = hermes.agent(session, **kwargs)
    for number in range(turns):
        hermes.say(agent, f"{QUESTION} Once more: {number}")


def finalize(hook: str = "on_session_finalize", **kwargs: Any) -> None:
    from hermes_cli import plugins

    plugins.invoke_hook(hook, platform="cli", reason="shutdown", **kwargs)


def deliveries(host: Host, session: str) -> list[Any]:
    """Deliveries that are not of a turn."""
    return [
        span
        for span in host.spans()
        if span.name == "bdh.deliver"
        and span.attributes[attr.CONVERSATION_ID] == session
        and attr.TURN_ID not in span.attributes
    ]


def outcomes(host: Host) -> dict[str, Any]:
    return {
        str(found[attr.CONVERSATION_ID]): found[attr.SYNTHESIS_OUTCOME]
        for found in attributes(host.spans(), "bdh.synthesis")
    }


def test_a_finalized_session_is_summarised_once(
    hermes: InProcess, host: Host, provider: ms.ModelServer
) -> None:
    say(hermes, "s-long", 3)
    say(hermes, "s-short", 1)
    for _ in range(2):
        finalize(session_id="s-long")
        finalize(session_id="s-short")
    host.wait_for(lambda _: deliveries(host, "s-long"))
    host.wait_for(lambda _: len(outcomes(host)) == 2)
    assert outcomes(host) == {"s-long": "queued", "s-short": "too_few_turns"}
    (request,) = provider.requests
    turns = json.loads(request.body["messages"][1]["content"])["turns"]
    assert [turn["message"] for turn in turns] == [f"{QUESTION} Once more: {n}" for n in range(3)]
    assert all("SQLite outbox" in turn["answer"] for turn in turns)
    assert len(deliveries(host, "s-long")) == 1


def test_a_reset_names_the_session_that_it_ends(hermes: InProcess, host: Host) -> None:
    say(hermes, "s-old", 2)
    finalize("on_session_reset", session_id="s-new", old_session_id="s-old", new_session_id="s-new")
    spans = host.wait_for(lambda spans: attributes(spans, "bdh.synthesis"))
    (found,) = attributes(spans, "bdh.synthesis")
    assert found[attr.CONVERSATION_ID] == "s-old"
    assert found[attr.SYNTHESIS_TRIGGER] == "reset"


def test_on_an_event_loop_the_hook_only_hands_over(
    hermes: InProcess, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    say(hermes, "s-1", 2)
    marked = threading.Event()
    on: list[str] = []
    mark_ended = Transcripts.mark_ended

    def note(self: Transcripts, *args: Any) -> bool:
        on.append(threading.current_thread().name)
        done = mark_ended(self, *args)
        marked.set()
        return done

    monkeypatch.setattr(Transcripts, "mark_ended", note)

    async def gateway() -> str:
        finalize(session_id="s-1")
        return threading.current_thread().name

    loop_thread = asyncio.run(gateway())
    assert marked.wait(30)
    assert on != [loop_thread]
    host.wait_for(lambda _: outcomes(host) == {"s-1": "queued"})


def test_a_cron_session_is_never_summarised_even_if_opted_in(hermes: InProcess, host: Host) -> None:
    from cron.jobs import create_job

    job = create_job(prompt="What does the outbox do? [BDH:ALLOW-CRON]", schedule="every 1h")
    session = f"cron_{job['id']}_20260101_030000"
    say(hermes, session, 2, platform="cron")
    assert len(attributes(host.spans(), "bdh.write")) == 2
    finalize(session_id=session)
    assert not host.paths.sessions.exists()


def test_turns_that_were_not_written_make_no_session(hermes: InProcess, host: Host) -> None:
    agent = hermes.agent("s-1")
    for _ in range(3):
        hermes.say(agent, "grazie!")
    finalize(session_id="s-1")
    assert not host.paths.sessions.exists()


@pytest.mark.slow
def test_the_command_line_ends_a_session_at_its_exit(host: Host, provider: ms.ModelServer) -> None:
    host.environ["BDH_SESSION_SYNTH_MIN_TURNS"] = "1"
    finished = host.run("chat", "-Q", "-q", QUESTION)
    assert finished.returncode == 0, finished.stderr
    spans = host.wait_for(lambda spans: attributes(spans, "bdh.synthesis"))
    (found,) = attributes(spans, "bdh.synthesis")
    assert found[attr.SYNTHESIS_TRIGGER] == "finalize"
    host.wait_for(lambda _: deliveries(host, str(found[attr.CONVERSATION_ID])))
