"""What one span adds to the metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from bdh_otel import attributes as attr
from bdh_otel import instruments as metric
from bdh_otel import names
from bdh_otel.instruments import Instrument
from bdh_otel.reader import StoredSpan


class Observation(NamedTuple):
    """``value`` is added to a counter, or counted in a histogram."""

    instrument: Instrument
    attributes: dict[str, attr.Value]
    value: float = 1.0


#: Hops of the chain that cost nothing: nobody was asked.
_NOT_ASKED = frozenset({"no_credential", "circuit_open", "out_of_time"})


def observations(span: StoredSpan) -> Iterator[Observation]:
    """Observations of an ended span; none of a type that is not measured but its being stored."""
    yield Observation(metric.SPANS_STORED, {})
    tally = _TALLIES.get(span.type)
    if tally is not None:
        yield from tally(span)


def _turn(span: StoredSpan) -> Iterator[Observation]:
    yield _observed(metric.TURNS, span)


def _gate(span: StoredSpan) -> Iterator[Observation]:
    yield _observed(metric.DECISIONS, span)


def _hop(span: StoredSpan) -> Iterator[Observation]:
    yield _observed(metric.HOPS, span)
    if span.outcome in _NOT_ASKED:
        return
    yield _observed(metric.OPERATION_DURATION, span, _seconds(span))
    for kind, name in (("input", attr.INPUT_TOKENS), ("output", attr.OUTPUT_TOKENS)):
        tokens = span.attributes.get(name)
        if tokens is not None:
            counted = _observed(metric.TOKEN_USAGE, span, float(tokens))
            counted.attributes[attr.TOKEN_TYPE] = kind
            yield counted


def _rewrite(span: StoredSpan) -> Iterator[Observation]:
    yield _observed(metric.REWRITE_DURATION, span, _seconds(span))


def _retrieval(span: StoredSpan) -> Iterator[Observation]:
    yield _observed(metric.RETRIEVAL_DURATION, span, _seconds(span))
    score = span.attributes.get(attr.RETRIEVAL_HYBRID_TOP)
    if score is not None:
        yield _observed(metric.HYBRID_TOP, span, float(score))


def _write(span: StoredSpan) -> Iterator[Observation]:
    yield _observed(metric.WRITES, span)


def _deliver(span: StoredSpan) -> Iterator[Observation]:
    yield _observed(metric.DELIVERIES, span)
    age = span.attributes.get(attr.DELIVERY_AGE)
    if span.outcome == "delivered" and age is not None:
        yield _observed(metric.DELIVERY_AGE, span, float(age))


def _tool(span: StoredSpan) -> Iterator[Observation]:
    yield _observed(metric.TOOL_CALLS, span)


def _synthesis(span: StoredSpan) -> Iterator[Observation]:
    yield _observed(metric.SYNTHESES, span)


_TALLIES: dict[str, Callable[[StoredSpan], Iterator[Observation]]] = {
    names.TURN: _turn,
    names.gate("").strip(): _gate,
    names.chat(""): _hop,
    names.REWRITE: _rewrite,
    names.retrieval(""): _retrieval,
    names.WRITE: _write,
    names.DELIVER: _deliver,
    names.execute_tool("").strip(): _tool,
    names.SYNTHESIS: _synthesis,
}


def _observed(instrument: Instrument, span: StoredSpan, value: float = 1.0) -> Observation:
    """With those of the instrument's attributes that the span has."""
    given = span.attributes
    return Observation(
        instrument, {name: given[name] for name in instrument.attributes if name in given}, value
    )


def _seconds(span: StoredSpan) -> float:
    return max(0, span.duration_ns or 0) / 1e9
