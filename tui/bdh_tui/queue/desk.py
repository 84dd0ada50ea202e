"""What a queue has to offer so that :class:`bdh_tui.queue.pane.QueuePane` can show it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Tone = Literal["waiting", "trouble", "settled"]


@dataclass(frozen=True, slots=True)
class Item:
    """A row of the queue. ``since`` is a Unix time; ``why`` a sentence on its state; ``what`` one
    line of its text, empty where that is gone; ``row`` the queue's own object."""

    id: str
    state: str
    tone: Tone
    since: float
    attempts: int
    where: str
    what: str
    why: str
    trace_id: str
    row: Any


class DeskError(Exception):
    """The queue can't be asked or changed: one sentence."""


class Desk(ABC):
    """A queue seen by its operator. Everything here runs off the loop and may block for seconds.

    All methods raise :class:`DeskError`.
    """

    name: str
    states: Mapping[str, Tone]
    """Every state in its order, and what it means to an operator."""
    delivers = False
    """``deliver`` does something."""

    @abstractmethod
    def counts(self) -> dict[str, int] | None:
        """How many rows are in which state; None if there is no queue yet."""

    def note(self) -> str:
        """A line on what surrounds the queue; empty if there is nothing to tell."""
        return ""

    @abstractmethod
    def items(self, states: Collection[str], limit: int) -> list[Item]:
        """The newest rows in these states, newest first."""

    @abstractmethod
    def text(self, item: Item) -> str:
        """Everything about it, its payload last; not escaped."""

    @abstractmethod
    def can_discard(self, item: Item) -> bool: ...

    @abstractmethod
    def can_requeue(self, item: Item) -> bool: ...

    @abstractmethod
    def risk(self, item: Item) -> str:
        """What may go wrong if it is requeued, as a sentence; empty if nothing can."""

    @abstractmethod
    def discard(self, items: Sequence[Item]) -> str:
        """Drop them; returns what was done."""

    @abstractmethod
    def requeue(self, items: Sequence[Item]) -> str:
        """Put them back; the risk has been confirmed. Returns what was done."""

    def deliver(self) -> str:
        """Don't wait any longer; returns what was done."""
        raise DeskError("nothing is delivered from here")

    @abstractmethod
    def close(self) -> None:
        """Let go of files."""
