"""Labelled messages from a file, and how the routers decide them."""

from __future__ import annotations

import codecs
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
MAX_BYTES = 256 * 1024 * 1024


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
    return [_labelled(place, number, item) for place, number, item in _items(path)]


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


def _items(path: Path) -> Iterator[tuple[str, int, Any]]:
    """What the place of each is called, its number from 1, and itself."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"over {MAX_BYTES:,} bytes")
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        whole = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        whole = None
    if isinstance(whole, Mapping) and isinstance(whole.get("cases"), list):
        for number, item in enumerate(whole["cases"], start=1):
            yield f"case {number}", number, item
        return
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            yield f"line {number}", number, _json(f"line {number}", line)


def _json(place: str, line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError(f"{place}: not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{place}: not JSON: {error.msg} at character {error.pos + 1}") from None
    except (ValueError, RecursionError):  # numbers of thousands of digits, endless nesting
        raise ValueError(f"{place}: not JSON that can be read") from None


def _labelled(place: str, number: int, item: Any) -> Labelled:
    if not isinstance(item, Mapping) or not isinstance(item.get("message"), str):
        raise ValueError(f'{place}: no object with a "message"')
    labels = item.get("expect")
    labels = labels if isinstance(labels, Mapping) else item
    flags = [next((labels[key] for key in keys if key in labels), None) for keys in (_READ, _STORE)]
    if not all(type(flag) is bool for flag in flags):
        raise ValueError(f"{place}: read and store must be true or false")
    history = item.get("history") or []
    if not isinstance(history, list) or not all(isinstance(turn, Mapping) for turn in history):
        raise ValueError(f"{place}: the history is no list of messages")
    host = [{"role": h.get("role"), "content": h.get("content", h.get("text"))} for h in history]
    return Labelled(
        str(item.get("id", number)),
        str(item.get("language", "")),
        str(item.get("kind", "")),
        conversation(item["message"], [*host, {"role": "user", "content": item["message"]}]),
        bool(flags[0]),
        bool(flags[1]),
    )
