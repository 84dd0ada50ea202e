"""What one span says, in a few words: the facts that answer "why", most telling first.

Used by the tree and by whatever else shows a span on one line. All text is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.escape import one_line
from bdh_otel.reader import StoredSpan

Description = tuple[list[str], list[str]]
"""Facts for the span's own line, and quotations for lines below it."""


def label(span: StoredSpan) -> str:
    """The span's name as an operator reads it: a gate's with its path."""
    if span.gate:
        return f"{span.path or 'gate':<5} {span.gate:<12}"
    return span.name


def describe(span: StoredSpan) -> Description:
    """Facts (the first is the outcome or reason, where there is one) and quotations."""
    facts, quotes = _DESCRIBERS.get(span.type, _other)(_Facts(span))
    return [fact for fact in facts if fact], [quote for quote in quotes if quote]


class _Facts:
    """A span's attributes, ready to be put into words; absent ones give empty strings."""

    def __init__(self, span: StoredSpan) -> None:
        self.span = span
        self._own = span.attributes

    def __call__(self, name: str) -> Any:
        return self._own.get(name)

    def text(self, name: str, before: str = "", after: str = "", limit: int = 80) -> str:
        value = self._own.get(name)
        return "" if value in (None, "") else f"{before}{one_line(str(value), limit)}{after}"

    def number(self, name: str, before: str = "", after: str = "") -> str:
        value = self._own.get(name)
        return "" if value is None else f"{before}{_number(value)}{after}"

    def some(self, name: str, one: str, many: str) -> str:
        """``3 notes``; nothing for none."""
        value = self._own.get(name)
        return f"{_number(value)} {one if value == 1 else many}" if value else ""

    def flag(self, name: str, yes: str, no: str = "") -> str:
        value = self._own.get(name)
        return "" if value is None else yes if value else no

    def quote(self, name: str, before: str = "", limit: int = 160) -> str:
        value = self._own.get(name)
        if not value:
            return ""
        texts = value if isinstance(value, list) else [value]
        return before + ", ".join(f"“{one_line(str(text), limit)}”" for text in texts[:8])


def _turn(of: _Facts) -> Description:
    return (
        [
            of.text(attr.TURN_ROUTE),
            of.text(attr.TURN_READ_OUTCOME, "read: "),
            of.text(attr.TURN_WRITE_OUTCOME, "write: "),
            of.text(attr.TURN_CLOSE_REASON, "closed by "),
        ],
        [of.quote(attr.TURN_MESSAGE)],
    )


def _gate(of: _Facts) -> Description:
    value, bound, unit = of(attr.GATE_VALUE), of(attr.GATE_THRESHOLD), of.text(attr.GATE_UNIT)
    measured = ""
    if value is not None and bound is not None:
        relation = "<" if value < bound else "≥"
        digits = 2 if _number(value) != _number(bound) or value == bound else 4
        shown = f"{_number(value, digits)} {relation} {_number(bound, digits)}"
        measured = f"{shown}{unit and ' ' + unit}"
    elif value is not None:
        measured = f"{_number(value)}{unit and ' ' + unit}"
    line = of.number(attr.GATE_RULE_LINE, "line ")
    rule = of.quote(attr.GATE_RULE, "rule ", 120)
    return (
        [
            of.text(attr.GATE_REASON),
            measured,
            " ".join(part for part in (rule, line and f"({line})" if rule else line) if part),
            of.some(attr.GATE_RULE_ERRORS, "rule unusable", "rules unusable"),
            of.number(attr.GATE_RETRY_IN, "probed again in ", " s"),
        ],
        [],
    )


def _route(of: _Facts) -> Description:
    def versus(what: str, probability: str, threshold: str) -> str:
        """``store no (0.657 of 0.66)``: rounding must not hide on which side it is."""
        p, bound = of(probability), of(threshold)
        if not isinstance(p, int | float) or not isinstance(bound, int | float):
            return of.number(probability, f"{what} ", of.number(threshold, " of "))
        told = f"{p:.3f}" if abs(p - bound) < 0.01 else _number(p)
        return f"{what} {'yes' if p >= bound else 'no'} ({told} of {_number(bound)})"

    in_doubt = of(attr.ROUTE_REASON) == "in_doubt"
    return (
        [
            of.text(attr.ROUTE_ROUTER),
            of.text(attr.ROUTE_REASON),
            versus("retrieve", attr.ROUTE_RETRIEVE_PROBABILITY, attr.ROUTE_RETRIEVE_THRESHOLD),
            versus("store", attr.ROUTE_STORE_PROBABILITY, attr.ROUTE_STORE_THRESHOLD),
            "" if in_doubt else of.flag(attr.ROUTE_GREY_ZONE, "grey zone"),
        ],
        [of.quote(attr.ROUTE_FEATURES, "moved most by ", limit=400)],
    )


def _rewrite(of: _Facts) -> Description:
    return (
        [
            of.flag(attr.REWRITE_FALLBACK, "fallback: no provider answered"),
            of.flag(attr.REWRITE_SHOULD_RETRIEVE, "retrieve", "don't retrieve"),
            of.flag(attr.REWRITE_STORE_CANDIDATE, "store", "don't store"),
            of.number(attr.REWRITE_CONFIDENCE, "confidence "),
            of.some(attr.REWRITE_VARIANTS, "query", "queries"),
            of.some(attr.REWRITE_HOPS, "hop", "hops"),
        ],
        [of.quote(attr.REWRITE_QUERIES), of.quote(attr.REWRITE_REASON, "because ")],
    )


def _chat(of: _Facts) -> Description:
    tokens = of.number(attr.INPUT_TOKENS, "", " tokens in")
    return (
        [
            of.text(attr.HOP_OUTCOME),
            of.text(attr.PROVIDER_NAME),
            of.number(attr.HOP_INDEX, "hop "),
            of.number(attr.HTTP_STATUS_CODE, "HTTP "),
            of.number(attr.HOP_RETRY_AFTER, "retry after ", " s"),
            " ".join(part for part in (tokens, of.number(attr.OUTPUT_TOKENS, "", " out")) if part),
        ],
        [of.quote(attr.HOP_ERROR)],
    )


def _retrieval(of: _Facts) -> Description:
    runner_up = of.number(attr.RETRIEVAL_HYBRID_SECOND, " (second ", ")")
    terms = of.number(attr.RETRIEVAL_MATCHED_TERMS_COUNT, "terms ")
    asked = of.number(attr.RETRIEVAL_QUERY_TERMS, " of ")
    return (
        [
            of.text(attr.RETRIEVAL_OUTCOME),
            of.some(attr.RETRIEVAL_NOTES, "note", "notes"),
            of.number(attr.RETRIEVAL_HYBRID_TOP, "hybrid ", runner_up),
            of.number(attr.RETRIEVAL_VECTOR_TOP, "vector "),
            of.number(attr.RETRIEVAL_BM25_TOP, "bm25 "),
            terms and terms + asked + of.quote(attr.RETRIEVAL_MATCHED_TERMS, ": ", 30),
            of.flag(attr.RETRIEVAL_HYBRID_ENABLED, "", "no hybrid search"),
            of.number(attr.HTTP_STATUS_CODE, "HTTP ") if of.span.failed else "",
        ],
        [of.quote(attr.RETRIEVAL_QUERY), of.text(attr.RETRIEVAL_ERROR, limit=200)],
    )


def _context(of: _Facts) -> Description:
    return (
        [
            of.some(attr.CONTEXT_NOTES, "note given", "notes given") or "nothing given",
            of.some(attr.CONTEXT_CHARACTERS, "character", "characters"),
            of.number(attr.CONTEXT_ALREADY_PRESENT, "", " already in the conversation")
            if of(attr.CONTEXT_ALREADY_PRESENT)
            else "",
            of.number(attr.CONTEXT_LEFT_OUT, "", " left out") if of(attr.CONTEXT_LEFT_OUT) else "",
        ],
        [of.quote(attr.CONTEXT_TITLES, limit=60)],
    )


def _write(of: _Facts) -> Description:
    return (
        [
            of.text(attr.WRITE_OUTCOME),
            of.some(attr.WRITE_CHARACTERS, "character", "characters"),
            of.text(attr.WRITE_ID, "write "),
            of.flag(attr.WRITE_CONTEXT_REMOVED, "quoted context removed"),
        ],
        [of.quote(attr.WRITE_QUERY)],
    )


def _deliver(of: _Facts) -> Description:
    return (
        [
            of.text(attr.DELIVERY_OUTCOME),
            of.text(attr.DELIVERY_REASON),
            of.some(attr.DELIVERY_NEW_CONCEPTS, "new concept", "new concepts"),
            of.some(attr.DELIVERY_MERGED_CONCEPTS, "merged concept", "merged concepts"),
            of.some(attr.DELIVERY_HEBBIAN_UPDATES, "link strengthened", "links strengthened"),
            of.flag(attr.DELIVERY_DEGRADED, "degraded"),
            of.number(attr.DELIVERY_ATTEMPT, "attempt "),
            of.number(attr.DELIVERY_AGE, "", " s after it was queued"),
            of.number(attr.DELIVERY_RETRY_IN, "again in ", " s"),
            of.number(attr.HTTP_STATUS_CODE, "HTTP ") if of.span.failed else "",
        ],
        [of.text(attr.DELIVERY_ERROR, limit=200)],
    )


def _tool(of: _Facts) -> Description:
    return (
        [
            of.text(attr.TOOL_OUTCOME),
            of.some(attr.RETRIEVAL_NOTES, "note", "notes"),
            of.number(attr.RETRIEVAL_HYBRID_TOP, "hybrid "),
            of.some(attr.DELIVERY_NEW_CONCEPTS, "new concept", "new concepts"),
        ],
        [of.text(attr.TOOL_ARGUMENTS, limit=160)],
    )


def _synthesis(of: _Facts) -> Description:
    return (
        [
            of.text(attr.SYNTHESIS_OUTCOME),
            of.some(attr.SYNTHESIS_TURNS, "turn", "turns"),
            of.text(attr.SYNTHESIS_TRIGGER, "on "),
        ],
        [],
    )


def _borgee(of: _Facts) -> Description:
    lane = of.text(attr.BORGEE_LANE)
    parts, attempt = of(attr.BORGEE_PARTS), of(attr.BORGEE_ATTEMPT)
    return (
        [
            of.text(attr.BORGEE_OUTCOME),
            of.text(attr.BORGEE_OPERATION),
            of.text(attr.BORGEE_KIND),
            of.text(attr.BORGEE_CHANNEL, "in "),
            of.number(attr.BORGEE_RECEIPT, "receipt "),
            f"{lane} lane" if lane and lane != "ordinary" else "",
            of.number(attr.BORGEE_ATTEMPT, "attempt ") if attempt and attempt > 1 else "",
            of.number(attr.BORGEE_WAITED, "waited ", " s"),
            of.number(attr.BORGEE_PARTS, "", " messages") if parts and parts > 1 else "",
        ],
        [],
    )


def _other(of: _Facts) -> Description:
    """A type of span that this version doesn't know: everything of its own that it carries."""
    shown = (
        f"{name.removeprefix('bdh.')} {one_line(str(value), 60)}"
        for name, value in of.span.attributes.items()
        if name not in attr.CONTEXT and name != attr.ERROR_TYPE
    )
    return _first(shown, 8), []


def _first(items: Iterable[str], count: int) -> list[str]:
    return [item for _, item in zip(range(count), items, strict=False)]


def _number(value: Any, digits: int = 2) -> str:
    """Scores with two digits, counts in groups of three."""
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.{digits}f}" if abs(value) < 10 else f"{value:,.1f}"
    return f"{value:,.0f}" if isinstance(value, (int, float)) else one_line(str(value), 40)


_DESCRIBERS: dict[str, Callable[[_Facts], Description]] = {
    names.TURN: _turn,
    "bdh.gate": _gate,
    names.ROUTE: _route,
    names.REWRITE: _rewrite,
    "chat": _chat,
    "retrieval": _retrieval,
    names.CONTEXT: _context,
    names.WRITE: _write,
    names.DELIVER: _deliver,
    "execute_tool": _tool,
    names.SYNTHESIS: _synthesis,
    names.BORGEE_RECEIVE: _borgee,
    names.BORGEE_CLAIM: _borgee,
    names.BORGEE_DISPATCH: _borgee,
    names.BORGEE_SEND: _borgee,
}
