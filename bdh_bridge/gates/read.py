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
    # What forbids reading and writing alike comes first. So whoever goes on after a skip of the
    # second group (a router that decides about the write) knows that the first was passed.
    yield bridge(READ, view.session_id, settings, state)
    yield origin(READ, view.text, view.is_background_review)
    yield cron(READ, view.platform, view.session_id, job_prompt)
    yield platform(READ, view.platform, settings.deny_platforms)
    yield blacklisted(READ, view.text, blacklist)
    # What forbids reading alone.
    yield injectable(READ, view.message)
    yield sender(READ, view.platform, view.sender_id, settings.read_senders)
    yield eligibility(view.text)
