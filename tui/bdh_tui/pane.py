"""What every screen of the application is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar, TypeVar

from textual.containers import Vertical
from textual.widget import Widget

from bdh_otel.database import StoreError

if TYPE_CHECKING:
    from bdh_tui.app import BridgeApp

T = TypeVar("T")


class Pane(Vertical):
    """One of the numbered screens. It is made when it is first shown, and then kept."""

    title: ClassVar[str]

    @property
    def bridge(self) -> BridgeApp:
        from bdh_tui.app import BridgeApp

        assert isinstance(self.app, BridgeApp)
        return self.app

    def entered(self) -> None:
        """The pane is on the screen now."""
        self.take_focus(self.first_focus())

    def take_focus(self, widget: Widget) -> None:
        """At once, not after what waits: the next key that is typed is for ``widget``."""
        self.screen.set_focus(widget)

    def left(self) -> None:
        """Another pane is."""

    def health_changed(self) -> None:
        """What :class:`bdh_tui.health.Watch` saw of this pane's part is new."""

    def first_focus(self) -> Widget:
        return next((w for w in self.query("*") if w.focusable), self)

    def in_thread(self, work: Callable[[], T], then: Callable[[T], None], group: str) -> None:
        """Run ``work`` off the loop and ``then`` on it; a later call of the group supersedes it.

        Trouble with a store is the status bar's to tell; other trouble is not hidden.
        """

        async def run() -> None:
            try:
                result = await asyncio.to_thread(work)
            except (StoreError, FileNotFoundError) as error:
                self.failed(group, error)
                return
            if self.is_attached:
                then(result)

        # Not the coroutine itself: one that is superseded at once would never be awaited.
        start: Callable[[], Awaitable[None]] = run
        self.run_worker(start, group=group, exclusive=True)

    def action_activate(self) -> None:
        """Enter: what the line under the cursor stands for."""
        from bdh_tui.lines import LineList

        focused = self.screen.focused
        if isinstance(focused, LineList):
            focused.action_activate()

    def failed(self, group: str, error: Exception) -> None:
        """``work`` of :meth:`in_thread` met a store that can't be read."""
