"""The adapter that is connected in this process, for the tools that the model calls."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hermes_borgee.adapter import BorgeeAdapter

_lock = threading.Lock()
_current: tuple[BorgeeAdapter, asyncio.AbstractEventLoop] | None = None
_tasks: set[asyncio.Task[Any]] = set()


def enter(adapter: BorgeeAdapter, loop: asyncio.AbstractEventLoop) -> None:
    global _current
    with _lock:
        _current = (adapter, loop)


def leave(adapter: BorgeeAdapter) -> None:
    """Forget ``adapter``; another one that has taken its place stays."""
    global _current
    with _lock:
        if _current is not None and _current[0] is adapter:
            _current = None


def current() -> tuple[BorgeeAdapter, asyncio.AbstractEventLoop] | None:
    """The connected adapter and its event loop, or None."""
    with _lock:
        found = _current
    if found is None or not found[0].is_connected or found[1].is_closed():
        return None
    return found


def keep(task: asyncio.Task[Any]) -> None:
    """Hold a task that nobody awaits until it is done."""
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
