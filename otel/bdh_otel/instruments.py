"""Every metric that there is: one declaration each, as :mod:`bdh_otel.attributes` does for spans.

Counters and histograms are tallied from the stored spans, gauges are read off the stores, so the
agent's process spends nothing on them. Where the semantic conventions have an instrument (GenAI),
its name, unit and bucket bounds are taken from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from bdh_otel import attributes as attr

Kind = Literal["counter", "gauge", "histogram"]

#: Seconds; those that the GenAI conventions advise for a model's operations.
_SECONDS = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
)  # fmt: skip
_TOKENS = tuple(float(4**power) for power in range(14))
_SCORES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_AGES = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 21_600.0, 86_400.0, 604_800.0)


@dataclass(frozen=True, slots=True)
class Instrument:
    """``unit`` is UCUM; ``bounds`` are the upper bounds of a histogram's buckets but the last."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    attributes: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


_table: dict[str, Instrument] = {}


def _declare(
    name: str,
    kind: Kind,
    unit: str,
    meaning: str,
    attributes: tuple[str, ...] = (),
    bounds: tuple[float, ...] = (),
) -> Instrument:
    if name in _table:
        raise ValueError(f"{name} is declared twice")
    _table[name] = Instrument(name, kind, unit, meaning, attributes, bounds)
    return _table[name]


TURNS = _declare(
    "bdh.turns",
    "counter",
    "{turn}",
    "Turns that ended",
    (attr.TURN_ROUTE, attr.TURN_CLOSE_REASON, attr.PLATFORM),
)
DECISIONS = _declare(
    "bdh.gate.decisions",
    "counter",
    "{decision}",
    "Decisions of the gates",
    (attr.GATE_NAME, attr.GATE_PATH, attr.GATE_DECISION, attr.GATE_REASON),
)
HOPS = _declare(
    "bdh.hops",
    "counter",
    "{hop}",
    "Providers of the chain visited, those left out included",
    (attr.PROVIDER_NAME, attr.HOP_OUTCOME),
)
OPERATION_DURATION = _declare(
    "gen_ai.client.operation.duration",
    "histogram",
    "s",
    "How long a provider that was asked took",
    (attr.OPERATION_NAME, attr.PROVIDER_NAME, attr.REQUEST_MODEL, attr.ERROR_TYPE),
    _SECONDS,
)
TOKEN_USAGE = _declare(
    "gen_ai.client.token.usage",
    "histogram",
    "{token}",
    "Tokens that a provider counted",
    (attr.OPERATION_NAME, attr.PROVIDER_NAME, attr.REQUEST_MODEL, attr.TOKEN_TYPE),
    _TOKENS,
)
REWRITE_DURATION = _declare(
    "bdh.rewrite.duration",
    "histogram",
    "s",
    "Classification and rewrite, the whole chain",
    (attr.REWRITE_FALLBACK,),
    _SECONDS,
)
RETRIEVAL_DURATION = _declare(
    "bdh.retrieval.duration",
    "histogram",
    "s",
    "One query to the graph",
    (attr.RETRIEVAL_OUTCOME,),
    _SECONDS,
)
HYBRID_TOP = _declare(
    "bdh.retrieval.hybrid_top",
    "histogram",
    "1",
    "Best hybrid score of a query, 0 to 1",
    (),
    _SCORES,
)
WRITES = _declare(
    "bdh.writes", "counter", "{write}", "Turns offered to the outbox", (attr.WRITE_OUTCOME,)
)
DELIVERIES = _declare(
    "bdh.deliveries",
    "counter",
    "{delivery}",
    "Changes of a write's state in its delivery",
    (attr.DELIVERY_OUTCOME, attr.DELIVERY_REASON),
)
DELIVERY_AGE = _declare(
    "bdh.delivery.age",
    "histogram",
    "s",
    "Age of a write when it was delivered",
    (),
    _AGES,
)
TOOL_CALLS = _declare(
    "bdh.tool.calls",
    "counter",
    "{call}",
    "Calls of the graph's tools by the model",
    (attr.TOOL_NAME, attr.TOOL_OUTCOME),
)
SYNTHESES = _declare(
    "bdh.syntheses", "counter", "{session}", "Sessions summarised", (attr.SYNTHESIS_OUTCOME,)
)
SPANS_STORED = _declare("bdh.spans.stored", "counter", "{span}", "Ended spans put into the store")
SPANS_DROPPED = _declare(
    "bdh.spans.dropped", "counter", "{span}", "Spans lost while the store could not be written"
)
SPANS_EXPORTED = _declare(
    "bdh.spans.exported", "counter", "{span}", "Spans that a backend took", (attr.EXPORT_ENDPOINT,)
)
SPANS_REFUSED = _declare(
    "bdh.spans.refused",
    "counter",
    "{span}",
    "Spans that a backend refused for good",
    (attr.EXPORT_ENDPOINT,),
)
SPANS_WAITING = _declare(
    "bdh.spans.waiting",
    "gauge",
    "{span}",
    "Spans that are yet to be sent to a backend",
    (attr.EXPORT_ENDPOINT,),
)
OUTBOX_WRITES = _declare(
    "bdh.outbox.writes", "gauge", "{write}", "Writes in the outbox", (attr.OUTBOX_STATE,)
)
OUTBOX_OLDEST = _declare(
    "bdh.outbox.oldest_age", "gauge", "s", "Age of the oldest write that waits for delivery"
)
BREAKERS = _declare(
    "bdh.breaker.active",
    "gauge",
    "{breaker}",
    "1 for the state that a peer's circuit breaker is in, 0 for the others",
    (attr.BREAKER_KEY, attr.BREAKER_STATE),
)

TABLE: Mapping[str, Instrument] = MappingProxyType(_table)
