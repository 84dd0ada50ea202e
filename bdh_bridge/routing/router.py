"""Who decides whether a turn reads and stores: the local router, a language model, or both.

``None`` stands for "nobody could": then the mechanical gate decides.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bdh_bridge.routing.local.loading import LocalRouterLoader
from bdh_otel import attributes as attr
from bdh_otel import names

if TYPE_CHECKING:
    from bdh_bridge.paths import BridgePaths
    from bdh_bridge.routing.local.decide import LocalDecision
    from bdh_bridge.routing.rewrite import Rewriter
    from bdh_bridge.settings import Settings
    from bdh_otel.tracer import LocalSpan, Tracer

log = logging.getLogger(__name__)

#: Milliseconds that a turn waits for the local router where a person sits before a terminal and
#: the process may have begun with this very turn. A gateway answers many: none of them waits.
COMMAND_LINE_WAIT_MS = 1_500
_COMMAND_LINE = frozenset({"", "cli"})


@dataclass(frozen=True, slots=True)
class Route:
    """What was decided. ``queries`` are for the graph, the primary first; they may be empty even
    if it is to be read: then the message itself is the query. ``write_query`` likewise."""

    router: Literal["local", "rewrite"]
    read: bool
    store: bool
    queries: tuple[str, ...] = ()
    write_query: str = ""


class Router:
    """Decides for one message at a time. Safe to share between threads; never raises."""

    def __init__(
        self,
        settings: Settings,
        tracer: Tracer,
        rewriter: Rewriter | None,
        local: LocalRouterLoader | None,
    ) -> None:
        """At least one of ``rewriter`` and ``local`` is given; with both it is a cascade."""
        self._settings = settings
        self._tracer = tracer
        self._rewriter = rewriter
        self._loader = local

    def route(
        self, message: str, history: Sequence[Any], platform: str, parent: LocalSpan
    ) -> Route | None:
        """``history`` is the host's, the current message last. Waits for the local router as long
        as ``BDH_ROUTER_WAIT_MS`` allows, for a model within its budget."""
        local, reason = self._decide_locally(message, history, platform)
        if local is not None:
            if local.grey:
                reason = "in_doubt"
            elif self._rewriter is not None and local.read and local.follow_up:
                reason = "follow_up"  # what it refers to, a model can spell out
        asks = self._rewriter is not None and (local is None or reason != "sure")
        route = self._ask(message, history, parent) if asks else None
        if route is None and local is not None:
            route = Route("local", local.read, local.store, local.queries)
        self._record(parent, route, local, reason)
        return route

    def _decide_locally(
        self, message: str, history: Sequence[Any], platform: str
    ) -> tuple[LocalDecision | None, str]:
        if self._loader is None:
            return None, ""
        wait = self._settings.router_wait_ms
        if wait is None:
            wait = COMMAND_LINE_WAIT_MS if platform in _COMMAND_LINE else 0
        try:
            router = self._loader.get(wait / 1_000)
            if router is None:
                return None, self._loader.state
            from bdh_bridge.routing.local.conversation import conversation

            return router.decide(conversation(message, history)), "sure"
        except Exception as error:
            # The traceback only for who looks for it: this may be a command, before a person.
            details = log.isEnabledFor(logging.DEBUG)
            log.warning("[bdh-bridge] local router: %s", type(error).__name__, exc_info=details)
            return None, "failed"

    def _ask(self, message: str, history: Sequence[Any], parent: LocalSpan) -> Route | None:
        if self._rewriter is None:
            return None
        decision = self._rewriter.rewrite(message, history, parent).decision
        if decision is None:
            return None
        return Route(
            "rewrite",
            decision.should_retrieve,
            decision.store_candidate,
            tuple(decision.retrieval_queries(self._settings.rewrite_max_variants)),
            decision.write_query,
        )

    def _record(
        self,
        parent: LocalSpan,
        route: Route | None,
        local: LocalDecision | None,
        reason: str,
    ) -> None:
        span = self._tracer.start_span(names.ROUTE, parent=parent)
        span.set_attribute(attr.ROUTE_ROUTER, route.router if route else "fallback")
        if reason:
            span.set_attribute(attr.ROUTE_REASON, reason)
        if local is not None:
            span.set_attributes(
                {
                    attr.ROUTE_RETRIEVE_PROBABILITY: round(local.probabilities[0], 4),
                    attr.ROUTE_STORE_PROBABILITY: round(local.probabilities[1], 4),
                    attr.ROUTE_RETRIEVE_THRESHOLD: local.thresholds[0],
                    attr.ROUTE_STORE_THRESHOLD: local.thresholds[1],
                    attr.ROUTE_GREY_ZONE: bool(local.grey),
                    attr.ROUTE_FEATURES: [
                        f"{flag}: {name} {value:+.2f}"
                        for flag, found in local.strongest.items()
                        for name, value in found
                    ],
                }
            )
        span.end()


def make_router(
    settings: Settings,
    paths: BridgePaths,
    tracer: Tracer,
    rewriter: Rewriter | None,
    *,
    background: bool = True,
) -> Router | None:
    """The router that ``BDH_ROUTER`` asks for, its local part loading in the background; None
    where the mechanical gate is to decide. ``rewriter`` is used only in the modes that ask."""
    mode = settings.router_mode
    if settings.router is None and rewriter is not None:
        mode = "llm"
    loader = None
    if mode in ("local", "cascade"):
        loader = LocalRouterLoader(paths.personal_head)
        if background:
            loader.start()
        else:
            loader.load()
    if mode in ("mechanical", "local"):
        rewriter = None
    return Router(settings, tracer, rewriter, loader) if loader or rewriter else None
