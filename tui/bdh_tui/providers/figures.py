"""How each provider of the chain did in a window, read from the store and the shared state."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bdh_otel import attributes as attr
from bdh_otel.reader import SpanReader
from bdh_tui.window import STEPS, Window

#: Hops that are read at most; the newest of the window.
MOST = 50_000
#: Outcomes of a hop that asked nobody.
NOT_ASKED = frozenset({"no_credential", "circuit_open", "out_of_time"})


@dataclass(slots=True)
class Provider:
    """Durations in seconds, sorted; ``trend`` counts answers and ``failed`` the rest of those
    asked, per part of the window, oldest first."""

    name: str
    model: str = ""
    place: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    durations: list[float] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0
    trend: list[int] = field(default_factory=lambda: [0] * STEPS)
    failed: list[int] = field(default_factory=lambda: [0] * STEPS)
    last_error: str = ""
    last_error_ns: int = 0
    circuit: str = "closed"
    failures: int = 0
    retry_in: float = 0.0

    @property
    def visited(self) -> int:
        return self.outcomes.total()

    @property
    def asked(self) -> int:
        return sum(n for outcome, n in self.outcomes.items() if outcome not in NOT_ASKED)

    @property
    def answered(self) -> int:
        return self.outcomes["ok"]

    def percentile(self, share: float) -> float | None:
        """Nearest-rank percentile of the durations of those asked."""
        if not self.durations:
            return None
        return self.durations[min(len(self.durations) - 1, int(share * len(self.durations)))]


def providers(
    reader: SpanReader, window: Window, chain: Sequence[str], state: Path
) -> list[Provider]:
    """The chain in its order, then whatever else was asked. Raises what the reader raises."""
    found = {name: Provider(name, place=place) for place, name in enumerate(chain, start=1) if name}
    since = window.since_ns()
    rows = reader.rows(_HOPS, (since, MOST))
    part = window.seconds * 1_000_000_000 // STEPS
    for row in rows:
        name = str(row["name"] or "unknown")
        provider = found.setdefault(name, Provider(name))
        place = min(max((row["start_ns"] - since) // part, 0), STEPS - 1)
        _count(provider, row, place)
    for provider in found.values():
        provider.durations.sort()
    _circuits(found, state)
    return sorted(found.values(), key=lambda one: (one.place == 0, one.place, one.name))


def _value(name: str) -> str:
    return f"json_extract(attributes, '$.\"{name}\"')"


# Read by SQLite, which leaves the interpreter to the screen meanwhile.
_HOPS = (
    f"SELECT start_ns, end_ns, outcome, {_value(attr.PROVIDER_NAME)} AS name,"  # noqa: S608
    f" {_value(attr.REQUEST_MODEL)} AS model, {_value(attr.HOP_ERROR)} AS error,"
    f" CAST({_value(attr.INPUT_TOKENS)} AS INTEGER) AS input_tokens,"
    f" CAST({_value(attr.OUTPUT_TOKENS)} AS INTEGER) AS output_tokens"
    " FROM spans WHERE name >= 'chat' AND name < 'chau' AND start_ns >= ?"
    " ORDER BY start_ns DESC LIMIT ?"
)


def _count(provider: Provider, row: sqlite3.Row, place: int) -> None:
    outcome = str(row["outcome"] or "open")
    provider.outcomes[outcome] += 1
    provider.model = provider.model or str(row["model"] or "")
    provider.input_tokens += row["input_tokens"] or 0
    provider.output_tokens += row["output_tokens"] or 0
    if outcome in NOT_ASKED:
        return
    if row["end_ns"] is not None:
        provider.durations.append((row["end_ns"] - row["start_ns"]) / 1e9)
    if outcome == "ok":
        provider.trend[place] += 1
        return
    provider.failed[place] += 1
    if row["start_ns"] > provider.last_error_ns:
        provider.last_error_ns = row["start_ns"]
        provider.last_error = str(row["error"] or outcome)


def _circuits(found: dict[str, Provider], path: Path) -> None:
    """What the processes of this home agreed on; nothing if they have no shared state."""
    from bdh_bridge.state import SharedState

    if not path.exists():
        return
    state = SharedState(path, busy_timeout=1.0)
    try:
        for breaker in state.breakers():
            kind, _, name = breaker.key.partition(":")
            provider = found.get(name)
            if kind != "provider" or provider is None:
                continue
            provider.failures = breaker.failures
            if breaker.probing:
                provider.circuit = "probing"
            elif breaker.open:
                provider.circuit = "open"
                provider.retry_in = breaker.failed_at + breaker.wait - time.time()
            elif breaker.wait > 0:
                provider.circuit = "probe is due"
    finally:
        state.close()
