"""The built-in prompt's few-shot examples: invented turns, one for each kind that is easy to
get wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _answer(
    retrieve: bool,
    store: bool,
    query: str,
    search_query: str = "",
    knowledge_types: tuple[str, ...] = (),
    confidence: float = 0.9,
    sub_queries: tuple[str, ...] = (),
) -> dict[str, Any]:
    return {
        "schema_version": 2,
        "should_retrieve": retrieve,
        "store_candidate": store,
        "query": query,
        "search_query": search_query,
        "sub_queries": list(sub_queries),
        "knowledge_types": list(knowledge_types),
        "confidence": confidence,
    }


def _turn(message: str, *context: tuple[str, str]) -> dict[str, Any]:
    return {
        "context": [{"role": role, "text": text} for role, text in context],
        "message": message,
    }


EXAMPLES: tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...] = (
    # Operational noise
    (
        _turn("restart the scanner container and tail its log for a minute"),
        _answer(False, False, "Restart the scanner container and watch its log", confidence=0.97),
    ),
    # Operational noise that sounds like a report
    (
        _turn("ok il backup di stanotte è finito, 212 file, nessun errore"),
        _answer(False, False, "Il backup di questa notte è riuscito", confidence=0.93),
    ),
    # A question to the graph
    (
        _turn("what did we find out about bees and late frost in the orchard notes?"),
        _answer(
            True,
            False,
            "What did the orchard notes find out about bees and late frost?",
            "bees pollination late frost orchard findings",
            ("lesson", "fact"),
        ),
    ),
    # A question about architecture whose subject only the context names
    (
        _turn(
            "e perché non l'abbiamo messo nello stesso processo?",
            ("user", "come funziona il lettore dei contatori?"),
            ("assistant", "Il lettore dei contatori interroga i contatori ogni ora via radio."),
        ),
        _answer(
            True,
            False,
            "Perché il lettore dei contatori non gira nello stesso processo?",
            "meter reader separate process architecture reason",
            ("architecture", "decision"),
        ),
    ),
    # A decision with its reason
    (
        _turn(
            "let's settle it: the archive keeps original TIFFs and makes previews on demand, "
            "because storage is cheap and a bad preview can always be made again"
        ),
        _answer(
            False,
            True,
            "Decision: the archive keeps original TIFFs and makes previews on demand, since "
            "storage is cheap and previews can be made again",
            knowledge_types=("decision", "architecture"),
            confidence=0.94,
        ),
    ),
    # A proposal that builds on something known
    (
        _turn(
            "Proposta: visto il problema con le code dell'anno scorso, alla fiera dividiamo gli "
            "ingressi per fascia oraria. Si concilia con quello che avevamo deciso sui biglietti?"
        ),
        _answer(
            True,
            True,
            "Proposta di dividere gli ingressi della fiera per fascia oraria per evitare le code: "
            "si concilia con la decisione sui biglietti?",
            "fair entrance time slots queues ticket decision",
            ("decision", "strategy"),
            0.88,
            ("problema delle code alla fiera dell'anno scorso",),
        ),
    ),
    # The status of a project
    (
        _turn("where do we stand with the greenhouse heating project, and what was still open?"),
        _answer(
            True,
            False,
            "Status and open points of the greenhouse heating project",
            "greenhouse heating project status open points",
            ("project",),
            0.92,
        ),
    ),
    # A link that has nothing to do with the user's subjects
    (
        _turn("https://example.com/ten-funniest-cat-videos lol"),
        _answer(False, False, "A link to funny cat videos", confidence=0.96),
    ),
)
