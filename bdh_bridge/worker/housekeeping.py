"""The worker's duties beside delivery."""

from __future__ import annotations

from bdh_bridge.outbox.queue import Queue
from bdh_bridge.settings import Loaded
from bdh_bridge.worker.duties import Duty

#: Seconds for which delivered writes stay listed, without their text.
RETENTION = 30 * 86_400.0


def duties_of(loaded: Loaded, queue: Queue) -> list[Duty]:
    def prune_outbox() -> bool:
        queue.prune(older_than=RETENTION)
        return False

    return [Duty("prune_outbox", 600.0, prune_outbox)]
