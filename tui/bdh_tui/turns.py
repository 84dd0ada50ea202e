"""A turn of the conversation on one line: what its trace adds up to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.reader import StoredSpan

Mark = Literal["allow", "skip", "failed", "open"]

#: Write states that are on their way, and those that need somebody's look.
WAITING = frozenset({"queued", "spooled", "retry", "unconfirmed"})
TROUBLE = frozenset({"refused", "failed", "in_doubt", "quarantined"})


class GateMark(NamedTuple):
    """One gate's answer, or (gate ``graph``) how the graph was reached."""

    gate: str
    path: str
    mark: Mark
    reason: str


@dataclass(frozen=True, slots=True)
class TurnSummary:
    """What the list shows and filters by. Times are Unix nanoseconds, ``end_ns`` None while open.

    ``read`` and ``write`` say how the two paths ended, as reason or outcome codes; ``hybrid`` and
    ``vector`` are the best scores of its retrievals, None where there was none.
    """

    trace_id: str
    seq: int
    start_ns: int
    end_ns: int | None
    session: str
    platform: str
    model: str
    message: str
    route: str
    read: str
    write: str
    close_reason: str
    gates: tuple[GateMark, ...]
    hybrid: float | None = None
    vector: float | None = None
    terms: int | None = None
    notes: int = 0
    titles: tuple[str, ...] = ()
    providers: tuple[tuple[str, str], ...] = ()
    """Provider and outcome of every hop."""
    failures: tuple[str, ...] = ()
    """What failed, as ``{type of span}: {error type}``."""
    spans: int = 0
    sort: tuple[int, int] = field(default=(0, 0))

    @property
    def duration_ns(self) -> int | None:
        return None if self.end_ns is None else self.end_ns - self.start_ns

    def gates_of(self, path: str) -> tuple[GateMark, ...]:
        return tuple(gate for gate in self.gates if gate.path == path)


def summarise(spans: Sequence[StoredSpan], late: Iterable[StoredSpan] = ()) -> TurnSummary | None:
    """The turn that ``spans``, one whole trace in the order of its starts, amount to; None if
    its root isn't among them. ``late`` are deliveries that left in traces of their own."""
    root = next((span for span in spans if span.name == names.TURN), None)
    if root is None:
        return None
    deliveries = [span for span in spans if span.name == names.DELIVER]
    deliveries += sorted(late, key=lambda span: span.start_ns)
    retrievals = [span for span in spans if span.type == "retrieval"]
    contexts = [span for span in spans if span.name == names.CONTEXT]
    titles: list[str] = []
    for span in contexts:
        titles += span.attributes.get(attr.CONTEXT_TITLES) or ()
    own = root.attributes
    return TurnSummary(
        trace_id=root.trace_id,
        seq=root.seq,
        start_ns=root.start_ns,
        end_ns=root.end_ns,
        session=root.session or "",
        platform=root.platform or "",
        model=str(own.get(attr.REQUEST_MODEL, "")),
        message=str(own.get(attr.TURN_MESSAGE, "")),
        route=str(own.get(attr.TURN_ROUTE, "")),
        read=str(own.get(attr.TURN_READ_OUTCOME, "")),
        write=_write_state(root, spans, deliveries),
        close_reason=str(own.get(attr.TURN_CLOSE_REASON, "")),
        gates=gate_marks(spans),
        hybrid=_best(retrievals, attr.RETRIEVAL_HYBRID_TOP),
        vector=_best(retrievals, attr.RETRIEVAL_VECTOR_TOP),
        terms=_most(retrievals, attr.RETRIEVAL_MATCHED_TERMS_COUNT),
        notes=sum(int(span.attributes.get(attr.CONTEXT_NOTES) or 0) for span in contexts),
        titles=tuple(titles),
        providers=tuple(
            (str(span.attributes.get(attr.PROVIDER_NAME, "")), span.outcome or "")
            for span in spans
            if span.type == "chat"
        ),
        failures=tuple(
            f"{span.type}: {span.error_type or 'failed'}"
            for span in [*spans, *late]
            if span.failed and span is not root
        ),
        spans=len(spans),
        sort=(root.start_ns, root.seq),
    )


def gate_marks(spans: Iterable[StoredSpan]) -> tuple[GateMark, ...]:
    """The gates in the order in which they were asked.

    A model that calls tools answers several times in a turn, and the write gates are asked each
    time: the last round is what counts.
    """
    rounds: dict[str, list[GateMark]] = {"read": [], "write": []}
    for span in spans:
        if span.gate:
            path = span.path or "read"
            mark: Mark = "skip" if span.decision == "skip" else "allow"
            current = rounds.setdefault(path, [])
            if any(one.gate == span.gate for one in current):
                current.clear()
            current.append(GateMark(span.gate, path, mark, span.reason or ""))
        elif span.type == "retrieval" and span.failed and span.parent_id:
            rounds["read"].append(GateMark("graph", "read", "failed", span.outcome or ""))
        elif span.name == names.WRITE and span.failed:
            rounds["write"].append(GateMark("outbox", "write", "failed", span.outcome or ""))
    return tuple(mark for marks in rounds.values() for mark in marks)


def late_deliveries(spans: Iterable[StoredSpan]) -> dict[str, list[StoredSpan]]:
    """Deliveries that left in a trace of their own, by the trace of the turn they belong to."""
    found: dict[str, list[StoredSpan]] = {}
    for span in spans:
        if span.name == names.DELIVER:
            for link in span.links:
                found.setdefault(link.trace_id, []).append(span)
    return found


def _write_state(
    root: StoredSpan, spans: Sequence[StoredSpan], deliveries: Sequence[StoredSpan]
) -> str:
    """The furthest that the turn's write got: delivery, outbox, or the reason for none."""
    if deliveries:
        last = deliveries[-1]
        return str(last.attributes.get(attr.DELIVERY_OUTCOME, last.outcome or ""))
    written = [span for span in spans if span.name == names.WRITE]
    if written:
        return written[-1].outcome or ""
    return str(root.attributes.get(attr.TURN_WRITE_OUTCOME, ""))


def _best(spans: Iterable[StoredSpan], name: str) -> float | None:
    values = [span.attributes[name] for span in spans if _is_number(span.attributes.get(name))]
    return float(max(values)) if values else None


def _most(spans: Iterable[StoredSpan], name: str) -> int | None:
    best = _best(spans, name)
    return None if best is None else int(best)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
