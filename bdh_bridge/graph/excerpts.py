"""Excerpts of notes from servers whose query answers carry none.

``/api/graph`` gives the beginning of every note's text but is far too slow for a turn. It is
fetched in the background, at most every few minutes, and turns use what is there already.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

from bdh_bridge.graph.client import GraphClient

log = logging.getLogger(__name__)

REFRESH_SECONDS = 600.0
FETCH_TIMEOUT_SECONDS = 30.0


class ExcerptCache:
    """Texts by note id. :meth:`current` never waits."""

    def __init__(self, client: GraphClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._texts: dict[str, str] = {}
        self._tried = float("-inf")

    def current(self) -> Mapping[str, str]:
        """What is known now; starts a refresh in the background when it is due."""
        with self._lock:
            now = time.monotonic()
            if now - self._tried > REFRESH_SECONDS:
                self._tried = now
                threading.Thread(target=self._refresh, name="bdh-excerpts", daemon=True).start()
            return self._texts

    def _refresh(self) -> None:
        try:
            texts = self._client.note_texts(timeout=FETCH_TIMEOUT_SECONDS)
        except Exception as error:  # nobody else would catch it on this thread
            log.debug("[bdh-bridge] no excerpts from /api/graph: %s", error)
            return
        with self._lock:
            self._texts = texts
