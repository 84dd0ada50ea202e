"""The parts of the bridge in one agent process, put together, and the life of a turn in them.

Nothing here knows Hermes: :mod:`bdh_bridge.hooks` translates.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from bdh_bridge.gates.blacklist import Blacklist, resolve_blacklist
from bdh_bridge.gates.cron import is_cron, own_prompt
from bdh_bridge.gates.view import AnswerView, TurnView
from bdh_bridge.graph.client import GraphClient
from bdh_bridge.graph.excerpts import ExcerptCache
from bdh_bridge.outbox.store import Outbox
from bdh_bridge.read_path import ReadPath
from bdh_bridge.retrieval import Retriever
from bdh_bridge.routing.router import make_router
from bdh_bridge.state import SharedState
from bdh_bridge.telemetry import describe_process
from bdh_bridge.text import flatten, without_context_blocks
from bdh_bridge.tools import Tools
from bdh_bridge.transcripts import Transcripts
from bdh_bridge.turns import Turn, Turns
from bdh_bridge.worker.launch import ensure_worker
from bdh_bridge.write_path import WritePath
from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.database import shut_to_others
from bdh_otel.logs import in_logs
from bdh_otel.tracer import Tracer

if TYPE_CHECKING:
    from bdh_bridge.routing.rewrite import Rewriter
    from bdh_bridge.settings import Loaded

log = logging.getLogger(__name__)

#: Seconds that the end of a turn may wait for its spans to be on disk.
FLUSH_SECONDS = 0.25

#: Characters of a message that are kept: more of its beginning than any gate looks at or any query
#: holds, and its end, which may be the question about what was pasted before.
MESSAGE_HEAD, MESSAGE_TAIL = 24_576, 8_192

#: ``error`` marks the turns that failed; all others ended as turns do.
_FAILED = frozenset({"api_error"})


class Bridge:
    """One home's bridge. Thread-safe; its methods may raise, the hooks catch."""

    def __init__(
        self,
        loaded: Loaded,
        *,
        job_prompt: Callable[[str], str | None],
        resource: Mapping[str, Any] | None = None,
        make_rewriter: Callable[[SharedState, Tracer], Rewriter] | None = None,
    ) -> None:
        settings, paths = loaded.settings, loaded.paths
        shut_to_others(paths.directory)
        self.loaded = loaded
        self.settings = settings
        self._job_prompt = job_prompt
        self.tracer = Tracer(
            paths.spans,
            {**describe_process(loaded, "agent"), **(resource or {})},
            content=settings.otel_content,
            max_rows=settings.otel_store_max_rows,
            max_bytes=settings.otel_store_max_bytes,
        )
        self.state = SharedState(paths.state)
        self.blacklist = Blacklist(lambda: resolve_blacklist(settings, paths))
        self.graph = GraphClient(settings.api_url, settings.api_token, settings.vault_id)
        self.outbox = Outbox(
            paths.outbox,
            spool=paths.outbox_spool,
            max_rows=settings.outbox_max_rows,
            max_bytes=settings.outbox_max_bytes,
        )
        self.transcripts = Transcripts(paths.sessions) if settings.session_synth_enabled else None
        self.turns = Turns(self._gave_up)
        self.read_path = ReadPath(
            settings,
            self.blacklist,
            self.state,
            Retriever(self.graph, self.state, self.tracer),
            ExcerptCache(self.graph),
            self.tracer,
            job_prompt,
            make_router(
                settings,
                paths,
                self.tracer,
                make_rewriter(self.state, self.tracer) if make_rewriter else None,
            ),
        )
        self.write_path = WritePath(
            settings,
            self.blacklist,
            self.state,
            self.outbox,
            self.tracer,
            job_prompt,
            self.wake_worker,
            self.transcripts,
        )
        self.tools = Tools(settings, self.graph, self.turns, self.tracer, job_prompt, self.state)
        self._first_turn = threading.Event()
        # Compiling a long list takes a tenth of a second that the first turn need not pay.
        threading.Thread(
            target=lambda: self.blacklist.rules, name="bdh-blacklist", daemon=True
        ).start()

    def begin_turn(self, turn: Turn, history: Sequence[Any]) -> str | None:
        """The read path of a turn that :meth:`new_turn` made. Returns its context or None."""
        self.turns.add(turn)
        turn.span.save_provisional()
        with in_logs(turn.span):
            if not self._first_turn.is_set():
                # Rows that an earlier process left behind wait for a worker, too.
                self._first_turn.set()
                self.wake_worker()
            return self.read_path.run(turn, turn.view, history)

    def new_turn(
        self,
        view: TurnView,
        *,
        task_id: str,
        model: str,
        sender_id: str,
        is_first: bool,
        characters: int | None = None,
    ) -> Turn:
        """State and root span of a turn. Without a turn id of the host it gets its own.

        ``characters``: length of the whole message, of which ``view`` may hold the beginning.
        """
        session_id = view.session_id
        turn_id = view.turn_id or f"{session_id}:{os.urandom(4).hex()}"
        if is_cron(view.platform, session_id):
            prompt = own_prompt(view.text, session_id, self._job_prompt)
            view = dataclasses.replace(view, job_prompt=prompt)
        span = self.tracer.start_span(names.TURN)
        span.set_attributes(
            {
                attr.CONVERSATION_ID: session_id,
                attr.TURN_ID: turn_id,
                attr.PLATFORM: view.platform,
                attr.REQUEST_MODEL: model,
                attr.TURN_FIRST: is_first,
                attr.TURN_MESSAGE_CHARACTERS: len(view.text) if characters is None else characters,
                attr.TURN_MESSAGE: view.subject,
            }
        )
        if sender_id:
            span.set_attribute(attr.SENDER, sender_id)
        delegated_by = self.turns.delegator(view.session_id)
        if delegated_by is not None:
            # Gates judge a sub-agent by the person or the job on whose behalf it runs.
            who = delegated_by.principal
            view = dataclasses.replace(view, session_id=who.session_id, sender_id=who.sender_id)
        return Turn(
            turn_id=turn_id,
            session_id=session_id,
            task_id=task_id,
            platform=view.platform,
            model=model,
            sender_id=sender_id,
            view=view,
            span=span,
            created=time.monotonic(),
            delegated_by=delegated_by,
        )

    def answered(self, turn: Turn | None, answer: AnswerView) -> None:
        """The write path of one API response; ``answer.content`` is the model's own."""
        content = without_context_blocks(answer.content)
        cut = AnswerView(
            session_id=answer.session_id,
            finish_reason=answer.finish_reason,
            content=content,
            tool_calls=answer.tool_calls,
            turn_id=answer.turn_id,
            platform=answer.platform,
            is_background_review=answer.is_background_review,
        )
        if turn is not None and self.turns.revive(turn):
            self._go_on(turn)
        if turn is not None and content:
            turn.span.set_attributes(
                {attr.TURN_ANSWER_CHARACTERS: len(content), attr.TURN_ANSWER: content}
            )
        with in_logs(turn.span if turn else None):
            self.write_path.run(turn, turn.view if turn else None, cut)
        if turn is None:
            self.tracer.flush(FLUSH_SECONDS)

    def end_turn(self, turn: Turn, reason: str, *, error: str = "") -> None:
        """Close a turn's root span and commit its spans, once; later calls do nothing.

        ``reason`` is a close reason of the telemetry contract. A turn that ends by an API error
        may still go on with another provider, so its message stays at hand for a while.
        """
        if not self.turns.remove(turn, grace=reason in _FAILED):
            return
        self._close(turn, reason, error)
        self.tracer.flush(FLUSH_SECONDS)

    def session_ended(self, session_id: str, trigger: Literal["finalize", "reset"]) -> None:
        """Note that a session is over; the worker does the rest.

        On an event loop a thread does the waiting for the disk. It is no daemon: a process that
        ends just now finishes it first.
        """
        transcripts = self.transcripts
        if transcripts is None or not session_id:
            return

        def mark() -> None:
            if transcripts.mark_ended(session_id, trigger):
                self.wake_worker()

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            mark()
        else:
            threading.Thread(target=mark, name="bdh-bridge-session", daemon=False).start()

    def wake_worker(self) -> None:
        """See that a worker runs if there is anything for it to do. Never raises."""
        ensure_worker(self.loaded)

    def retire(self) -> None:
        """Another bridge of the same home takes over. Calls and turns under way still end in
        peace: a span that ends later opens the store again."""
        self.tracer.shutdown()

    def close(self) -> None:
        """For tests and the command line: the agent's process just ends."""
        self.tracer.shutdown()
        self.graph.close()
        self.state.close()
        if self.transcripts is not None:
            self.transcripts.close()

    def _go_on(self, turn: Turn) -> None:
        """The host has found another provider after the error that ended ``turn``: a second part
        of the turn, below the first."""
        first = turn.span
        turn.span = self.tracer.start_span(names.TURN, parent=first)
        kept = (attr.TURN_FIRST, attr.TURN_MESSAGE_CHARACTERS, attr.TURN_MESSAGE, attr.SENDER)
        turn.span.set_attributes({name: first.attributes.get(name) for name in kept})
        turn.span.save_provisional()

    def _close(self, turn: Turn, reason: str, error: str = "") -> None:
        turn.span.set_attributes(
            {
                attr.TURN_ROUTE: turn.route,
                attr.TURN_READ_OUTCOME: turn.read_outcome,
                attr.TURN_WRITE_OUTCOME: turn.write_outcome,
                attr.TURN_EXPLICIT_QUERY: turn.used_bdh_query,
                attr.TURN_CLOSE_REASON: reason,
            }
        )
        if error:
            turn.span.fail(error)
        turn.span.end()

    def _gave_up(self, turn: Turn, reason: str) -> None:
        self._close(turn, {"superseded": "next_turn"}.get(reason, "expired"))


def message_view(
    message: Any,
    *,
    session_id: str,
    turn_id: str,
    platform: str,
    sender_id: str,
    is_background_review: bool,
) -> TurnView:
    """A host's message as the gates see it: a huge one without its middle, since turns whose
    end is never heard of stay in memory for hours."""
    return TurnView(
        session_id=session_id,
        turn_id=turn_id,
        platform=platform,
        sender_id=sender_id,
        message=_without_middle(message) if isinstance(message, str) else None,
        flattened="" if isinstance(message, str) else _without_middle(flatten(message)),
        is_background_review=is_background_review,
    )


def _without_middle(text: str) -> str:
    if len(text) <= MESSAGE_HEAD + MESSAGE_TAIL:
        return text
    return f"{text[:MESSAGE_HEAD]}\n...\n{text[-MESSAGE_TAIL:]}"
