"""An overview, an outbox, a turn in plain lines: for terminals, and for chats."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

from bdh_bridge.operator.overview import Overview
from bdh_otel.escape import one_line

_UNKNOWN = "unknown: it can't be read"


def overview_lines(seen: Overview) -> list[tuple[str, str]]:
    """Pairs of a heading and its text, both fit for a terminal."""
    turns = f"{seen.turns:,}" + (f", {seen.open_turns} still open" if seen.open_turns else "")
    if seen.last_turn is not None:
        turns += f", the last at {time.strftime('%H:%M:%S', time.localtime(seen.last_turn))}"
    lost = "spans" in seen.unreadable
    lines = [("turns today", _UNKNOWN if lost else turns)]
    if not seen.enabled:
        lines.append(("bridge", "switched off (BDH_ENABLED=false)"))
    for pause in seen.pauses:
        until = time.strftime("until %H:%M", time.localtime(pause.until)) if pause.until else ""
        scope = "everything" if pause.scope == "all" else one_line(pause.scope, 60)
        lines.append(("paused", f"{scope} {until or 'until /bdh resume'}"))
    nothing = _UNKNOWN if lost else "none"
    lines += [
        ("reads", counts(seen.reads) or nothing),
        ("writes", counts(seen.writes) or nothing),
        ("deliveries", counts(seen.deliveries) or nothing),
    ]
    broken = {breaker.key: breaker for breaker in seen.breakers if breaker.open}
    for provider, outcomes in sorted(seen.hops.items()):
        away = " (left alone for a while)" if f"provider:{provider}" in broken else ""
        lines.append(("provider", f"{one_line(provider, 40)}: {counts(outcomes)}{away}"))
    lines += [
        ("circuit", f"{one_line(key, 60)} failed and is left alone for a while")
        for key in sorted(broken)
        if key.removeprefix("provider:") not in seen.hops and not key.startswith("graph:")
    ]
    lines.append(("outbox", outbox_line(seen)))
    lines.append(("worker", seen.worker or _UNKNOWN))
    lines.append(("graph", _graph_line(seen, broken)))
    lines += [("problem", one_line(problem, 300)) for problem in seen.problems]
    return lines


def outbox_line(seen: Overview) -> str:
    if "outbox" in seen.unreadable:
        return _UNKNOWN
    if not seen.outbox and not seen.waiting:
        return "empty"
    text = counts(Counter(seen.outbox)) or "nothing listed"
    if seen.oldest_waits is not None:
        text += f"; the oldest waits for {age(seen.oldest_waits)}"
    return text


def counts(outcomes: Mapping[str, int]) -> str:
    """``3 delivered, 1 in doubt``, the most frequent first."""
    ordered = sorted(outcomes.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{n:,} {one_line(code.replace('_', ' '), 40)}" for code, n in ordered if n)


def age(seconds: float) -> str:
    """``12 s``, ``5 min``, ``3 h``, ``2 d``."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _graph_line(seen: Overview, broken: Mapping[str, object]) -> str:
    if seen.graph_error:
        text = f"{seen.graph_url}: {one_line(seen.graph_error, 200)}"
    elif seen.graph:
        notes = seen.graph.get("neurons")
        known = f"{notes:,} notes" if isinstance(notes, int) else "answers"
        text = f"{seen.graph_url}: {known}, {seen.graph_took * 1000:.0f} ms"
    else:
        text = f"{seen.graph_url} (not asked)"
    circuits = [key for key in broken if key.startswith("graph:")]
    return f"{text}; its circuit is open" if circuits else text
