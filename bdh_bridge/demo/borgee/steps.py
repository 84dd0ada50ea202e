"""The steps of the Borgee demo: what is written to the agent, what befalls it, what is claimed."""

from __future__ import annotations

import time
from collections.abc import Callable

from bdh_bridge.demo.borgee import conversation as said
from bdh_bridge.demo.borgee.conversation import GUILD, Message, answer_to
from bdh_bridge.demo.borgee.stage import BorgeeStage, ChatTurn
from bdh_bridge.demo.report import Step
from bdh_bridge.demo.stage import eventually
from bdh_bridge.demo.steps import attributes, claim_enriched
from bdh_bridge.text import flatten
from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.reader import StoredSpan

Play = Callable[[BorgeeStage, Step], None]

#: The way of a message that is answered and teaches the graph; each span is below the one before.
WAY = (names.BORGEE_RECEIVE, names.BORGEE_DISPATCH, names.TURN, names.WRITE, names.DELIVER)


def direct_message(stage: BorgeeStage, step: Step) -> None:
    turn = _told(stage, step, said.DIRECT)
    _claim_streamed(step, turn)
    claim_enriched(step, turn, said.DIRECT_NOTE)


def channel_message(stage: BorgeeStage, step: Step) -> None:
    turn = _told(stage, step, said.CHANNEL)
    _claim_streamed(step, turn)
    claim_enriched(step, turn, said.CHANNEL_NOTE)
    request = turn.requests[0]
    system = flatten(request.messages[0].get("content"))
    wanted = (f"[{said.CHANNEL.author}]", f"guild_id: {GUILD}")
    told = [mark for mark in wanted if mark in f"{request.user_message}\n{system}"]
    step.claim(
        "The model is told who speaks, and the ids that the tools need",
        len(told) == len(wanted),
        ", ".join(told) or "neither",
    )


def one_trace(stage: BorgeeStage, step: Step) -> None:
    turn = _told(stage, step, said.DECISION)
    step.trace_id = turn.trace_id
    delivered = stage.wait_for_span(turn, names.DELIVER)
    step.claim(
        "The answer is learned: the worker delivers it to the graph",
        delivered and delivered.outcome == "delivered",
        attributes(delivered, attr.DELIVERY_OUTCOME, attr.DELIVERY_NEW_CONCEPTS)
        if delivered
        else "no delivery span",
    )
    spans = stage.reader.trace(turn.trace_id)
    step.claim(
        f"One trace, from {WAY[0]} to {WAY[-1]}",
        _is_way(spans, WAY),
        " → ".join(WAY) if _is_way(spans, WAY) else ", ".join(span.name for span in spans),
    )
    known = {span.span_id for span in spans}
    roots = [span.name for span in spans if span.parent_id not in known]
    step.claim(
        "All of it hangs on the message",
        roots == [names.BORGEE_RECEIVE],
        f"{len(spans)} spans, roots: {', '.join(roots)}",
    )


def killed_in_a_turn(stage: BorgeeStage, step: Step) -> None:
    """Leaves a quarantined message and one behind it for :func:`operator_decides`."""
    _begin(step, said.INTERRUPTED)
    thinking = stage.model.hold(said.INTERRUPTED.text)
    first = stage.push(said.INTERRUPTED)
    asked = eventually(lambda: stage.requests(said.INTERRUPTED) or None)
    second = stage.push(said.BEHIND)
    eventually(lambda: True if stage.receipt(second) else None)
    before = stage.status(first), stage.status(second)
    stage.processes.kill("gateway")
    thinking.set()
    step.claim(
        "kill -9 in the middle of the turn: both messages are in the inbox on disk",
        asked and before == ("processing", "pending"),
        f"the model was thinking; the first was {before[0]}, the second {before[1]}",
    )
    began = time.monotonic()
    stage.start_gateway()
    seconds = time.monotonic() - began
    step.claim(
        "Started again, it quarantines the message whose fate nobody knows",
        stage.status(first) == "quarantined",
        f"{stage.status(first)}; back in the chat after {seconds:.1f} s",
    )
    elsewhere = stage.say(said.ELSEWHERE)
    step.claim(
        "Another channel goes on",
        elsewhere.answer == answer_to(said.ELSEWHERE),
        f"{said.ELSEWHERE.author} in {said.ELSEWHERE.channel} is answered: {elsewhere.answer!r}",
    )
    held = stage.receipt(first)
    number = held.ingest_seq if held else 0
    made_up = [r for r in stage.model.requests() if r.tools and r.scripted is None]
    step.claim(
        "Hermes makes up no turn in the conversations that were complete",
        not made_up,
        f"the model was asked for {len(made_up)} that nobody wrote",
    )
    listed = stage.operate(step, "inbox", "list").output
    step.claim(
        "The operator sees what is in doubt, and what waits behind it",
        "quarantined (process_died)" in listed and f"pending (behind {number})" in listed,
        f"receipt {number} and the one behind it are listed",
    )
    times = len(stage.requests(said.INTERRUPTED)), len(stage.requests(said.BEHIND))
    step.claim(
        "Nobody has run either of them again",
        times == (1, 0) and not stage.borgee.posts(said.INTERRUPTED.channel),
        f"the model was asked {times[0]}× for the first, {times[1]}× for the second; "
        f"{said.INTERRUPTED.channel} shows no answer",
    )


def operator_decides(stage: BorgeeStage, step: Step) -> None:
    _begin(step, said.INTERRUPTED)
    receipts = [r for r in stage.receipts() if r.channel_id == said.INTERRUPTED.channel]
    first, second = receipts
    number = str(first.ingest_seq)
    refused = stage.operate(step, "inbox", "requeue", number)
    step.claim(
        "It may repeat what it did, so it takes a confirmation",
        refused.status == 2 and stage.status(first.message_id) == "quarantined",
        f"exit status {refused.status}, {stage.status(first.message_id)} as before",
    )
    accepted = stage.operate(step, "inbox", "requeue", number, "--may-repeat-effects")
    step.claim(
        "Confirmed, the running gateway takes it up",
        accepted.status == 0 and "no gateway is running" not in accepted.output,
        f"exit status {accepted.status}",
    )
    turn = stage.answered(said.INTERRUPTED, first.message_id)
    behind = stage.answered(said.BEHIND, second.message_id)
    shown = stage.borgee.contents(said.INTERRUPTED.channel)
    step.answer = shown[0] if shown else ""
    step.claim(
        "It is answered once, and then the one behind it",
        shown == [answer_to(said.INTERRUPTED), answer_to(said.BEHIND)],
        f"{len(shown)} messages in {said.INTERRUPTED.channel}; the second: {shown[-1:]}",
    )
    step.claim(
        "Both ran on evidence, and the inbox knows how often",
        (turn.receipt.attempt, behind.receipt.attempt) == (2, 1)
        and turn.receipt.outcome == behind.receipt.outcome == "turn_ran",
        f"receipt {number}: {turn.receipt.outcome} at attempt {turn.receipt.attempt}; "
        f"{behind.receipt.ingest_seq}: {behind.receipt.outcome} at attempt "
        f"{behind.receipt.attempt}",
    )


def clean_stop(stage: BorgeeStage, step: Step) -> None:
    began = time.monotonic()
    status = stage.processes.end("gateway")
    step.claim(
        "Asked to end, the gateway ends and leaves the chat",
        status in (0, 1) and not stage.borgee.is_online(),
        # Hermes ends with 1 after any signal, so that a service manager would start it again.
        f"exit status {status} after {time.monotonic() - began:.1f} s",
    )
    stage.operate(step, "status")
    counts = stage.inbox.counts()
    step.claim(
        "Every message has its end",
        set(counts) == {"completed"},
        ", ".join(f"{number} {status.value}" for status, number in counts.items()),
    )
    locks = [path.name for path in stage.home.root.rglob("borgee-*.lock")]
    step.claim(
        "The locks of the home and of the agent are free", not locks, "; ".join(locks) or "no lock"
    )


#: Title and function of every step, in order.
STEPS: tuple[tuple[str, Play], ...] = (
    ("A direct message: the answer can be read while it is written", direct_message),
    ("The same in a channel, in Italian", channel_message),
    ("One trace from the chat to the graph", one_trace),
    ("The gateway is killed in the middle of a turn", killed_in_a_turn),
    ("An operator decides", operator_decides),
    ("The gateway is stopped", clean_stop),
)


def _begin(step: Step, message: Message) -> None:
    step.via = f"Borgee, {'direct message' if message.private else f'channel {message.channel}'}"
    step.speaker, step.prompt = message.author, message.text


def _told(stage: BorgeeStage, step: Step, message: Message) -> ChatTurn:
    _begin(step, message)
    turn = stage.say(message)
    step.answer = turn.answer
    as_scripted = turn.answer == answer_to(message)
    step.claim("Hermes answers", as_scripted, "as scripted" if as_scripted else turn.answer)
    receipt = turn.receipt
    step.claim(
        "The receipt is completed on evidence that a turn ran",
        receipt.status == "completed" and receipt.outcome == "turn_ran",
        f"receipt {receipt.ingest_seq}: {receipt.status.value}, {receipt.outcome}",
    )
    return turn


def _claim_streamed(step: Step, turn: ChatTurn) -> None:
    sizes = [len(text) for text in turn.versions]
    step.claim(
        "The chat shows the answer growing: one message, edited",
        len(sizes) > 2 and sizes[0] < sizes[-1],
        f"{len(sizes) - 1} edits, characters: {' → '.join(map(str, sizes))}",
    )


def _is_way(spans: list[StoredSpan], way: tuple[str, ...]) -> bool:
    """Whether the spans named in ``way`` are there, each below the one before it."""
    by_id = {span.span_id: span for span in spans}
    reached = next((span for span in spans if span.name == way[-1]), None)
    for name in reversed(way[:-1]):
        while reached is not None and reached.name != name:
            reached = by_id.get(str(reached.parent_id))
    return reached is not None
