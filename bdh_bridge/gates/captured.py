"""Gate ``captured``: an answer without the message it answers would be orphaned knowledge."""

from __future__ import annotations

from bdh_bridge.gates.decision import Decision, GatePath, allow, skip
from bdh_bridge.gates.reasons import Reason
from bdh_bridge.gates.view import TurnView

NAME = "captured"


def captured(view: TurnView | None) -> Decision:
    if view is None or not view.text.strip():
        return skip(NAME, GatePath.WRITE, Reason.NO_USER_MESSAGE)
    return allow(NAME, GatePath.WRITE, Reason.CAPTURED)
