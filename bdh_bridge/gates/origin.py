"""Gate ``origin``: turns that the host started itself, with a message that no human wrote."""

from __future__ import annotations

from bdh_bridge.gates.decision import Decision, GatePath, allow, skip
from bdh_bridge.gates.reasons import Reason

NAME = "origin"

#: How Hermes begins such messages. The host's own flag for a review is asked first; wording is
#: the fallback for versions and forks of the agent in which it can't be asked.
_OPENINGS: tuple[tuple[str, Reason], ...] = (
    ("Review the conversation above and ", Reason.BACKGROUND_REVIEW),
    ("[ASYNC DELEGATION BATCH COMPLETE", Reason.DELEGATION_RESULT),
    ("[ASYNC DELEGATION COMPLETE", Reason.DELEGATION_RESULT),
    ("[IMPORTANT: Background process ", Reason.PROCESS_NOTICE),
)


def origin(path: GatePath, text: str, is_background_review: bool) -> Decision:
    if is_background_review:
        return skip(NAME, path, Reason.BACKGROUND_REVIEW)
    start = text[:200].lstrip()
    for opening, reason in _OPENINGS:
        if start.startswith(opening):
            return skip(NAME, path, reason, opening)
    return allow(NAME, path, Reason.HUMAN)
