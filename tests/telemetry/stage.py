"""The whole bridge of one home without a host: real stores, real servers, turn after turn."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bdh_bridge.bridge import Bridge, message_view
from bdh_bridge.gates.view import AnswerView
from bdh_bridge.outbox.store import Outbox
from bdh_bridge.routing.rewrite import Rewriter
from bdh_bridge.settings import Loaded, load
from bdh_bridge.turns import Turn
from bdh_bridge.worker.once import deliver_now
from bdh_otel.reader import SpanReader, StoredSpan

QUESTION = "Why did we move the flood gauges to the new protocol?"
ANSWER = "Because the old protocol loses a reading when two gauges answer at once. " * 5

#: What the graph says when it knows something.
KNOWN: dict[str, Any] = {
    "response": "",
    "activated_notes": [
        {"id": "n1", "title": "Gauge protocol", "score": 0.9, "excerpt": "Two gauges at once."}
    ],
    "routing": {
        "vector_top_score": 0.8,
        "hybrid_top_score": 0.8,
        "hybrid_second_score": 0.4,
        "hybrid_margin": 0.4,
        "bm25_top_score": 1.0,
        "bm25_query_term_count": 4,
        "bm25_matched_term_count": 3,
        "bm25_matched_terms": ["gauges", "protocol", "flood"],
        "hybrid_enabled": True,
    },
    "new_concepts": [],
    "hebbian_updates": [],
}


class Stage:
    """``variables`` are those of the home; what a second stage of the same home is given counts
    for it alone. ``jobs`` maps a scheduled job's id to its prompt."""

    _numbers = itertools.count(1)

    def __init__(
        self,
        home: Path,
        graph_url: str,
        *,
        jobs: Callable[[str], str | None] = lambda job: None,
        host_llm: Any = None,
        **variables: str,
    ) -> None:
        self.environ = {
            "BDH_API_URL": graph_url,
            "BDH_WORKER": "off",
            **variables,
        }
        self.loaded: Loaded = load(home, environ=self.environ)
        assert self.loaded.warnings == ()
        settings = self.loaded.settings
        self.bridge = Bridge(
            self.loaded,
            job_prompt=jobs,
            make_rewriter=(
                (lambda state, tracer: Rewriter(settings, state, tracer, host_llm=host_llm))
                if settings.asks_model
                else None
            ),
        )

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.bridge.close()
        self.bridge.outbox.close()

    @property
    def outbox(self) -> Outbox:
        return self.bridge.outbox

    def begin(
        self,
        message: Any = QUESTION,
        *,
        session: str = "",
        platform: str = "cli",
        sender: str = "",
        review: bool = False,
        history: Sequence[Any] = (),
    ) -> tuple[Turn, str | None]:
        """A turn up to the model's answer; the context that it got."""
        number = next(self._numbers)
        view = message_view(
            message,
            session_id=session or f"session-{number}",
            turn_id=f"turn-{number}",
            platform=platform,
            sender_id=sender,
            is_background_review=review,
        )
        turn = self.bridge.new_turn(
            view, task_id="", model="host-model", sender_id=sender, is_first=False
        )
        return turn, self.bridge.begin_turn(turn, list(history))

    def answer(self, turn: Turn | None, content: str = ANSWER, **more: Any) -> None:
        given: dict[str, Any] = {
            "session_id": turn.session_id if turn else "unknown",
            "turn_id": turn.turn_id if turn else "unknown",
            "platform": turn.platform if turn else "cli",
            "finish_reason": "stop",
            "content": content,
            "tool_calls": 0,
            "is_background_review": bool(turn and turn.view.is_background_review),
        }
        self.bridge.answered(turn, AnswerView(**{**given, **more}))

    def turn(self, message: Any = QUESTION, answer: str = ANSWER, **how: Any) -> list[StoredSpan]:
        """A whole turn; its spans."""
        turn, _ = self.begin(message, **how)
        self.answer(turn, answer)
        self.bridge.end_turn(turn, "end_of_turn")
        return self.trace(turn)

    def deliver(self) -> None:
        """What the worker does, in this process."""
        deliver_now(self.loaded)

    def trace(self, turn: Turn) -> list[StoredSpan]:
        assert self.bridge.tracer.flush(10)
        with contextlib.closing(SpanReader(self.loaded.paths.spans)) as reader:
            return reader.trace(f"{turn.span.trace_id:032x}")


def spans_of(path: Path) -> list[StoredSpan]:
    with contextlib.closing(SpanReader(path)) as reader:
        return reader.after(0, limit=1_000_000)


def knowing(**changes: Any) -> Mapping[str, Any]:
    """:data:`KNOWN` with other scores."""
    return {**KNOWN, "routing": {**KNOWN["routing"], **changes}}


def said(spans: list[StoredSpan], name: str) -> set[Any]:
    """All values of an attribute."""
    return {span.attributes[name] for span in spans if name in span.attributes}
