"""The public entry: a message and its history in, a decision out, always in time."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bdh_bridge.routing.chain import Chain, Question
from bdh_bridge.routing.contract import RewriteDecision, parse_answer
from bdh_bridge.routing.history import recent_messages
from bdh_bridge.routing.hop import Hop, HopOutcome
from bdh_bridge.routing.prompt import MESSAGE_LIMIT, PromptSource, compose
from bdh_bridge.routing.providers import HostModel, NousCredentials, build_chain
from bdh_bridge.routing.text import clip_middle
from bdh_otel import attributes as attr
from bdh_otel import names

if TYPE_CHECKING:
    from bdh_bridge.settings import Settings
    from bdh_bridge.state import SharedState
    from bdh_otel.tracer import LocalSpan, Tracer

log = logging.getLogger(__name__)

__all__ = ["Hop", "HopOutcome", "RewriteDecision", "RewriteOutcome", "Rewriter"]


@dataclass(frozen=True, slots=True)
class RewriteOutcome:
    """``decision`` is None if no provider gave one: ``fallback`` is then true, and the caller
    goes on with the mechanical gate and the raw message. ``hops`` are in chain order."""

    decision: RewriteDecision | None
    hops: list[Hop]
    fallback: bool


class Rewriter:
    """Asks the provider chain for one decision a turn. Safe to share between threads.

    ``nous_credentials`` and ``host_llm`` are the host's own login and model, where it has them
    (see :mod:`bdh_bridge.routing.providers` for their shapes). Without ``asides`` a provider on
    probation is just left out.
    """

    def __init__(
        self,
        settings: Settings,
        state: SharedState,
        tracer: Tracer,
        nous_credentials: NousCredentials | None = None,
        host_llm: HostModel | None = None,
        *,
        asides: bool = True,
    ) -> None:
        self._settings = settings
        self._tracer = tracer
        self._prompt = PromptSource(settings.rewrite_prompt_file)
        providers, unknown = build_chain(settings, nous_credentials, host_llm)
        if unknown:
            log.warning(
                "[bdh-bridge] BDH_REWRITE_CHAIN: no provider is called %s; ignored",
                ", ".join(repr(name[:40]) for name in unknown),
            )
        self._chain = Chain(
            providers,
            state,
            tracer,
            min(settings.rewrite_timeout, settings.rewrite_total_timeout),
            settings.rewrite_total_timeout,
            asides=asides,
        )

    def rewrite(
        self,
        message: str,
        history: Sequence[Any] | None,
        parent_span: LocalSpan | None = None,
    ) -> RewriteOutcome:
        """Classify and rewrite ``message``; ``history`` is the host's, the current message last.

        Never raises, and waits ``rewrite_total_timeout`` seconds at most.
        """
        span: LocalSpan | None = None
        outcome = RewriteOutcome(None, [], fallback=True)
        try:
            span = self._tracer.start_span(names.REWRITE, parent=parent_span)
            outcome = self._ask(message, history, span)
            self._describe(span, outcome)
        except Exception as error:
            log.warning("[bdh-bridge] rewrite failed: %s", type(error).__name__, exc_info=True)
            if span is not None:
                span.set_attribute(attr.REWRITE_FALLBACK, True)
                span.fail(error)
        finally:
            if span is not None:
                span.end()
        return outcome

    def _ask(self, message: str, history: Sequence[Any] | None, span: LocalSpan) -> RewriteOutcome:
        settings = self._settings
        prompt = self._prompt.read()
        context = recent_messages(
            history, settings.context_messages_n, settings.context_msg_max_chars
        )
        span.set_attributes(
            {attr.REWRITE_PROMPT: prompt.source, attr.REWRITE_HISTORY_MESSAGES: len(context)}
        )
        material = "\n".join(
            (clip_middle(message, MESSAGE_LIMIT), *(item.text for item in context))
        )
        question = Question(
            compose(prompt, message, context),
            lambda answer: parse_answer(answer, message, material),
        )
        decision, hops = self._chain.walk(question, span)
        return RewriteOutcome(decision, hops, fallback=decision is None)

    def _describe(self, span: LocalSpan, outcome: RewriteOutcome) -> None:
        span.set_attributes(
            {attr.REWRITE_HOPS: len(outcome.hops), attr.REWRITE_FALLBACK: outcome.fallback}
        )
        decision = outcome.decision
        if decision is None:
            return
        queries = decision.retrieval_queries(self._settings.rewrite_max_variants)
        span.set_attributes(
            {
                attr.REWRITE_SHOULD_RETRIEVE: decision.should_retrieve,
                attr.REWRITE_STORE_CANDIDATE: decision.store_candidate,
                attr.REWRITE_SCHEMA_VERSION: decision.schema_version,
                attr.REWRITE_KNOWLEDGE_TYPES: list(decision.knowledge_types),
                attr.REWRITE_VARIANTS: len(queries),
                attr.REWRITE_QUERIES: queries,
            }
        )
        if decision.confidence is not None:
            span.set_attribute(attr.REWRITE_CONFIDENCE, decision.confidence)
