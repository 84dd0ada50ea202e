"""Consolidation: weights are scaled down, what is weak and old is dropped, idle notes rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bdh_bridge.graph.embedded import hebbian
from bdh_bridge.graph.embedded.hebbian import Synapse
from bdh_bridge.graph.embedded.state import GraphState

DOWNSCALE = 0.9
WEIGHT_FLOOR = 0.02
WEAK_WEIGHT = 0.15
STALE_SECONDS = 48 * 3600
STRONG_WEIGHT = 0.7
DORMANT_QUALITY = 0.25
#: A dormant note wakes when a learning query activates it this strongly.
AWAKE_SCORE = 0.50


@dataclass(frozen=True, slots=True)
class Consolidation:
    """Counts before and after; ``stale_dropped`` is part of no other count."""

    synapses_before: int
    synapses_after: int
    floor_dropped: int
    stale_dropped: int
    dormant_before: int
    dormant_after: int


def is_stale(synapse: Synapse, now: float) -> bool:
    """Weak, seen together once at most, and not lately."""
    return (
        synapse.weight < WEAK_WEIGHT
        and synapse.frequency <= 1
        and now - synapse.last > STALE_SECONDS
    )


def quality(synapses: list[Synapse], strongest: float) -> float:
    """``0.40 * share of w > 0.7 + 0.35 * mean w + 0.25 * min(sum f / max f, 1)``, 0 to 1.

    ``synapses`` are one note's, ``strongest`` is the highest frequency in the graph.
    """
    if not synapses:
        return 0.0
    strong = sum(s.weight > STRONG_WEIGHT for s in synapses) / len(synapses)
    mean = sum(s.weight for s in synapses) / len(synapses)
    frequency = sum(s.frequency for s in synapses) / strongest if strongest else 0.0
    return 0.40 * strong + 0.35 * mean + 0.25 * min(frequency, 1.0)


def consolidate(
    state: GraphState, notes: Iterable[str], now: float, *, dry_run: bool
) -> Consolidation:
    """Run one cycle, or with ``dry_run`` only count what it would do."""
    before = hebbian.synapses(state)
    scaled = [Synapse(s.a, s.b, s.weight * DOWNSCALE, s.frequency, s.last) for s in before]
    stale = [s for s in scaled if is_stale(s, now)]
    faint = [s for s in scaled if s.weight < WEIGHT_FLOOR and not is_stale(s, now)]
    kept = [s for s in scaled if s.weight >= WEIGHT_FLOOR and not is_stale(s, now)]
    known = set(notes)
    resting_before = state.dormant() & known
    resting_after = _idle(known, kept)
    if not dry_run:
        with state.transaction() as db:
            db.executemany(
                "DELETE FROM synapses WHERE vault = ? AND a = ? AND b = ?",
                ((state.vault, s.a, s.b) for s in (*stale, *faint)),
            )
            db.execute(
                "UPDATE synapses SET weight = weight * ? WHERE vault = ?",
                (DOWNSCALE, state.vault),
            )
            state.set_dormant(resting_after)
    return Consolidation(
        len(before), len(kept), len(faint), len(stale), len(resting_before), len(resting_after)
    )


def _idle(notes: set[str], synapses: list[Synapse]) -> set[str]:
    by_note: dict[str, list[Synapse]] = {}
    for synapse in synapses:
        by_note.setdefault(synapse.a, []).append(synapse)
        by_note.setdefault(synapse.b, []).append(synapse)
    strongest = max((s.frequency for s in synapses), default=0.0)
    return {note for note in notes if quality(by_note.get(note, []), strongest) < DORMANT_QUALITY}
