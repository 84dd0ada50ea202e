"""Labelled messages from a file, and how the routers decide them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bdh_bridge.gates.eligibility import eligibility
from bdh_bridge.gates.reasons import Reason
from bdh_bridge.routing.local.conversation import Conversation, conversation

if TYPE_CHECKING:
    from bdh_bridge.routing.local.decide import LocalRouter

_READ, _STORE = ("read", "should_retrieve"), ("store", "store_candidate")


@dataclass(frozen=True, slots=True)
class Labelled:
    id: str
    language: str
    kind: str
    given: Conversation
    read: bool
    store: bool


def read_labelled(path: Path) -> list[Labelled]:
    """From JSON lines, or one JSON object with ``cases``. Each has ``message``, ``history``
    (``role`` with ``content`` or ``text``), and the flags ``read`` and ``store`` (or
    ``should_retrieve`` and ``store_candidate``), at its top or in ``expect``.

    Raises: ValueError that names the place; OSError.
    """
    return [_labelled(number, item) for number, item in _items(path)]


def local_decisions(router: LocalRouter, cases: Sequence[Labelled]) -> NDArray[np.bool_]:
    """(cases, 2): read and store."""
    found = [router.decide(case.given, strongest=0) for case in cases]
    return np.array([[item.read, item.store] for item in found], dtype=bool).reshape(-1, 2)


def mechanical_decisions(messages: Sequence[Conversation]) -> NDArray[np.bool_]:
    """What happens without a router, (messages, 2): the gate decides on reading, and whatever gets
    a long answer is stored. Small talk seldom gets one."""
    decisions = [eligibility(given.message) for given in messages]
    return np.array(
        [[found.allowed, found.reason != Reason.CASUAL] for found in decisions], dtype=bool
    ).reshape(-1, 2)


def _items(path: Path) -> Iterator[tuple[int, Any]]:
    text = path.read_text(encoding="utf-8")
    try:
        whole = json.loads(text)
    except ValueError:
        whole = None
    if isinstance(whole, Mapping) and isinstance(whole.get("cases"), list):
        yield from enumerate(whole["cases"], start=1)
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None


def _labelled(number: int, item: Any) -> Labelled:
    if not isinstance(item, Mapping) or not isinstance(item.get("message"), str):
        raise ValueError(f"line {number}: no message")
    labels = item.get("expect")
    labels = labels if isinstance(labels, Mapping) else item
    flags = [next((labels[key] for key in keys if key in labels), None) for keys in (_READ, _STORE)]
    if not all(type(flag) is bool for flag in flags):
        raise ValueError(f"line {number}: read and store must be true or false")
    history = item.get("history") or []
    if not isinstance(history, list) or not all(isinstance(turn, Mapping) for turn in history):
        raise ValueError(f"line {number}: the history is no list of messages")
    host = [{"role": h.get("role"), "content": h.get("content", h.get("text"))} for h in history]
    return Labelled(
        str(item.get("id", number)),
        str(item.get("language", "")),
        str(item.get("kind", "")),
        conversation(item["message"], [*host, {"role": "user", "content": item["message"]}]),
        bool(flags[0]),
        bool(flags[1]),
    )
