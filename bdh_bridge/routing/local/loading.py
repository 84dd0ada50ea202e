"""Loading the local router beside the host: in a thread, once a process, never in a turn.

NumPy and the encoder are imported here and nowhere else in the agent.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bdh_bridge.routing.local.decide import LocalRouter
    from bdh_bridge.routing.local.encoder import Encoder

log = logging.getLogger(__name__)


class _SharedEncoder:
    """One encoder for all homes of a process: it is the part that costs memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._encoder: Encoder | None = None

    def get(self) -> Encoder:
        from bdh_bridge.routing.local.encoder import Encoder

        with self._lock:
            if self._encoder is None:
                self._encoder = Encoder()
            return self._encoder


_shared = _SharedEncoder()
_pid = os.getpid()


def _encoder() -> Encoder:
    global _shared, _pid
    if _pid != os.getpid():  # a fork may have taken the lock along, held
        _shared, _pid = _SharedEncoder(), os.getpid()
    return _shared.get()


class LocalRouterLoader:
    """Loads in the background. ``personal`` is a head trained for this home, which is taken if it
    is there and fits; else the shipped one."""

    def __init__(self, personal: Path | None = None) -> None:
        self._personal = personal
        self._done = threading.Event()
        self._was_waited_for = False
        self._router: LocalRouter | None = None
        self.problem = ""
        """Why it can't be loaded, as a sentence; empty while it may still be."""

    def start(self) -> LocalRouterLoader:
        try:
            threading.Thread(target=self.load, name="bdh-router", daemon=True).start()
        except RuntimeError as error:  # no more threads: the host's trouble, not the turns'
            self._give_up(str(error))
        return self

    def get(self, wait: float = 0.0) -> LocalRouter | None:
        """The router; None while it loads, and for good if it can't be.

        ``wait`` in seconds. Once somebody waited in vain nobody waits any more: loading that
        hangs must not cost every turn its wait.
        """
        if wait > 0 and not self._done.is_set() and not self._was_waited_for:
            self._was_waited_for = not self._done.wait(wait)
        return self._router

    @property
    def state(self) -> str:
        """``loading``, ``ready`` or ``unavailable``."""
        if not self._done.is_set():
            return "loading"
        return "unavailable" if self._router is None else "ready"

    def load(self) -> None:
        """Load it here and now; never raises, see :attr:`problem`."""
        started = time.monotonic()
        try:
            router = self._make()
        except ImportError as error:
            self._give_up(f"{error.name or error} is missing: install the `local-router` extra")
        except (Exception, SystemExit) as error:  # whatever it is, turns go on without it
            self._give_up(f"{type(error).__name__}: {error}")
        else:
            self._router = router
            self._done.set()
            took = time.monotonic() - started
            log.info("[bdh-bridge] local router %s loaded in %.1f s", router.head.version, took)

    def _give_up(self, problem: str) -> None:
        self.problem = problem
        self._done.set()
        log.warning(
            "[bdh-bridge] the local router can't be loaded (%s); the mechanical gate decides",
            problem,
        )

    def _make(self) -> LocalRouter:
        encoder = _encoder()  # first: it sees to NumPy's threads
        from bdh_bridge.routing.local.conversation import conversation
        from bdh_bridge.routing.local.decide import LocalRouter
        from bdh_bridge.routing.local.head import HeadError, load

        router = None
        if self._personal is not None and os.path.lexists(self._personal):
            try:
                router = LocalRouter(encoder, load(self._personal))
            except HeadError as error:
                log.warning("[bdh-bridge] %s; the shipped head is used", error)
        router = router or LocalRouter(encoder, load())
        router.decide(conversation("ready", None))  # the first call is slower
        return router
