"""Which queries a decision sends to the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bdh_bridge.routing.contract import RewriteDecision

V2_VARIANTS = 3
"""Most variants of a version 2 answer: the primary and two sub-queries."""


def retrieval_queries(decision: RewriteDecision, max_variants: int) -> list[str]:
    """``search_query`` or else ``query`` first, then sub-queries; without repetitions.

    The graph answers one query at a time, so the order is the order of worth. At most
    ``max_variants``, and never over :data:`V2_VARIANTS` for version 2. Empty unless
    ``should_retrieve``.
    """
    if not decision.should_retrieve:
        return []
    limit = max_variants if decision.schema_version == 1 else min(max_variants, V2_VARIANTS)
    variants: dict[str, str] = {}
    for query in (decision.search_query or decision.query, *decision.sub_queries):
        if query:
            variants.setdefault(query.casefold(), query)
    return list(variants.values())[:limit]
