"""The gates of the write path, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bdh_bridge.gates.answer import answer
from bdh_bridge.gates.blacklist import Blacklist, blacklisted
from bdh_bridge.gates.bridge import Pauses, bridge
from bdh_bridge.gates.captured import captured
from bdh_bridge.gates.cron import JobPrompt, cron
from bdh_bridge.gates.decision import Decision, GatePath
from bdh_bridge.gates.origin import origin
from bdh_bridge.gates.platform import platform
from bdh_bridge.gates.sender import sender
from bdh_bridge.gates.view import AnswerView, TurnView

if TYPE_CHECKING:
    from bdh_bridge.settings import Settings

WRITE = GatePath.WRITE


def write_gates(
    view: AnswerView,
    turn: TurnView | None,
    settings: Settings,
    blacklist: Blacklist,
    state: Pauses,
    job_prompt: JobPrompt,
) -> Iterator[Decision]:
    """Decide whether this answer may teach the graph; the last decision is the first skip, if any.

    ``turn`` is what was captured when this very turn started, None when nothing was.
    """
    for decision in _decisions(view, turn, settings, blacklist, state, job_prompt):
        yield decision
        if not decision.allowed:
            return


def _decisions(
    view: AnswerView,
    turn: TurnView | None,
    settings: Settings,
    blacklist: Blacklist,
    state: Pauses,
    job_prompt: JobPrompt,
) -> Iterator[Decision]:
    yield bridge(WRITE, view.session_id, settings, state)
    yield answer(view)
    yield captured(turn)
    if turn is None:  # the caller has stopped at the skip above
        return
    where = turn.platform or view.platform
    yield origin(WRITE, turn.text, turn.is_background_review or view.is_background_review)
    # Compaction may give the session a new id in mid-turn; the one it started with names the job.
    session_id = turn.session_id or view.session_id
    yield cron(WRITE, where, session_id, job_prompt)
    yield platform(WRITE, where, settings.deny_platforms)
    yield sender(WRITE, where, turn.sender_id, settings.write_senders)
    yield blacklisted(WRITE, turn.text, blacklist)
