"""Hermes' hooks: its keyword arguments in, calls of the bridge out.

A hook never raises and never changes the host's behaviour by failing: whatever goes wrong is
logged once per kind and the turn goes on as if the bridge were not there. Fields come and go
between Hermes versions, so everything is taken from ``**kwargs`` leniently.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from bdh_bridge.author import without_author
from bdh_bridge.bridge import Bridge, message_view
from bdh_bridge.caller import note_dispatch
from bdh_bridge.gates.view import AnswerView
from bdh_bridge.text import bounded, flatten
from bdh_bridge.turns import Turn

log = logging.getLogger(__name__)
R = TypeVar("R")

MARKER = "[BDH]"
MAX_ID_BYTES = 1_024


def guarded(hook: Callable[..., R]) -> Callable[..., R | None]:
    """Catch everything; the first failure of each kind is logged with its traceback."""
    seen: set[str] = set()
    lock = threading.Lock()

    @functools.wraps(hook)
    def guard(*args: Any, **kwargs: Any) -> R | None:
        try:
            return hook(*args, **kwargs)
        except Exception as error:
            kind = type(error).__name__
            with lock:
                first = kind not in seen
                seen.add(kind)
            if first:
                log.exception("[bdh-bridge] %s failed; the turn goes on", hook.__name__)
            else:
                log.debug("[bdh-bridge] %s failed again: %s", hook.__name__, kind)
            return None

    return guard


class Hooks:
    """The callbacks that are registered with Hermes, by their hooks' names."""

    NAMES = (
        "pre_llm_call",
        "post_api_request",
        "transform_llm_output",
        "api_request_error",
        "on_session_end",
        "on_session_finalize",
        "on_session_reset",
        "subagent_start",
        "pre_gateway_dispatch",
    )

    def __init__(
        self, bridge: Callable[[], Bridge | None], is_background_review: Callable[[], bool]
    ) -> None:
        """``bridge`` gives the one of the home whose turn it is, None where it has none."""
        self._bridge = bridge
        self._is_background_review = is_background_review

    @guarded
    def pre_llm_call(self, **kwargs: Any) -> dict[str, str] | None:
        """A turn begins. Returns context for the user's message, or None."""
        if (bridge := self._bridge()) is None:
            return None
        sender_id = _text(kwargs, "sender_id")
        message = kwargs.get("user_message")
        view = message_view(
            without_author(message) if isinstance(message, str) else message,
            session_id=_text(kwargs, "session_id"),
            turn_id=_text(kwargs, "turn_id"),
            platform=_text(kwargs, "platform"),
            sender_id=sender_id,
            is_background_review=self._is_background_review(),
        )
        turn = bridge.new_turn(
            view,
            task_id=_text(kwargs, "task_id"),
            model=_text(kwargs, "model"),
            sender_id=sender_id,
            is_first=kwargs.get("is_first_turn") is True,
            characters=len(message) if isinstance(message, str) else None,
        )
        history = kwargs.get("conversation_history")
        context = bridge.begin_turn(turn, history if isinstance(history, list) else [])
        return {"context": context} if context else None

    @guarded
    def post_api_request(self, **kwargs: Any) -> None:
        """The model answered, finally or with tool calls."""
        if (bridge := self._bridge()) is None:
            return
        message = kwargs.get("assistant_message")
        calls = kwargs.get("assistant_tool_call_count")
        if not isinstance(calls, int):
            calls = len(getattr(message, "tool_calls", None) or ())
        session_id, turn_id = _text(kwargs, "session_id"), _text(kwargs, "turn_id")
        answer = AnswerView(
            session_id=session_id,
            turn_id=turn_id,
            platform=_text(kwargs, "platform"),
            finish_reason=_text(kwargs, "finish_reason"),
            content=flatten(getattr(message, "content", None)),
            tool_calls=calls,
            is_background_review=self._is_background_review(),
        )
        bridge.answered(bridge.turns.get(turn_id, session_id), answer)

    @guarded
    def transform_llm_output(self, **kwargs: Any) -> str | None:
        """Mark an answer that used the graph on purpose, where the operator wants that."""
        bridge = self._bridge()
        if bridge is None or not bridge.settings.answer_marker:
            return None
        turn = bridge.turns.get("", _text(kwargs, "session_id"))
        text = kwargs.get("response_text")
        if turn is None or not turn.used_bdh_query or not isinstance(text, str):
            return None
        return None if text.startswith(MARKER) else f"{MARKER} {text}"

    @guarded
    def api_request_error(self, **kwargs: Any) -> None:
        """An API call failed. Unless it is tried again, this is the last that is heard."""
        bridge = self._bridge()
        turn = _turn(bridge, kwargs)
        if bridge is None or turn is None:
            return
        retries, most = kwargs.get("retry_count"), kwargs.get("max_retries")
        again = kwargs.get("retryable") is True and (
            not isinstance(retries, int) or not isinstance(most, int) or retries + 1 < most
        )
        if not again:
            bridge.end_turn(turn, "api_error", error=_text(kwargs, "reason") or "api_error")

    @guarded
    def on_session_end(self, **kwargs: Any) -> None:
        """A turn ended (the host fires this for every turn)."""
        bridge = self._bridge()
        turn = _turn(bridge, kwargs)
        if bridge is not None and turn is not None:
            interrupted = kwargs.get("interrupted") is True
            bridge.end_turn(turn, "interrupted" if interrupted else "end_of_turn")

    @guarded
    def on_session_finalize(self, **kwargs: Any) -> None:
        """A session is over. In the gateway this runs on the event loop."""
        if bridge := self._bridge():
            bridge.session_ended(_text(kwargs, "session_id"), "finalize")

    @guarded
    def on_session_reset(self, **kwargs: Any) -> None:
        """A new session takes the place of an old one; the host does not always name the old
        one. A session that only begins has nothing written yet, so marking it does nothing."""
        ended = _text(kwargs, "old_session_id") or _text(kwargs, "session_id")
        if bridge := self._bridge():
            bridge.session_ended(ended, "reset")

    @guarded
    def subagent_start(self, **kwargs: Any) -> None:
        """A turn delegates: what the sub-agent may read and teach is what this turn may."""
        bridge, child = self._bridge(), _text(kwargs, "child_session_id")
        if bridge is None or not child:
            return
        parent_session = _text(kwargs, "parent_session_id")
        turn = bridge.turns.get(_text(kwargs, "parent_turn_id"), parent_session)
        if turn is not None:
            bridge.turns.delegate(child, turn)

    @guarded
    def pre_gateway_dispatch(self, **kwargs: Any) -> None:
        """A message reached the gateway, on its event loop: ``/bdh`` has to know who gives it."""
        note_dispatch(kwargs.get("event"), kwargs.get("gateway"))


def _turn(bridge: Bridge | None, kwargs: dict[str, Any]) -> Turn | None:
    if bridge is None:
        return None
    return bridge.turns.get(_text(kwargs, "turn_id"), _text(kwargs, "session_id"))


def _text(kwargs: dict[str, Any], name: str) -> str:
    """A name or id of the host: valid Unicode, bounded, since thousands are kept."""
    value = kwargs.get(name)
    text = value if isinstance(value, str) else "" if value is None else str(value)
    return bounded(text, MAX_ID_BYTES)
