"""Decisions as spans, and outages as one log line each instead of one a turn."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from bdh_bridge import __version__
from bdh_otel import attributes as attr
from bdh_otel import names

if TYPE_CHECKING:
    from bdh_bridge.gates.decision import Decision
    from bdh_bridge.settings import Loaded
    from bdh_otel.tracer import LocalSpan, Tracer

log = logging.getLogger(__name__)


def record_decision(tracer: Tracer, parent: LocalSpan | None, decision: Decision) -> None:
    """One ``bdh.gate`` span; it has no duration worth speaking of."""
    span = tracer.start_span(names.gate(decision.gate), parent=parent)
    span.set_attributes(
        {
            attr.GATE_NAME: decision.gate,
            attr.GATE_PATH: decision.path.value,
            attr.GATE_DECISION: decision.verdict.value,
            attr.GATE_REASON: str(decision.reason),
            **decision.details,
        }
    )
    if decision.rule:
        span.set_attribute(attr.GATE_RULE, decision.rule)
    span.end()


def describe_process(loaded: Loaded, role: Literal["agent", "worker", "command"]) -> dict[str, str]:
    """Resource attributes of a process of the bridge."""
    home = loaded.paths.hermes_home
    return {
        "service.version": __version__,
        "bdh.role": role,
        "bdh.hermes.profile": home.name if home.parent.name == "profiles" else "default",
    }


def server_attributes(url: str) -> dict[str, str | int]:
    """Host and port of a peer, as the HTTP conventions name them."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return {attr.SERVER_ADDRESS: parts.hostname or "", attr.SERVER_PORT: port}


class Outage:
    """Says once that something is away, and once that it is back."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()
        self._away = False

    def failed(self, why: str, consequence: str) -> None:
        with self._lock:
            first, self._away = not self._away, True
        if first:
            log.warning("[bdh-bridge] %s: %s; %s", self._what, why, consequence)

    def recovered(self) -> None:
        with self._lock:
            was_away, self._away = self._away, False
        if was_away:
            log.info("[bdh-bridge] %s answers again", self._what)
