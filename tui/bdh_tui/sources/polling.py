"""``--source jaeger=URL`` and ``tempo=URL``: their query APIs, asked again and again."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from bdh_tui.sources.feed import FeedSource
from bdh_tui.sources.wire import Batch, from_jaeger, from_otlp_json, loads, mappings

if TYPE_CHECKING:
    import httpx

SERVICE = "hermes-bdh-bridge"
#: Seconds: between two questions; how far back the first one reaches; how long spans of a trace
#: may come late (the worker exports in batches, and retries).
EVERY, LOOKBACK, LATE = 2.0, 3_600.0, 120.0
LONGEST_WAIT = 60.0
TIMEOUT = 10.0
#: Seconds for a whole answer, however steadily it drips.
WHOLE_TIMEOUT = 60.0
MAX_ANSWER = 64 << 20
#: Traces of one answer; a stretch of time that holds more is asked for in halves.
LIMIT = 200


class PollingSource(FeedSource):
    """``url`` is the API's base. Trouble is told and tried again with growing waits."""

    every = EVERY

    def __init__(self, kind: str, url: str) -> None:
        parts = urlsplit(url)
        super().__init__(f"{kind} {parts.hostname or url}:{parts.port or parts.scheme}")
        self._url = url.rstrip("/")
        self._stop = threading.Event()
        self._asked_until = time.time() - LOOKBACK

    def start(self) -> None:
        threading.Thread(target=self._poll, name="bdh-tui-poll", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()
        super().stop()

    @abstractmethod
    def fetch(self, http: httpx.Client, since: float, until: float) -> None:
        """Take in the traces of a stretch of time (Unix seconds).

        Raises: httpx.HTTPError, ValueError for an answer that is none, StoreError and, where
        an answer has a shape that nobody thought of, anything.
        """

    def _poll(self) -> None:
        import httpx

        failures = 0
        with httpx.Client(timeout=TIMEOUT, trust_env=False) as http:
            while not self._stop.is_set():
                now = time.time()
                try:
                    self.fetch(http, self._asked_until - LATE, now)
                except Exception as error:  # whatever an answer holds, it is asked again
                    failures += 1
                    wait = min(LONGEST_WAIT, self.every * 2 ** min(failures, 8))
                    self._trouble = f"{self.label}: {_said(error)}; tried again in {wait:.0f} s"
                else:
                    self._asked_until, failures, self._trouble = now, 0, ""
                    wait = self.every
                self._stop.wait(wait)

    def get(self, http: httpx.Client, path: str, **parameters: Any) -> Any:
        """JSON of one answer, bounded in size. Raises as :meth:`fetch` does."""
        with http.stream(
            "GET", self._url + path, params=parameters, headers={"Accept": "application/json"}
        ) as response:
            response.raise_for_status()
            body, deadline = bytearray(), time.monotonic() + WHOLE_TIMEOUT
            for chunk in response.iter_bytes():
                body += chunk
                if time.monotonic() > deadline or self._stop.is_set():
                    raise ValueError(f"no whole answer within {WHOLE_TIMEOUT:.0f} s")
                if len(body) > MAX_ANSWER:
                    raise ValueError(f"the answer is over {MAX_ANSWER >> 20} MiB")
        try:
            return loads(bytes(body))
        except ValueError as error:
            kind = response.headers.get("Content-Type", "no type")
            raise ValueError(f"the answer is no JSON ({kind}): is it the right URL?") from error


class JaegerSource(PollingSource):
    """Jaeger's ``/api/traces``, which versions 1 and 2 both serve. Times are in microseconds."""

    def __init__(self, url: str) -> None:
        super().__init__("jaeger", url)

    def fetch(self, http: httpx.Client, since: float, until: float) -> None:
        answer = self.get(
            http,
            "/api/traces",
            service=SERVICE,
            start=int(since * 1e6),
            end=int(until * 1e6),
            limit=LIMIT,
        )
        if not isinstance(answer, dict):
            raise ValueError("no answer of Jaeger")
        traces = mappings(answer.get("data"))
        for trace in traces:
            self.take(from_jaeger(trace))
        if len(traces) >= LIMIT and until - since > 1:
            # More than one answer holds: nothing is left out, it is asked for in halves.
            middle = (since + until) / 2
            self.fetch(http, middle, until)
            self.fetch(http, since, middle)


class TempoSource(PollingSource):
    """Tempo's search, then every trace that is new or may still grow."""

    def __init__(self, url: str) -> None:
        super().__init__("tempo", url)
        self._settled: dict[str, float] = {}

    def fetch(self, http: httpx.Client, since: float, until: float) -> None:
        answer = self.get(
            http,
            "/api/search",
            q=f'{{ resource.service.name = "{SERVICE}" }}',
            start=int(since),
            end=int(until) + 1,
            limit=LIMIT,
        )
        if not isinstance(answer, dict):
            raise ValueError("no answer of Tempo")
        found = mappings(answer.get("traces"))
        for trace in found:
            self._trace(http, str(trace.get("traceID", "")), trace, until)
        for trace_id in [one for one, at in self._settled.items() if at < since - LATE]:
            del self._settled[trace_id]
        if len(found) >= LIMIT and until - since > 2:
            middle = (since + until) / 2
            self.fetch(http, middle, until)
            self.fetch(http, since, middle)

    def _trace(
        self, http: httpx.Client, trace_id: str, found: Mapping[str, Any], now: float
    ) -> None:
        if not trace_id or trace_id in self._settled:
            return
        self.take(self._spans(http, trace_id))
        started = int(found.get("startTimeUnixNano") or 0) / 1e9
        if now - started > LATE:
            self._settled[trace_id] = started

    def _spans(self, http: httpx.Client, trace_id: str) -> Batch:
        import httpx

        name = quote(trace_id.zfill(32), safe="")
        try:
            return from_otlp_json(self.get(http, f"/api/v2/traces/{name}"))
        except httpx.HTTPStatusError as error:
            if error.response.status_code != 404:
                raise
        return from_otlp_json(self.get(http, f"/api/traces/{name}"))


def _said(error: Exception) -> str:
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        to = error.response.headers.get("Location", "")
        told = f"HTTP {error.response.status_code}"
        return f"{told}, it sends to {to}"[:200] if to else told
    if type(error) is ValueError:
        return str(error)[:200]
    return f"{type(error).__name__}: {error}".partition("\n")[0][:200]
