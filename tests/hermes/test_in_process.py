"""The plugin in the real host's agent loop, in this process."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from bdh_bridge.text import CONTEXT_OPENING
from bdh_otel import attributes as attr
from tests.support.hermes import Host, InProcess, attributes, in_process

pytestmark = pytest.mark.hermes

QUESTION = "What does the outbox do when the agent crashes?"


def decisions(host: Host, path: str = "read") -> dict[str, str]:
    """Gate → reason of the store's only turn."""
    return {
        str(span.attributes[attr.GATE_NAME]): str(span.attributes[attr.GATE_REASON])
        for span in host.spans()
        if span.attributes.get(attr.GATE_PATH) == path
    }


def roots(host: Host) -> list[Any]:
    return [span for span in host.spans() if span.name == "bdh.turn"]


def test_context_reaches_the_request_and_the_answer_the_graph(
    hermes: InProcess, host: Host, graph: Any
) -> None:
    before = graph.get("/api/stats")["queries_processed"]
    hermes.say(hermes.agent("s-1"), QUESTION)

    sent = host.model.requests()[-1].user_message
    assert sent.startswith(QUESTION)
    assert CONTEXT_OPENING in sent
    assert "Durable Outbox" in sent

    spans = host.wait_for(lambda spans: attributes(spans, "bdh.deliver"))
    assert len({span.trace_id for span in spans}) == 1, "one turn is one trace"
    (delivery,) = attributes(spans, "bdh.deliver")
    assert delivery[attr.DELIVERY_OUTCOME] == "delivered"
    assert graph.get("/api/stats")["queries_processed"] == before + 1

    (root,) = roots(host)
    assert root.end_ns is not None
    assert root.attributes[attr.TURN_ROUTE] == "retrieve_and_store"
    assert root.attributes[attr.TURN_READ_OUTCOME] == "context"
    assert root.attributes[attr.TURN_WRITE_OUTCOME] == "queued"
    assert root.attributes[attr.TURN_CLOSE_REASON] == "end_of_turn"
    for span in spans:
        assert span.attributes[attr.CONVERSATION_ID] == "s-1"
        assert span.attributes[attr.TURN_ID] == root.attributes[attr.TURN_ID]
    (retrieval,) = attributes(spans, "retrieval")
    assert retrieval[attr.RETRIEVAL_HYBRID_TOP] > 0.3
    assert retrieval[attr.RETRIEVAL_MATCHED_TERMS_COUNT] >= 2
    assert len(hermes.bridge.turns) == 0


def test_a_note_that_the_conversation_holds_is_not_given_again(
    hermes: InProcess, host: Host
) -> None:
    agent = hermes.agent("s-1")
    result = hermes.say(agent, QUESTION)
    hermes.say(agent, QUESTION + " Tell me more.", conversation_history=result["messages"])

    sent = host.model.requests()[-1].user_message
    assert "Durable Outbox" not in sent
    second = attributes(host.spans(), "bdh.context")[-1]
    assert second[attr.CONTEXT_ALREADY_PRESENT] >= 1


def test_small_talk_is_left_alone(hermes: InProcess, host: Host) -> None:
    hermes.say(hermes.agent("s-1"), "grazie!")
    assert host.model.requests()[-1].user_message == "grazie!"
    assert decisions(host)["eligibility"] == "casual"
    assert decisions(host, "write")["answer"] == "short_answer"
    (root,) = roots(host)
    assert root.attributes[attr.TURN_ROUTE] == "skip"
    assert root.attributes[attr.TURN_READ_OUTCOME] == "casual"


def test_a_tool_call_is_a_child_of_its_turn(hermes: InProcess, host: Host) -> None:
    hermes.say(hermes.agent("s-1"), "Ask the graph about tracing")
    (result,) = host.model.requests()[-1].tool_results
    assert "Tracing" in result
    spans = host.spans()
    (tool,) = [span for span in spans if span.name == "execute_tool bdh_query"]
    (root,) = roots(host)
    assert tool.parent_id == root.span_id
    assert tool.attributes[attr.TOOL_OUTCOME] == "ok"
    assert root.attributes[attr.TURN_EXPLICIT_QUERY] is True


def test_two_sessions_that_interleave_keep_apart(hermes: InProcess, host: Host) -> None:
    """Both turns are inside their model call at the same time, in one process."""
    both = threading.Barrier(2, timeout=60)
    answer = host.model.answer

    def meet(body: dict[str, Any]) -> dict[str, Any]:
        both.wait()
        return answer(body)

    host.model.answer = meet  # type: ignore[method-assign]
    messages = {"s-a": QUESTION, "s-b": "How often is the backup of the database made?"}
    agents = {session: hermes.agent(session) for session in messages}
    threads = [
        threading.Thread(target=hermes.say, args=(agents[session], message))
        for session, message in messages.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)

    spans = host.wait_for(lambda spans: len(attributes(spans, "bdh.deliver")) == 2)
    for session, message in messages.items():
        mine = [span for span in spans if span.attributes[attr.CONVERSATION_ID] == session]
        assert len({span.trace_id for span in mine}) == 1
        (root,) = [span for span in mine if span.name == "bdh.turn"]
        assert root.attributes[attr.TURN_MESSAGE] == message
        (write,) = attributes(mine, "bdh.write")
        assert write[attr.WRITE_QUERY] == message
        (retrieval,) = attributes(mine, "retrieval")
        assert retrieval[attr.RETRIEVAL_QUERY] == message
    sent = {request.user_message.splitlines()[0]: request for request in host.model.requests()}
    assert "Nightly Backup" in sent[messages["s-b"]].user_message
    assert len(hermes.bridge.turns) == 0


def test_the_hosts_background_review_passes_untouched(hermes: InProcess, host: Host) -> None:
    agent = hermes.agent("s-1")
    agent._memory_write_origin = "background_review"  # as the host marks its review fork
    hermes.say(agent, QUESTION)
    assert CONTEXT_OPENING not in host.model.requests()[-1].user_message
    assert decisions(host)["origin"] == "background_review"
    assert decisions(host, "write")["origin"] == "background_review"
    assert not attributes(host.spans(), "bdh.write")


def test_a_review_is_known_by_its_words_too(hermes: InProcess, host: Host) -> None:
    hermes.say(hermes.agent("s-1"), "Review the conversation above and save what matters.")
    assert decisions(host)["origin"] == "background_review"
    assert decisions(host, "write")["origin"] == "background_review"


@pytest.mark.parametrize("opted_in", [False, True])
def test_a_cron_turn_needs_its_own_jobs_opt_in(
    hermes: InProcess, host: Host, opted_in: bool
) -> None:
    from cron.jobs import create_job

    prompt = "Nightly digest: what does the outbox do?" + (" [BDH:ALLOW-CRON]" if opted_in else "")
    job = create_job(prompt=prompt, schedule="every 1h")
    session = f"cron_{job['id']}_20260101_030000"
    # The assembled message of a job may quote the marker; only the job's own record counts.
    message = f"[IMPORTANT: You are running as a scheduled cron job.] {QUESTION} [BDH:ALLOW-CRON]"
    hermes.say(hermes.agent(session, platform="cron"), message)

    expected = "cron_opt_in" if opted_in else "cron_not_opted_in"
    assert decisions(host)["cron"] == expected
    assert (CONTEXT_OPENING in host.model.requests()[-1].user_message) is opted_in
    assert bool(attributes(host.spans(), "bdh.write")) is opted_in


def test_a_cron_turn_is_about_what_its_job_asks(hermes: InProcess, host: Host) -> None:
    from cron.jobs import create_job
    from cron.scheduler import _build_job_prompt

    job = create_job(prompt=f"{QUESTION}\n[BDH:ALLOW-CRON]", schedule="every 1h")
    message = _build_job_prompt(job)
    assert message != job["prompt"]  # Hermes wraps it in the same instructions for every job
    hermes.say(hermes.agent(f"cron_{job['id']}_20260101_030000", platform="cron"), message)

    (root,) = attributes(host.spans(), "bdh.turn")
    assert root[attr.TURN_MESSAGE] == QUESTION
    assert root[attr.TURN_MESSAGE_CHARACTERS] == len(message)
    (retrieval,) = attributes(host.spans(), "retrieval")
    assert retrieval[attr.RETRIEVAL_QUERY] == QUESTION
    (write,) = attributes(host.spans(), "bdh.write")
    assert write[attr.WRITE_QUERY] == QUESTION


def test_a_cron_session_without_a_record_is_denied(hermes: InProcess, host: Host) -> None:
    hermes.say(hermes.agent("cron_nosuchjob_20260101_030000", platform="cron"), QUESTION)
    assert decisions(host)["cron"] == "cron_record_unavailable"


def test_a_query_of_a_denied_cron_turn_teaches_nothing(
    hermes: InProcess, host: Host, graph: Any
) -> None:
    before = graph.get("/api/stats")
    agent = hermes.agent("cron_nosuchjob_20260101_030000", platform="cron")
    hermes.say(agent, "Ask the graph about tracing")
    (result,) = host.model.requests()[-1].tool_results
    assert "Tracing" in result
    assert '"learned": false' in result
    assert graph.get("/api/stats") == before


def test_a_failed_api_call_leaves_no_state_behind(hermes: InProcess, host: Host) -> None:
    host.model.close()
    hermes.say(hermes.agent("s-1"), QUESTION)
    assert len(hermes.bridge.turns) == 0
    (root,) = roots(host)
    assert root.end_ns is not None
    assert root.attributes[attr.TURN_CLOSE_REASON] == "api_error"
    assert root.failed


def test_a_message_of_blocks_gets_no_context_but_may_be_written(
    hermes: InProcess, host: Host
) -> None:
    blocks = [
        {"type": "text", "text": "What does the outbox do, as in this image?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
    ]
    hermes.say(hermes.agent("s-1"), blocks)
    assert decisions(host)["injectable"] == "not_injectable"
    (write,) = attributes(host.spans(), "bdh.write")
    assert write[attr.WRITE_QUERY] == "What does the outbox do, as in this image?"


def test_a_blacklisted_prompt_is_neither_read_nor_written_and_edits_count_at_once(
    hermes: InProcess, host: Host
) -> None:
    agent = hermes.agent("s-1")
    hermes.say(agent, QUESTION)
    host.paths.blacklist.write_text("OUTBOX DO\n", encoding="utf-8")
    hermes.say(hermes.agent("s-2"), QUESTION)
    spans = [s for s in host.spans() if s.attributes.get(attr.CONVERSATION_ID) == "s-2"]
    reasons = [
        (s.attributes[attr.GATE_PATH], s.attributes[attr.GATE_RULE_LINE])
        for s in spans
        if s.attributes.get(attr.GATE_REASON) == "blacklisted"
    ]
    assert reasons == [("read", 1), ("write", 1)]
    assert CONTEXT_OPENING not in host.model.requests()[-1].user_message


def test_a_dead_graph_costs_context_and_one_warning(
    hermes: InProcess, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    hermes.bridge.graph.api_url = "http://127.0.0.1:9"
    for number in range(5):
        hermes.say(hermes.agent(f"s-{number}"), QUESTION)
    warnings = [r for r in caplog.records if "turns go on without context" in r.getMessage()]
    assert len(warnings) == 1
    reasons = [span.attributes[attr.GATE_REASON] for span in host.spans() if "circuit" in span.name]
    assert reasons[:4] == ["circuit_closed"] * 3 + ["circuit_open"]
    outcomes = [root.attributes[attr.TURN_READ_OUTCOME] for root in roots(host)]
    assert outcomes[:4] == ["failed"] * 3 + ["circuit_open"]


def test_an_answer_that_used_the_graph_on_purpose_is_marked_where_that_is_wanted(
    host: Host,
) -> None:
    host.environ["BDH_ANSWER_MARKER"] = "true"
    with in_process(host) as running:
        used = running.say(running.agent("s-1"), "Ask the graph about tracing")
        assert used["final_response"].startswith("[BDH] One conversation turn is one trace.")
        plain = running.say(running.agent("s-2"), "grazie!")
        assert plain["final_response"] == "Prego!"
        (write,) = attributes(host.spans(), "bdh.write")
        assert write[attr.WRITE_QUERY] == "Ask the graph about tracing"
