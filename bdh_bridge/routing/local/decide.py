"""The local router: a conversation in, two calibrated probabilities and two decisions out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bdh_bridge.routing.local.conversation import Conversation
from bdh_bridge.routing.local.features import BLOCKS, Vector, features, names
from bdh_bridge.routing.local.query import is_follow_up, queries

if TYPE_CHECKING:
    from bdh_bridge.routing.local.encoder import Encoder
    from bdh_bridge.routing.local.head import Head

#: Blocks whose single numbers mean nothing to a reader: shown as one.
_WHOLE = {
    "message": "meaning of the message",
    "first_sentence": "meaning of the first sentence",
    "last_sentence": "meaning of the last sentence",
    "topic": "meaning of the message before, since this one is short",
    "topic_answer": "meaning of the answer before, since this one is short",
    "user_before": "meaning of the message before",
    "assistant_before": "meaning of the answer before",
}


@dataclass(frozen=True, slots=True)
class LocalDecision:
    """Probabilities and thresholds are (read, store). ``grey`` names the flags in doubt.

    ``queries`` are what a follow-up asks the graph, empty for a message that speaks for itself.
    ``strongest`` are the features
    that moved each flag most, with how far in logits: ``("cue_why", 0.8)``.
    """

    read: bool
    store: bool
    probabilities: tuple[float, float]
    thresholds: tuple[float, float]
    grey: tuple[str, ...]
    follow_up: bool
    queries: tuple[str, ...]
    strongest: dict[str, tuple[tuple[str, float], ...]]


class LocalRouter:
    """Decides within milliseconds. Safe to share between threads."""

    def __init__(self, encoder: Encoder, head: Head) -> None:
        self.encoder = encoder
        self.head = head

    def decide(self, given: Conversation, *, strongest: int = 4) -> LocalDecision:
        found = features(given, self.encoder.remembered)
        parts = self.head.flags
        read, store = (parts[flag].probability(found) for flag in ("read", "store"))
        grey = tuple(
            flag
            for flag, p in (("read", read), ("store", store))
            if parts[flag].grey[0] <= p <= parts[flag].grey[1]
        )
        return LocalDecision(
            read=read >= parts["read"].threshold,
            store=store >= parts["store"].threshold,
            probabilities=(read, store),
            thresholds=(parts["read"].threshold, parts["store"].threshold),
            grey=grey,
            follow_up=is_follow_up(given),
            queries=tuple(queries(given)),
            strongest={flag: self._strongest(flag, found, strongest) for flag in parts},
        )

    def _strongest(self, flag: str, found: Vector, count: int) -> tuple[tuple[str, float], ...]:
        moved = self.head.contributions(flag, found)
        named: dict[str, float] = {}
        for block in BLOCKS:
            part = moved[block.start : block.stop]
            if block.name in _WHOLE:
                named[_WHOLE[block.name]] = float(part.sum())
            else:
                for at in np.argsort(-np.abs(part))[:count]:
                    named[_NAMES[block.start + int(at)]] = float(part[at])
        ranked = sorted(named.items(), key=lambda pair: -abs(pair[1]))[:count]
        return tuple((name, round(value, 2)) for name, value in ranked)


_NAMES = names()
