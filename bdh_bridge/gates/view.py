"""What gates see of a turn: plain values, taken from the host's hooks by the caller."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TurnView:
    """A turn as it starts.

    ``message`` is None when the host's message is no plain string (images, blocks): such a turn
    can't carry injected context. ``flattened`` then holds the text of its blocks, which may
    still be written. ``is_background_review`` is what the host itself says; the message's
    wording is looked at as well. ``job_prompt`` is what a scheduled job's own record asks: the
    host wraps it in instructions that are the same for all jobs.
    """

    session_id: str
    turn_id: str = ""
    platform: str = ""
    sender_id: str = ""
    message: str | None = None
    flattened: str = ""
    is_background_review: bool = False
    job_prompt: str = ""

    @property
    def text(self) -> str:
        """The words of the message, whatever form it had."""
        return self.flattened if self.message is None else self.message

    @property
    def subject(self) -> str:
        """What the turn is about: what is looked for, and what is learned is filed under."""
        return self.job_prompt or self.text


@dataclass(frozen=True, slots=True)
class AnswerView:
    """An answer of the model. ``tool_calls`` is their number; ``content`` is flattened text."""

    session_id: str
    finish_reason: str
    content: str
    tool_calls: int = 0
    turn_id: str = ""
    platform: str = ""
    is_background_review: bool = False
