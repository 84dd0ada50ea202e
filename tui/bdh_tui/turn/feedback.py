"""A correction of what the router decided about a turn."""

from __future__ import annotations

from bdh_bridge.paths import BridgePaths
from bdh_bridge.routing.local.feedback import NoSuchTurn, correction_of, remember
from bdh_otel.reader import SpanReader

QUESTION = "What would have been right for this turn?"
_CHOICES: tuple[tuple[str, bool, bool], ...] = (
    ("read the graph, store nothing", True, False),
    ("store it, without reading", False, True),
    ("read and store", True, True),
    ("neither", False, False),
)
OPTIONS = tuple(text for text, _, _ in _CHOICES)


def keep(reader: SpanReader, paths: BridgePaths, trace_id: str, chosen: int) -> str:
    """Keep the choice; what came of it, as a sentence. Raises: StoreError, FileNotFoundError."""
    text, read, store = _CHOICES[chosen]
    try:
        remember(paths.feedback, correction_of(reader, trace_id, read=read, store=store))
    except NoSuchTurn as error:
        return f"Not kept: {error}"
    return f"Kept: {text}. `bdh-bridge router train --with-feedback` learns from it."
