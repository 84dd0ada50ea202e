"""Gate ``bridge``: the operator's own switch and pauses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from bdh_bridge.gates.decision import Decision, GatePath, allow, skip
from bdh_bridge.gates.reasons import Reason

if TYPE_CHECKING:
    from bdh_bridge.settings import Settings
    from bdh_bridge.state import Pause

NAME = "bridge"


class Pauses(Protocol):
    """The part of :class:`bdh_bridge.state.SharedState` that this gate asks."""

    def paused(self, session_id: str) -> Pause | None: ...


def bridge(path: GatePath, session_id: str, settings: Settings, state: Pauses) -> Decision:
    if not settings.enabled:
        return skip(NAME, path, Reason.DISABLED)
    pause = state.paused(session_id)
    if pause is None:
        return allow(NAME, path, Reason.ACTIVE)
    reason = Reason.PAUSED_ALL if pause.scope == "all" else Reason.PAUSED_SESSION
    return skip(NAME, path, reason)
