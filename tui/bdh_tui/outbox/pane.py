"""The outbox, shown and steered."""

from __future__ import annotations

from typing import ClassVar

from bdh_tui.outbox.desk import OutboxDesk
from bdh_tui.queue.desk import Desk
from bdh_tui.queue.pane import QueuePane


class OutboxPane(QueuePane):
    title: ClassVar[str] = "Outbox"

    def __init__(self) -> None:
        super().__init__("outbox")

    def make_desk(self) -> Desk:
        return OutboxDesk(self.bridge.loaded)
