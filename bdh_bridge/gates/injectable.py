"""Gate ``injectable``: the host drops injected context for a message that is no plain text."""

from __future__ import annotations

from bdh_bridge.gates.decision import Decision, GatePath, allow, skip
from bdh_bridge.gates.reasons import Reason

NAME = "injectable"


def injectable(path: GatePath, message: str | None) -> Decision:
    if message is None:
        return skip(NAME, path, Reason.NOT_INJECTABLE)
    if not message.strip():
        return skip(NAME, path, Reason.EMPTY_MESSAGE)
    return allow(NAME, path, Reason.TEXT)
