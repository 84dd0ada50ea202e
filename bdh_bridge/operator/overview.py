"""The bridge at a glance: today's turns, providers, outbox, graph."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from bdh_bridge.settings import Loaded
from bdh_bridge.state import Breaker, Pause
from bdh_otel import names
from bdh_otel.database import StoreError


@dataclass
class Overview:
    """Times are Unix seconds. Counts are of spans that began today, by this machine's date.

    ``hops`` maps a provider to how often it ended in which outcome; ``graph`` is the server's
    answer, empty with ``graph_error`` set. ``problems`` are sentences on what can't be read.
    """

    since: float
    enabled: bool = True
    turns: int = 0
    open_turns: int = 0
    last_turn: float | None = None
    reads: Counter[str] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)
    deliveries: Counter[str] = field(default_factory=Counter)
    hops: dict[str, Counter[str]] = field(default_factory=dict)
    breakers: list[Breaker] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    outbox: dict[str, int] = field(default_factory=dict)
    waiting: int = 0
    oldest_waits: float | None = None
    worker: str = ""
    graph_url: str = ""
    graph: dict[str, Any] = field(default_factory=dict)
    graph_took: float = 0.0
    graph_error: str = ""
    problems: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    """Which of ``spans``, ``state``, ``outbox``, ``worker`` the problems are with."""

    def as_json(self) -> dict[str, Any]:
        # Not asdict() of the whole: it can't copy counters.
        return {
            **vars(self),
            "breakers": [asdict(breaker) for breaker in self.breakers],
            "pauses": [asdict(pause) for pause in self.pauses],
        }


def look(loaded: Loaded, *, graph_seconds: float = 4.0) -> Overview:
    """Look at everything; what can't be read is named, never raised. ``graph_seconds`` bounds the
    question to the graph, 0 leaves it out."""
    found = Overview(_midnight(), loaded.settings.enabled, graph_url=loaded.settings.api_url)
    for name, part in _PARTS.items():
        try:
            part(loaded, found)
        except FileNotFoundError:
            continue  # it appears with the first turn
        except StoreError as error:
            found.problems.append(str(error))
            found.unreadable.append(name)
        except OSError as error:
            found.problems.append(f"{error.filename}: {error.strerror}")
            found.unreadable.append(name)
    if graph_seconds > 0:
        _graph(loaded, found, graph_seconds)
    return found


def _midnight() -> float:
    today = time.localtime()
    return time.mktime((today.tm_year, today.tm_mon, today.tm_mday, 0, 0, 0, 0, 0, -1))


def _spans(loaded: Loaded, found: Overview) -> None:
    from bdh_otel.reader import SpanReader

    since_ns = int(found.since * 1e9)
    with contextlib.closing(SpanReader(loaded.paths.spans)) as reader:
        rows = reader.rows(
            "SELECT json_extract(attributes, '$.\"bdh.turn.read_outcome\"') AS read,"
            " json_extract(attributes, '$.\"bdh.turn.write_outcome\"') AS write,"
            " end_ns IS NULL AS open, count(*) AS count, max(start_ns) AS latest FROM spans"
            " WHERE name = ? AND start_ns >= ? GROUP BY 1, 2, 3",
            (names.TURN, since_ns),
        )
        for row in rows:
            found.turns += row["count"]
            found.last_turn = max(found.last_turn or 0.0, row["latest"] / 1e9)
            if row["open"]:
                found.open_turns += row["count"]
                continue
            found.reads[row["read"] or "unknown"] += row["count"]
            found.writes[row["write"] or "unknown"] += row["count"]
        for row in reader.rows(
            "SELECT outcome, count(*) AS count FROM spans WHERE name = ? AND start_ns >= ?"
            " AND outcome IS NOT NULL GROUP BY 1",
            (names.DELIVER, since_ns),
        ):
            found.deliveries[row["outcome"]] += row["count"]
        for row in reader.rows(
            "SELECT json_extract(attributes, '$.\"gen_ai.provider.name\"') AS provider, outcome,"
            " count(*) AS count FROM spans WHERE name >= 'chat' AND name < 'chau'"
            " AND start_ns >= ? AND outcome IS NOT NULL GROUP BY 1, 2",
            (since_ns,),
        ):
            hops = found.hops.setdefault(row["provider"] or "unknown", Counter())
            hops[row["outcome"]] += row["count"]


def _state(loaded: Loaded, found: Overview) -> None:
    from bdh_bridge.state import SharedState

    if not loaded.paths.state.exists():
        return
    with contextlib.closing(SharedState(loaded.paths.state, busy_timeout=2.0)) as state:
        found.breakers, found.pauses = state.breakers(), state.pauses()


def _outbox(loaded: Loaded, found: Overview) -> None:
    from bdh_bridge.outbox.store import Outbox

    paths = loaded.paths
    if not paths.outbox.exists():
        return
    with contextlib.closing(Outbox(paths.outbox, spool=paths.outbox_spool)) as store:
        stats = store.stats(wait=2.0)
    found.outbox = {str(state): count for state, count in stats.by_state.items()}
    found.waiting = stats.open_rows + stats.spooled
    found.oldest_waits = stats.oldest_pending_age


def _worker(loaded: Loaded, found: Overview) -> None:
    from bdh_bridge.worker.lock import is_held, read_holder

    if is_held(loaded.paths.worker_lock):
        holder = read_holder(loaded.paths.worker_lock)
        found.worker = f"runs as a {holder.mode}" if holder else "runs"
    else:
        found.worker = "off (BDH_WORKER)" if loaded.settings.worker == "off" else "idle"


_PARTS = {"spans": _spans, "state": _state, "outbox": _outbox, "worker": _worker}


def _graph(loaded: Loaded, found: Overview, seconds: float) -> None:
    from bdh_bridge.graph.client import GraphClient, GraphError

    settings = loaded.settings
    client = GraphClient(settings.api_url, settings.api_token, settings.vault_id)
    try:
        client.prepare()
        started = time.monotonic()
        found.graph = dict(client.stats(timeout=seconds))
        found.graph_took = time.monotonic() - started
    except GraphError as error:
        found.graph_error = f"{error.kind.replace('_', ' ')}: {error}"
    finally:
        client.close()
