"""The worker's duty of summarising finished sessions (:mod:`bdh_bridge.synthesis`)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from bdh_bridge.settings import Loaded
from bdh_bridge.transcripts import Transcripts
from bdh_bridge.worker.duties import Duty
from bdh_otel.database import CorruptFile, StoreError

if TYPE_CHECKING:
    from bdh_bridge.outbox.store import Outbox
    from bdh_bridge.synthesis import Synthesiser
    from bdh_otel.tracer import Tracer

log = logging.getLogger(__name__)

#: Seconds between two looks. One session a round: other duties have their turn in between.
INTERVAL = 2.0


def sessions_wait(loaded: Loaded) -> bool:
    """Whether a worker should run for a session that ended, or will count as ended when it has
    been quiet for an hour. A store that can't be used keeps nobody up."""
    settings = loaded.settings
    if not settings.session_synth_enabled or not settings.enabled:
        return False
    transcripts = Transcripts(loaded.paths.sessions)
    try:
        return transcripts.waiting(settings.session_synth_min_turns, wait=0.02)
    except StoreError:
        return False
    finally:
        transcripts.close()


def synthesis_duties(
    loaded: Loaded, outbox: Outbox, tracer: Tracer, wake: Callable[[], object]
) -> list[Duty]:
    """``wake`` is called when a summary may be in the outbox. Empty where sessions are not to be
    summarised."""
    settings = loaded.settings
    if not settings.session_synth_enabled or not settings.enabled:
        return []
    transcripts = Transcripts(loaded.paths.sessions)
    made: list[Synthesiser] = []

    def synthesiser() -> Synthesiser:
        # Made when it is needed: most workers end without having summarised anything.
        if not made:
            from bdh_bridge.host import nous_credentials_of
            from bdh_bridge.state import SharedState
            from bdh_bridge.synthesis import Synthesiser

            made.append(
                Synthesiser(
                    settings,
                    SharedState(loaded.paths.state, busy_timeout=1.0),
                    tracer,
                    outbox,
                    transcripts,
                    nous_credentials_of(loaded.paths.hermes_home),
                )
            )
        return made[0]

    def summarise() -> bool:
        least = settings.session_synth_min_turns
        try:
            if transcripts.next_due(least) is not None and synthesiser().step():
                wake()
            return transcripts.waiting(least)
        except StoreError as error:
            trouble(error)
            return False

    said: set[str] = set()

    def trouble(error: StoreError) -> None:
        if isinstance(error, CorruptFile):
            with contextlib.suppress(OSError, StoreError):
                transcripts.put_aside(error)
            return
        if error.reason not in said:
            log.warning("[bdh-bridge] sessions can't be summarised: %s", error)
        said.add(error.reason)

    def prune() -> bool:
        try:
            transcripts.prune()
        except StoreError as error:
            trouble(error)
        return False

    return [
        Duty("synthesis", INTERVAL, summarise),
        Duty("prune_sessions", 600.0, prune),
    ]
