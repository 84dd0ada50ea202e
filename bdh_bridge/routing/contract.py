"""The router's answer: schema version 2, and the older single flag ``should_query``.

Flags are strict: only JSON ``true`` and ``false`` count. What steers nothing (confidence,
knowledge types) is taken where it is usable and dropped where not; text is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from bdh_bridge.routing.extract import ANSWER_LIMIT, own_object
from bdh_bridge.routing.hop import HopError, HopOutcome
from bdh_bridge.routing.text import clean, clip
from bdh_bridge.routing.variants import retrieval_queries

QUERY_LIMIT = 1_000
"""Characters of ``query`` and ``search_query``."""
SUB_QUERY_LIMIT = 400
SUB_QUERIES_LIMIT = 50
KNOWLEDGE_TYPES_LIMIT = 8

_FLAGS = frozenset({"should_retrieve", "store_candidate", "should_query"})


def _text(limit: int) -> BeforeValidator:
    def bound(value: Any) -> Any:
        if value is None:
            return ""
        return clip(clean(value), limit) if isinstance(value, str) else value

    return BeforeValidator(bound)


def _sub_queries(value: Any) -> Any:
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError("must be a list of strings")
    bounded = (clip(clean(item), SUB_QUERY_LIMIT) for item in value[:SUB_QUERIES_LIMIT])
    return tuple(item for item in bounded if item)


def _knowledge_types(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        return ()
    names = (clean(item).casefold()[:40] for item in value if isinstance(item, str))
    return tuple(dict.fromkeys(name for name in names if name))[:KNOWLEDGE_TYPES_LIMIT]


def _confidence(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None  # NaN is what differs from itself; math.isnan fails on huge integers
    return float(min(max(value, 0), 1))


class RewriteDecision(BaseModel):
    """Whether to read, whether to store, and the queries for it.

    ``schema_version`` is 1 for a legacy answer. ``confidence`` is in 0..1, None if unknown.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    schema_version: Literal[1, 2] = 2
    should_retrieve: bool
    store_candidate: bool
    query: Annotated[str, _text(QUERY_LIMIT)] = ""
    search_query: Annotated[str, _text(QUERY_LIMIT)] = ""
    sub_queries: Annotated[tuple[str, ...], BeforeValidator(_sub_queries)] = ()
    knowledge_types: Annotated[tuple[str, ...], BeforeValidator(_knowledge_types)] = ()
    confidence: Annotated[float | None, BeforeValidator(_confidence)] = Field(default=None)

    def retrieval_queries(self, max_variants: int) -> list[str]:
        """The queries to send to the graph, the primary first; none unless ``should_retrieve``."""
        return retrieval_queries(self, max_variants)

    @property
    def write_query(self) -> str:
        """The user's intent in the user's language: the seed of a write, never search text."""
        return self.query


def parse_answer(answer: str, message: str = "", material: str = "") -> RewriteDecision:
    """The decision in a model's answer, which may be fenced, or stand amid prose or thoughts.

    ``message`` is the user's, and becomes the ``query`` where that is blank. ``material`` is all
    text that the model was given to sort: an object that already stands in it is a quotation,
    or an attempt to steer the router, and never the answer.

    Raises: :class:`HopError` with ``empty``, ``invalid_json`` or ``schema_rejected``.
    """
    decision = _validate(own_object(answer, _FLAGS, material[:ANSWER_LIMIT]))
    if not decision.query:
        decision = decision.model_copy(update={"query": clip(clean(message), QUERY_LIMIT)})
    return decision


def _validate(item: Mapping[str, Any]) -> RewriteDecision:
    fields = dict(item)
    version = fields.pop("schema_version", None)
    if version is not None and (isinstance(version, bool) or version not in (1, 2)):
        raise HopError(HopOutcome.SCHEMA_REJECTED, "schema_version: unknown")
    modern = version == 2 or "should_retrieve" in fields or "store_candidate" in fields
    if not modern:
        fields["should_retrieve"] = fields["store_candidate"] = fields.get("should_query")
    try:
        return RewriteDecision.model_validate({**fields, "schema_version": 2 if modern else 1})
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}"
            for detail in error.errors(include_input=False, include_url=False)[:3]
        )
        raise HopError(HopOutcome.SCHEMA_REJECTED, problems) from None
