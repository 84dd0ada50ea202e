"""One gateway for one Hermes home and one Borgee agent.

Two locks, always taken in this order and released in reverse: the home (two gateways would share
one inbox), then the agent (two homes would answer for one agent). Hermes' scoped locks keep other
processes out; they are re-entrant for their own process, so a registry here keeps a second
adapter of the same process out as well.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

HOME_SCOPE = "borgee-home"
AGENT_SCOPE = "borgee-agent"

_registry: dict[tuple[str, str], object] = {}
_registry_lock = threading.Lock()


class Contention(Exception):
    """Somebody else owns the home or the agent. ``str()`` says who; worth another try later."""


@dataclass(frozen=True, slots=True)
class _Lock:
    scope: str
    identity: str
    what: str


class Ownership:
    """Both locks of one adapter. ``acquire`` and ``release`` block on small files."""

    def __init__(self, home: Path, base_url: str, api_key: str) -> None:
        # The real path: two names of one home are one home. The key itself is not written.
        real_home = str(home.resolve())
        fingerprint = hashlib.sha256(f"{base_url.lower()}\0{api_key}".encode()).hexdigest()
        self._locks = (
            _Lock(
                HOME_SCOPE,
                hashlib.sha256(real_home.encode()).hexdigest(),
                f"the Hermes home {real_home}",
            ),
            _Lock(AGENT_SCOPE, fingerprint, f"the Borgee agent at {base_url}"),
        )
        self._token = object()
        self._held: list[_Lock] = []

    @property
    def held(self) -> bool:
        return len(self._held) == len(self._locks)

    def acquire(self) -> None:
        """Take both locks or none. Raises: Contention."""
        try:
            for lock in self._locks:
                self._acquire(lock)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Give back what is held, in reverse order. Never raises; may be repeated."""
        from gateway.status import release_scoped_lock

        while self._held:
            lock = self._held.pop()
            try:
                release_scoped_lock(lock.scope, lock.identity)
            except OSError as error:
                log.warning("[bdh-bridge] borgee: a lock file stays behind: %s", error)
            with _registry_lock:
                if _registry.get((lock.scope, lock.identity)) is self._token:
                    del _registry[(lock.scope, lock.identity)]

    def _acquire(self, lock: _Lock) -> None:
        from gateway.status import acquire_scoped_lock

        key = (lock.scope, lock.identity)
        with _registry_lock:
            if _registry.setdefault(key, self._token) is not self._token:
                raise Contention(f"{lock.what} is in use by another adapter of this process")
        try:
            acquired, holder = acquire_scoped_lock(
                lock.scope, lock.identity, metadata={"platform": "borgee"}
            )
        except BaseException:
            self._forget(key)
            raise
        if not acquired:
            self._forget(key)
            raise Contention(f"{lock.what} is in use by {_describe(holder)}")
        self._held.append(lock)

    def _forget(self, key: tuple[str, str]) -> None:
        with _registry_lock:
            if _registry.get(key) is self._token:
                del _registry[key]


def _describe(holder: Any) -> str:
    pid = holder.get("pid") if isinstance(holder, dict) else None
    return f"the gateway with process id {pid}" if pid else "another gateway"
