"""The gates of the read path, in their order. Relevance is asked later, of the graph's answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bdh_bridge.gates.blacklist import Blacklist, blacklisted
from bdh_bridge.gates.bridge import Pauses, bridge
from bdh_bridge.gates.cron import JobPrompt, cron
from bdh_bridge.gates.decision import Decision, GatePath
from bdh_bridge.gates.eligibility import eligibility
from bdh_bridge.gates.injectable import injectable
from bdh_bridge.gates.origin import origin
from bdh_bridge.gates.platform import platform
from bdh_bridge.gates.sender import sender
from bdh_bridge.gates.view import TurnView

if TYPE_CHECKING:
    from bdh_bridge.settings import Settings

READ = GatePath.READ


def read_gates(
    view: TurnView,
    settings: Settings,
    blacklist: Blacklist,
    state: Pauses,
    job_prompt: JobPrompt,
) -> Iterator[Decision]:
    """Decide whether this turn may be enriched; the last decision is the first skip, if any."""
    for decision in _decisions(view, settings, blacklist, state, job_prompt):
        yield decision
        if not decision.allowed:
            return


def _decisions(
    view: TurnView,
    settings: Settings,
    blacklist: Blacklist,
    state: Pauses,
    job_prompt: JobPrompt,
) -> Iterator[Decision]:
    yield bridge(READ, view.session_id, settings, state)
    yield origin(READ, view.text, view.is_background_review)
    yield injectable(READ, view.message)
    yield cron(READ, view.platform, view.session_id, job_prompt)
    yield platform(READ, view.platform, settings.deny_platforms)
    yield sender(READ, view.platform, view.sender_id, settings.read_senders)
    yield blacklisted(READ, view.text, blacklist)
    yield eligibility(view.text)
