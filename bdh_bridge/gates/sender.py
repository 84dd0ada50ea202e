"""Gate ``sender``: who may read private notes, and who may teach the graph.

An entry of the list is ``id`` or ``platform:id``; ids may hold colons themselves, so entries
are compared as wholes and never taken apart. Without a sender, a turn of the local terminal is
the operator's own; any other is a stranger's.
"""

from __future__ import annotations

from collections.abc import Set

from bdh_bridge.gates.decision import Decision, GatePath, allow, skip
from bdh_bridge.gates.reasons import Reason

NAME = "sender"
_LOCAL = frozenset({"cli", "tui"})


def sender(path: GatePath, platform: str, sender_id: str, listed: Set[str]) -> Decision:
    if not listed:
        return allow(NAME, path, Reason.NO_SENDER_LIST)
    where, who = platform.strip().lower(), sender_id.strip()
    if not who:
        if where in _LOCAL:
            return allow(NAME, path, Reason.LOCAL_OPERATOR)
        return skip(NAME, path, Reason.SENDER_UNKNOWN)
    for entry in (who, f"{where}:{who}"):
        if entry in listed:
            return allow(NAME, path, Reason.SENDER_LISTED, entry)
    return skip(NAME, path, Reason.SENDER_NOT_LISTED)
