"""The Borgee inbox, shown and settled."""

from __future__ import annotations

from typing import ClassVar

from bdh_tui.borgee.desk import InboxDesk
from bdh_tui.queue.desk import Desk
from bdh_tui.queue.pane import QueuePane


class BorgeePane(QueuePane):
    title: ClassVar[str] = "Borgee"

    def __init__(self) -> None:
        super().__init__("borgee")

    def make_desk(self) -> Desk:
        return InboxDesk(self.bridge.loaded.paths.hermes_home)
