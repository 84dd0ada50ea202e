"""Gate ``sender``: who may read private notes, and who may teach the graph.

An entry of the list is ``id`` or ``platform:id``. Without a sender, a turn of the local terminal
is the operator's own; any other is a stranger's.
"""

from __future__ import annotations

import re
from collections.abc import Set

from bdh_bridge.gates.decision import Decision, GatePath, allow, skip
from bdh_bridge.gates.reasons import Reason

NAME = "sender"
_LOCAL = frozenset({"cli", "tui"})
_LIKE_A_PLATFORM = re.compile(r"[A-Za-z0-9_-]+:")


def sender(path: GatePath, platform: str, sender_id: str, listed: Set[str]) -> Decision:
    if not listed:
        return allow(NAME, path, Reason.NO_SENDER_LIST)
    where, who = platform.strip().lower(), sender_id.strip()
    if not who:
        if where in _LOCAL:
            return allow(NAME, path, Reason.LOCAL_OPERATOR)
        return skip(NAME, path, Reason.SENDER_UNKNOWN)
    for entry in listed:
        if _means(entry, where, who):
            return allow(NAME, path, Reason.SENDER_LISTED, entry)
    return skip(NAME, path, Reason.SENDER_NOT_LISTED)


def _means(entry: str, where: str, who: str) -> bool:
    platform, _, rest = entry.partition(":")
    if rest == who and platform.lower() == where:
        return True
    # Somebody named "discord:7" elsewhere must not pass for Discord's 7; ids with other colons
    # (@ada:example.org) are ids.
    return entry == who and not _LIKE_A_PLATFORM.match(who)
