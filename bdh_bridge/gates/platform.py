"""Gate ``platform``: platforms whose turns neither read nor write."""

from __future__ import annotations

from collections.abc import Set

from bdh_bridge.gates.decision import Decision, GatePath, allow, skip
from bdh_bridge.gates.reasons import Reason

NAME = "platform"


def platform(path: GatePath, name: str, denied: Set[str]) -> Decision:
    asked = name.strip().casefold()
    for entry in denied:
        if entry.casefold() == asked:
            return skip(NAME, path, Reason.PLATFORM_DENIED, entry)
    return allow(NAME, path, Reason.PLATFORM_ALLOWED)
