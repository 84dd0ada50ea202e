"""Hebbian learning: notes that are active together become synapses, others fade."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from bdh_bridge.graph.embedded.state import GraphState

#: Notes with at least this score take part in learning.
ACTIVE_SCORE = 0.15
INCREMENT = 1.0
ASSISTANT_INCREMENT = 0.3
DECAY = 0.95
FORGOTTEN_WEIGHT = 0.01
#: A note's score is raised by this share of its strongest synapse.
BOOST_SHARE = 0.9


def weight_of(frequency: float) -> float:
    """``0.7 * min(f / 10, 1) + 0.3``: 0.37 after one joint activation, 1.0 from ten on."""
    return 0.7 * min(frequency / 10, 1.0) + 0.3


@dataclass(frozen=True, slots=True)
class Synapse:
    """Two notes' ids in order (``a`` < ``b``); ``last`` is Unix time in seconds."""

    a: str
    b: str
    weight: float
    frequency: float
    last: float

    @property
    def pair(self) -> str:
        return f"{self.a}|{self.b}"


def learn(state: GraphState, active: Sequence[str], increment: float, now: float) -> list[Synapse]:
    """Strengthen every pair of ``active`` notes and let the synapses of all others decay.

    Call inside a transaction. Returns the strengthened synapses.
    """
    db, vault = state.connection, state.vault
    marks = ",".join("?" * len(active))
    elsewhere = f"vault = ? AND a NOT IN ({marks}) AND b NOT IN ({marks})"  # only question marks
    db.execute(
        f"UPDATE synapses SET weight = weight * ? WHERE {elsewhere}",  # noqa: S608
        (DECAY, vault, *active, *active),
    )
    db.execute("DELETE FROM synapses WHERE vault = ? AND weight < ?", (vault, FORGOTTEN_WEIGHT))
    updated: list[Synapse] = []
    for a, b in combinations(sorted(active), 2):
        row = db.execute(
            "SELECT frequency FROM synapses WHERE vault = ? AND a = ? AND b = ?", (vault, a, b)
        ).fetchone()
        frequency = (float(row[0]) if row else 0.0) + increment
        updated.append(Synapse(a, b, weight_of(frequency), frequency, now))
    db.executemany(
        "INSERT OR REPLACE INTO synapses (vault, a, b, weight, frequency, last) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        ((vault, s.a, s.b, s.weight, s.frequency, s.last) for s in updated),
    )
    return updated


def boost(state: GraphState, note: str) -> float:
    """By what share a seed's score is raised: ``BOOST_SHARE`` of its strongest synapse."""
    row = state.connection.execute(
        "SELECT max(weight) FROM ("
        " SELECT max(weight) AS weight FROM synapses WHERE vault = ? AND a = ?"
        " UNION ALL SELECT max(weight) FROM synapses WHERE vault = ? AND b = ?)",
        (state.vault, note, state.vault, note),
    ).fetchone()
    return BOOST_SHARE * float(row[0] or 0.0)


def count(state: GraphState) -> int:
    row = state.connection.execute(
        "SELECT count(*) FROM synapses WHERE vault = ?", (state.vault,)
    ).fetchone()
    return int(row[0])


def synapses(state: GraphState, limit: int = -1) -> list[Synapse]:
    """All synapses, or the ``limit`` strongest, strongest first."""
    rows = state.connection.execute(
        "SELECT a, b, weight, frequency, last FROM synapses WHERE vault = ? "
        "ORDER BY weight DESC, frequency DESC, a, b LIMIT ?",
        (state.vault, limit),
    )
    return [Synapse(*row) for row in rows]
