"""Why a turn went as it did, in plain sentences.

Each sentence has a style of :mod:`bdh_bridge.operator.plain`; what comes from people or peers is
escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bdh_bridge.operator import wording
from bdh_bridge.operator.plain import BAD, GOOD, MUTED, SKIP, age, count, plain
from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.reader import StoredSpan


@dataclass(frozen=True, slots=True)
class Sentence:
    """``mark`` is one character: what became of the path that ``subject`` names."""

    mark: str
    style: str
    subject: str
    text: str


def explain(spans: Sequence[StoredSpan], late: Sequence[StoredSpan] = ()) -> list[Sentence]:
    """Sentences on reading, routing and writing, for the spans of one turn's trace."""
    root = next((span for span in spans if span.name == names.TURN), None)
    if root is None:
        return [Sentence("·", MUTED, "Trace", "no turn of the conversation: see the spans below")]
    sentences = [_read(root, spans), *_rewrite(spans), _write(root, spans, late), *_tools(spans)]
    if root.end_ns is None:
        sentences.append(Sentence("…", SKIP, "Turn", "is still open"))
    reason = str(root.attributes.get(attr.TURN_CLOSE_REASON, ""))
    if reason not in ("", "end_of_turn"):
        how = wording.clause(reason)
        sentences.append(Sentence("·", MUTED, "Turn", f"ended otherwise than usual: {how}"))
    return sentences


def why(span: StoredSpan) -> str:
    """One gate's decision as a clause with the figures it rests on."""
    text = wording.clause(span.reason or "")
    get = span.attributes.get
    value, bound = get(attr.GATE_VALUE), get(attr.GATE_THRESHOLD)
    if isinstance(value, int | float) and isinstance(bound, int | float):
        relation = "<" if value < bound else "≥"
        unit = wording.unit(str(get(attr.GATE_UNIT) or ""))
        text += f": {unit} {_figure(value)} {relation} {_figure(bound)}".replace(":  ", ": ")
    rule, line = get(attr.GATE_RULE), get(attr.GATE_RULE_LINE)
    if rule:
        text += f": “{plain(str(rule), 80)}”"
    if line is not None:
        text += f" (line {line})" if rule else f": line {line}"
    if get(attr.GATE_RETRY_IN) is not None:
        text += f", tried again in {age(float(get(attr.GATE_RETRY_IN) or 0))}"
    return text


def _read(root: StoredSpan, spans: Sequence[StoredSpan]) -> Sentence:
    skip = next((s for s in spans if s.path == "read" and s.decision == "skip"), None)
    # A tool's query is the model's own doing: it hangs below the tool's span.
    asked = [s for s in spans if s.type == "retrieval" and s.parent_id == root.span_id]
    failed = next((s for s in asked if s.failed), None)
    context = next((s for s in spans if s.name == names.CONTEXT), None)
    if skip is not None and skip.gate == "relevance":
        text = f"asked the graph, gave nothing: {why(skip)}{_scores(asked)}"
        return Sentence("✗", SKIP, "Read", text)
    if skip is not None:
        return Sentence(
            "✗", SKIP, "Read", f"skipped by gate {plain(skip.gate or '', 40)}: {why(skip)}"
        )
    if context is not None and context.attributes.get(attr.CONTEXT_NOTES):
        return Sentence("✓", GOOD, "Read", _given(context) + _basis(spans))
    if failed is not None and all(span.failed for span in asked):
        error = failed.attributes.get(attr.RETRIEVAL_ERROR) or failed.status_message or ""
        what = wording.short(failed.outcome or failed.error_type or "failed")
        detail = f" ({plain(str(error), 120)})" if error else ""
        return Sentence(
            "!", BAD, "Read", f"the graph failed: {what}{detail}; the turn went on without"
        )
    outcome = str(root.attributes.get(attr.TURN_READ_OUTCOME, ""))
    if not outcome and root.end_ns is None:
        return Sentence("…", SKIP, "Read", "not decided yet")
    return Sentence("·", MUTED, "Read", wording.clause(outcome) if outcome else "nothing recorded")


def _given(context: StoredSpan) -> str:
    get = context.attributes.get
    notes = int(get(attr.CONTEXT_NOTES) or 0)
    text = f"gave {count(notes, 'note')} to the model"
    already = get(attr.CONTEXT_ALREADY_PRESENT)
    if already:
        text += f", {already} more were in the conversation already"
    return text


def _basis(spans: Sequence[StoredSpan]) -> str:
    gate = next((s for s in spans if s.gate == "relevance" and s.decision == "allow"), None)
    return f": {why(gate)}" if gate is not None else ""


def _scores(asked: Sequence[StoredSpan]) -> str:
    """The scores beside the one that decided, so that the whole evidence is in one line."""
    best = max(asked, key=lambda s: s.attributes.get(attr.RETRIEVAL_HYBRID_TOP) or 0, default=None)
    if best is None:
        return ""
    get = best.attributes.get
    parts = []
    if get(attr.RETRIEVAL_HYBRID_TOP) is not None:
        parts.append(f"hybrid {_figure(get(attr.RETRIEVAL_HYBRID_TOP))}")
    terms = get(attr.RETRIEVAL_MATCHED_TERMS_COUNT)
    if terms is not None:
        of = get(attr.RETRIEVAL_QUERY_TERMS)
        parts.append(f"{terms}{f' of {of}' if of else ''} terms matched")
    return f" ({', '.join(parts)})" if parts else ""


def _rewrite(spans: Sequence[StoredSpan]) -> list[Sentence]:
    rewrite = next((s for s in spans if s.name == names.REWRITE), None)
    hops = [s for s in spans if s.type == "chat"]
    if rewrite is None and not hops:
        return []
    told = []
    for span in hops:
        provider = plain(str(span.attributes.get(attr.PROVIDER_NAME) or span.name), 40)
        status = span.attributes.get(attr.HTTP_STATUS_CODE)
        code = f" {status}" if status and span.outcome == "http_error" else ""
        told.append(f"{provider} {wording.hop(span.outcome or '')}{code}")
    answered = any(s.outcome == "ok" for s in hops)
    if rewrite is None or rewrite.attributes.get(attr.REWRITE_FALLBACK) or not answered:
        text = "no provider answered, the mechanical gate decided: " + ", ".join(told)
        return [Sentence("!", BAD, "Rewrite", text)]
    get = rewrite.attributes.get
    verdict = "retrieve" if get(attr.REWRITE_SHOULD_RETRIEVE) else "don't retrieve"
    store = "store" if get(attr.REWRITE_STORE_CANDIDATE) else "don't store"
    fallback = len(hops) > 1
    text = f"{', '.join(told)}: {verdict}, {store}"
    reason = get(attr.REWRITE_REASON)
    if reason:
        text += f" (“{plain(str(reason), 100)}”)"
    return [Sentence("·", SKIP if fallback else MUTED, "Rewrite", text)]


def _write(root: StoredSpan, spans: Sequence[StoredSpan], late: Sequence[StoredSpan]) -> Sentence:
    deliveries = [s for s in spans if s.name == names.DELIVER] + list(late)
    if deliveries:
        return _delivery(deliveries[-1])
    written = [s for s in spans if s.name == names.WRITE]
    if written:
        last = written[-1]
        if last.failed or last.outcome in ("refused", "failed"):
            detail = plain(last.status_message or last.error_type or last.outcome or "", 120)
            return Sentence("!", BAD, "Write", f"LOST: it could not be kept ({detail})")
        return Sentence("…", SKIP, "Write", "safe in the outbox, not delivered yet")
    skips = [s for s in spans if s.path == "write" and s.decision == "skip"]
    if skips:
        last = skips[-1]
        text = f"skipped by gate {plain(last.gate or '', 40)}: {why(last)}"
        return Sentence("✗", SKIP, "Write", text)
    outcome = str(root.attributes.get(attr.TURN_WRITE_OUTCOME, ""))
    if not outcome and root.end_ns is None:
        return Sentence("…", SKIP, "Write", "no answer yet")
    return Sentence("·", MUTED, "Write", wording.clause(outcome) if outcome else "nothing recorded")


def _delivery(span: StoredSpan) -> Sentence:
    get = span.attributes.get
    outcome = str(get(attr.DELIVERY_OUTCOME, span.outcome or ""))
    detail = str(get(attr.DELIVERY_ERROR) or get(attr.DELIVERY_REASON) or "")
    because = f": {plain(detail, 120)}" if detail else ""
    if outcome == "delivered":
        concepts = get(attr.DELIVERY_NEW_CONCEPTS) or 0
        links = get(attr.DELIVERY_HEBBIAN_UPDATES) or 0
        text = f"the graph learned it: {count(concepts, 'new concept')}, {count(links, 'link')} "
        text += "strengthened"
        if get(attr.DELIVERY_DEGRADED):
            return Sentence("!", SKIP, "Write", f"{text}, but its model or encoder failed")
        return Sentence("✓", GOOD, "Write", text)
    if outcome == "retry":
        return Sentence(
            "…", SKIP, "Write", f"safe in the outbox, the graph can't be reached{because}"
        )
    if outcome == "unconfirmed":
        text = f"sent in full, no answer in time: most likely learned{because}"
        return Sentence("…", SKIP, "Write", text)
    if outcome in ("in_doubt", "quarantined"):
        text = f"nobody knows whether the graph learned it ({outcome.replace('_', ' ')}){because}"
        return Sentence("!", BAD, "Write", f"{text}; decide in Outbox")
    return Sentence("!", BAD, "Write", f"delivery failed{because}; its text is kept in Outbox")


def _tools(spans: Sequence[StoredSpan]) -> list[Sentence]:
    found = []
    for span in spans:
        if span.type == "execute_tool":
            style = BAD if span.failed else MUTED
            name = plain(str(span.attributes.get(attr.TOOL_NAME) or span.name), 40)
            outcome = plain(str(span.attributes.get(attr.TOOL_OUTCOME) or span.outcome or ""), 40)
            text = f"the model called {name}: {outcome}"
            found.append(Sentence("!" if span.failed else "·", style, "Tool", text))
    return found[:3]


def _figure(value: object) -> str:
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.2f}"
    return f"{value:,.0f}" if isinstance(value, int | float) else plain(str(value), 20)
