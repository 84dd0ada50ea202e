"""The steps of the demo: each says something to Hermes and checks what it claims about the turn."""

from __future__ import annotations

import json
from collections.abc import Callable

from bdh_bridge.demo import conversation as said
from bdh_bridge.demo.report import Step
from bdh_bridge.demo.stage import PlayedTurn, Stage, decision
from bdh_bridge.gates.reasons import Reason
from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.reader import StoredSpan

Play = Callable[[Stage, Step], None]

_GATEWAY = "gateway process, OpenAI-compatible API"


def small_talk(stage: Stage, step: Step) -> None:
    turn = _turn(step, _GATEWAY, said.SMALL_TALK, stage.say)
    gate = turn.gate("eligibility", "read")
    step.claim(
        "The gate takes it for small talk and skips the read",
        gate and gate.decision == "skip" and gate.reason == Reason.CASUAL,
        decision(gate),
    )
    _claim_untouched(step, turn)


def enriched_question(stage: Stage, step: Step) -> None:
    turn = _turn(step, _GATEWAY, said.QUESTION, stage.say)
    claim_enriched(step, turn, said.QUESTION_NOTE)


def italian_question(stage: Stage, step: Step) -> None:
    turn = _turn(step, _GATEWAY, said.ITALIAN_QUESTION, stage.say)
    claim_enriched(step, turn, said.ITALIAN_NOTE)


def tool_call(stage: Stage, step: Step) -> None:
    turn = _turn(step, _GATEWAY, said.TOOL_REQUEST, stage.say)
    tools = turn.of_type("execute_tool")
    step.claim(
        "The model calls bdh_query and the bridge traces it as a tool span",
        [span.name for span in tools] == [names.execute_tool("bdh_query")],
        ", ".join(f"{s.name}: {s.attributes.get(attr.TOOL_OUTCOME)}" for s in tools) or "no span",
    )
    results = [result for request in turn.requests for result in request.tool_results]
    titles = _titles(results[0]) if results else []
    step.claim(
        "The note it looked for is in the result that goes back to the model",
        said.TOOL_NOTE in titles,
        f"{len(titles)} notes: {'; '.join(titles[:3])} …" if titles else f"results: {results}",
    )


def answer_written(stage: Stage, step: Step) -> None:
    turn = _turn(step, "hermes -z", said.NEW_DECISION, stage.one_shot)
    writes = turn.of_type(names.WRITE)
    step.claim(
        "The answer is in the outbox before the process ends",
        writes and writes[0].outcome == "queued",
        attributes(writes[0], attr.WRITE_OUTCOME, attr.WRITE_ID) if writes else "no write span",
    )
    delivered = stage.wait_for_span(turn, names.DELIVER)
    step.claim(
        "The worker delivers it after Hermes has gone, in the same trace",
        delivered and delivered.outcome == "delivered",
        attributes(
            delivered,
            attr.DELIVERY_OUTCOME,
            attr.DELIVERY_ATTEMPT,
            attr.DELIVERY_NEW_CONCEPTS,
            attr.DELIVERY_MERGED_CONCEPTS,
        )
        if delivered
        else "no delivery span",
    )
    titles = [str(node.get("title")) for node in stage.graph("/api/graph").get("nodes", [])]
    learned = [title for title in titles if "spare siren" in title]
    step.claim(
        "The graph has a note of it now",
        learned,
        learned[0] if learned else f"none of {len(titles)} notes",
    )


def answer_recalled(stage: Stage, step: Step) -> None:
    turn = _turn(step, "hermes chat -Q -q, a new session", said.RECALL, stage.chat)
    words = [word for word in said.RECALLED_WORDS if word in turn.context]
    step.claim(
        "What was written a moment ago reaches the model in another session",
        len(words) == len(said.RECALLED_WORDS),
        excerpt(turn.context, said.RECALLED_WORDS[0]) if turn.context else "no context",
    )


def blacklisted_prompt(stage: Stage, step: Step) -> None:
    turn = _turn(step, _GATEWAY, said.BLACKLISTED, stage.say)
    for path in ("read", "write"):
        gate = turn.gate("blacklist", path)
        step.claim(
            f"A rule of the blacklist stops the {path}",
            gate and gate.decision == "skip" and gate.reason == Reason.BLACKLISTED,
            decision(gate),
        )
    _claim_untouched(step, turn)


def cron_turn(stage: Stage, step: Step) -> None:
    created = stage.hermes(
        "cron", "create", "every 2h", said.CRON_PROMPT, "--name", "report", "--deliver", "local"
    )
    jobs = json.loads((stage.home.root / "cron" / "jobs.json").read_text(encoding="utf-8"))["jobs"]
    if not jobs:
        step.claim("Hermes takes the job", False, created.output)
        return
    job_id = str(jobs[0]["id"])
    turn = _turn(
        step, "hermes cron run", said.CRON_PROMPT, lambda prompt: stage.run_job(job_id, prompt)
    )
    for path in ("read", "write"):
        gate = turn.gate("cron", path)
        step.claim(
            f"A job that didn't opt in may not {path}",
            gate and gate.decision == "skip" and gate.reason == Reason.CRON_NOT_OPTED_IN,
            decision(gate),
        )
    _claim_untouched(step, turn)


def graph_killed(stage: Stage, step: Step) -> None:
    stage.processes.kill("graph")
    turn = _turn(step, f"{_GATEWAY}; the graph server was killed", said.WITHOUT_GRAPH, stage.say)
    asked = turn.of_type("retrieval")
    step.claim(
        "The read fails within its deadline of 2 s and says so",
        asked and all(span.failed and _seconds(span) < 2.5 for span in asked),
        "; ".join(
            f"{attributes(span, attr.RETRIEVAL_OUTCOME)} after {_seconds(span) * 1000:.0f} ms"
            for span in asked
        )
        or "no retrieval span",
    )
    step.claim("The turn goes on without context", turn.requests and not turn.context, step.answer)


#: Title and function of every step, in order.
STEPS: tuple[tuple[str, Play], ...] = (
    ("Small talk is left alone", small_talk),
    ("A question gets what the graph knows", enriched_question),
    ("The same in Italian", italian_question),
    ("The model asks the graph itself", tool_call),
    ("An answer is written to the graph", answer_written),
    ("… and read again in another session", answer_recalled),
    ("A blacklisted prompt neither reads nor writes", blacklisted_prompt),
    ("A cron job is denied unless it opts in", cron_turn),
    ("The graph is killed and the conversation goes on", graph_killed),
)


def _turn(step: Step, via: str, prompt: str, play: Callable[[str], PlayedTurn]) -> PlayedTurn:
    step.via, step.prompt = via, prompt
    turn = play(prompt)
    step.answer = turn.answer
    if turn.spans:
        step.trace_id = turn.root.trace_id
    scripted = next((one.text for one in said.ANSWERS if one.when == prompt), "")
    as_scripted = bool(scripted) and scripted in turn.answer
    step.claim("Hermes answers", as_scripted, "as scripted" if as_scripted else turn.answer)
    step.claim(
        "The turn left one trace",
        turn.spans,
        f"{len(turn.spans)} spans" if turn.spans else "no trace in the span store",
    )
    return turn


def claim_enriched(step: Step, turn: PlayedTurn, note: str) -> None:
    gate = turn.gate("relevance", "read")
    asked = turn.of_type("retrieval")
    step.claim(
        "The graph is asked and its answer is relevant enough",
        asked and gate and gate.decision == "allow",
        decision(gate)
        + (
            "; " + attributes(asked[0], attr.RETRIEVAL_HYBRID_TOP, attr.RETRIEVAL_VECTOR_TOP)
            if asked
            else ""
        ),
    )
    step.claim(
        "The model server's log shows that the note reached the model",
        note in turn.context,
        excerpt(turn.context, note) if turn.context else "no context block in the request",
    )


def _claim_untouched(step: Step, turn: PlayedTurn) -> None:
    asked, written = turn.of_type("retrieval"), turn.of_type(names.WRITE)
    step.claim(
        "The graph is not asked, and the model sees the message as it was",
        turn.requests and not asked and not turn.context,
        f"{len(asked)} retrievals; {len(turn.requests)} requests to the model, "
        f"{'one with' if turn.context else 'none with'} a context block",
    )
    step.claim("Nothing is written", not written, f"{len(written)} writes")


def attributes(span: StoredSpan, *keys: str) -> str:
    def shown(value: object) -> str:
        return f"{value:.2f}" if isinstance(value, float) else str(value)

    return ", ".join(
        f"{key.removeprefix('bdh.')} {shown(span.attributes[key])}"
        for key in keys
        if key in span.attributes
    )


def _seconds(span: StoredSpan) -> float:
    return (span.duration_ns or 0) / 1e9


def _titles(result: str) -> list[str]:
    """The titles in what bdh_query gave back, best first."""
    notes = json.loads(result).get("notes", [])
    return [str(note.get("title")) for note in notes]


def excerpt(text: str, around: str, width: int = 160) -> str:
    """The line of ``text`` with ``around``, from there on; its beginning where it doesn't occur."""
    start = max(text.find(around), 0)
    line = text[start:].partition("\n")[0]
    return ("…" if start else "") + (line if len(line) <= width else line[: width - 1] + "…")
