"""Sending stored spans on, by the worker: one lane with a cursor of its own per endpoint.

Spans wait in the store, so a backend that is down costs nothing but time. Where there are
several, each has its thread: one that is dead, slow or refuses holds up no other.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bdh_otel.crew import Crew
from bdh_otel.endpoints import disabled, endpoints, resource_attributes
from bdh_otel.lane import FIRST_BACKOFF, Lane, described
from bdh_otel.sampler import Sampler

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What one run did, over all endpoints.

    ``sent`` spans were accepted; ``failed`` will never be (refused, and left out from now on);
    ``waiting`` ended spans are yet to be sent, counted for each endpoint (roughly, where it is
    many). ``retry_at`` is the Unix time at which the first failing endpoint is due, None if none
    is failing. ``busy``: another process was exporting, so nothing was done. ``unfinished``
    endpoints were still at it when the time was up; what they did shows in a later result.
    """

    sent: int = 0
    failed: int = 0
    waiting: int = 0
    retry_at: float | None = None
    busy: bool = False
    unfinished: int = 0


class Exporter:
    """Exports the store at ``path`` to what ``environment`` configures (``OTEL_*``,
    ``BDH_OTEL_ENDPOINTS``).

    ``export_content`` lets content attributes leave the machine; the caller has made sure that
    the operator asked for it twice. Not for use by two threads at once.
    """

    def __init__(
        self, path: Path, environment: Mapping[str, str], *, export_content: bool = False
    ) -> None:
        self.endpoints = [] if disabled(environment) else endpoints(environment)
        self._path = path
        self._environment = environment
        self._content = export_content
        self._lanes: list[Lane] | None = None
        self._crew = Crew("bdh-export")
        self._lock: int | None = None

    @property
    def enabled(self) -> bool:
        """False if there is nowhere to send spans to."""
        return bool(self.endpoints)

    def run_once(self, deadline: float | None = None, *, force: bool = False) -> ExportResult:
        """Send what is due until ``deadline`` (``time.monotonic()``; default: in 30 s).

        A request that has begun by then may take its whole timeout; with several endpoints it
        goes on in the background. ``force`` also tries endpoints that are backing off. Never
        raises.
        """
        deadline = time.monotonic() + 30.0 if deadline is None else deadline
        try:
            if not self.enabled or not self._path.exists():
                return ExportResult()
            if not self._alone():
                return ExportResult(busy=True)
            return self._run(deadline, force)
        except Exception as error:
            log.warning("[bdh-bridge] spans can't be exported now: %s", described(error))
            return ExportResult(retry_at=time.time() + FIRST_BACKOFF)
        finally:
            self._release_when_idle()

    def close(self, patience: float = 1.0) -> None:
        """End; a request in flight gets ``patience`` seconds, then it goes down with us."""
        self._crew.wait(time.monotonic() + patience)
        for lane in self._lanes or ():
            if not self._crew.busy(lane.endpoint.key):
                lane.close()
        self._release_when_idle()

    def _run(self, deadline: float, force: bool) -> ExportResult:
        lanes = self._made()
        if len(lanes) == 1:
            lanes[0].run(deadline, force=force)
        else:
            for lane in lanes:
                self._crew.start(lane.endpoint.key, partial(lane.run, deadline, force=force))
            self._crew.wait(deadline)
        done = [lane.progress() for lane in lanes]
        return ExportResult(
            sum(one.sent for one in done),
            sum(one.failed for one in done),
            sum(one.waiting for one in done),
            min((one.retry_at for one in done if one.retry_at is not None), default=None),
            unfinished=sum(self._crew.busy(lane.endpoint.key) for lane in lanes),
        )

    def _made(self) -> list[Lane]:
        from bdh_otel.otlp import Encoder

        if self._lanes is None:
            sampler = Sampler(self._environment)
            encoder = Encoder(content=self._content, extra=resource_attributes(self._environment))
            self._lanes = [Lane(self._path, one, sampler, encoder) for one in self.endpoints]
        return self._lanes

    def _alone(self) -> bool:
        """True if no other process exports this store: two would send everything twice."""
        if self._lock is not None:
            return True
        path = self._path.with_name(f"{self._path.name}.export")
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        self._lock = handle
        return True

    def _release_when_idle(self) -> None:
        if self._lock is None or self._crew.busy():
            return
        handle, self._lock = self._lock, None
        with contextlib.suppress(OSError):
            os.close(handle)
