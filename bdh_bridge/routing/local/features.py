"""From a conversation to the numbers that the head weighs.

The blocks, in this order: sentence vectors of the message, of its first and its last sentence, of
the user's message before and of the answer to that; the latter two once more as far as the message
is short, since a short one means what was spoken of; cosines; the shape. (Hashed words and
character n-grams were tried: they learn their writer's words, and cost accuracy on others'.)
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bdh_bridge.gates import eligibility
from bdh_bridge.routing.local.conversation import Conversation
from bdh_bridge.routing.local.encoder import DIMENSIONS, LAYER
from bdh_bridge.routing.local.shape import NAMES as SHAPE_NAMES
from bdh_bridge.routing.local.shape import shape, shown
from bdh_bridge.routing.text import clean, clip_middle

Vector = NDArray[np.float32]
Embed = Callable[[Sequence[str]], Vector]
"""Shape (number of texts, DIMENSIONS), as :class:`~bdh_bridge.routing.local.encoder.Encoder` makes
them."""

#: Characters that are encoded: the cost grows with them, and the topic is told by then.
MESSAGE_CHARS, SENTENCE_CHARS, BEFORE_CHARS = 400, 200, 200
#: A message of this length (in letters of an alphabet) takes 1/e of its meaning from before.
SHORT = 60.0

_SENTENCE_END = re.compile(r"(?<=[.!?。！？\n])\s*")


@dataclass(frozen=True, slots=True)
class Block:
    name: str
    start: int
    stop: int


def _blocks() -> tuple[Block, ...]:
    sizes = {
        "message": DIMENSIONS,
        "first_sentence": DIMENSIONS,
        "last_sentence": DIMENSIONS,
        "user_before": DIMENSIONS,
        "assistant_before": DIMENSIONS,
        "topic": LAYER,
        "topic_answer": LAYER,
        "cosines": 4,
        "shape": len(SHAPE_NAMES),
    }
    made, at = [], 0
    for name, size in sizes.items():
        made.append(Block(name, at, at + size))
        at += size
    return tuple(made)


BLOCKS = _blocks()
SIZE = BLOCKS[-1].stop


@dataclass(frozen=True, slots=True)
class Texts:
    """What is encoded; ``""`` where there is none."""

    message: str
    first: str
    last: str
    user: str
    assistant: str
    earlier: str


def texts(given: Conversation) -> Texts:
    message = clip_middle(clean(given.message), MESSAGE_CHARS)
    sentences = [part for part in _SENTENCE_END.split(given.message) if part.strip()]
    if len(sentences) > 1:
        first = clip_middle(clean(sentences[0]), SENTENCE_CHARS)
        last = clip_middle(clean(sentences[-1]), SENTENCE_CHARS)
    else:
        first = last = message
    return Texts(
        message,
        first,
        last,
        clip_middle(given.last("user"), BEFORE_CHARS),
        clip_middle(given.last("assistant"), BEFORE_CHARS),
        clip_middle(given.last("user", skip=1), BEFORE_CHARS),
    )


def features(given: Conversation, embed: Embed) -> Vector:
    """Shape (SIZE,). ``embed`` is asked once, for the texts that are there."""
    found = texts(given)
    wanted = (
        found.message,
        found.first,
        found.last,
        found.user,
        found.assistant,
        found.earlier,
    )
    there = [text for text in dict.fromkeys(wanted) if text]
    known = dict(zip(there, embed(there), strict=True)) if there else {}
    zero = np.zeros(DIMENSIONS, dtype=np.float32)
    message, first, last, user, assistant, earlier = (known.get(text, zero) for text in wanted)
    topic, answer, own = user[:LAYER], assistant[:LAYER], message[:LAYER]
    cosines = [own @ topic, own @ answer, topic @ answer, own @ earlier[:LAYER]]
    brevity = np.float32(math.exp(-eligibility.weigh(shown(given.message)) / SHORT))
    return np.concatenate(
        [
            message,
            first,
            last,
            user,
            assistant,
            brevity * topic,
            brevity * answer,
            np.asarray(cosines, dtype=np.float32),
            np.asarray(shape(given), dtype=np.float32),
        ],
        dtype=np.float32,
    )


def names() -> list[str]:
    """A name for every feature, as ``explain`` shows it."""
    named: list[str] = []
    for block in BLOCKS:
        if block.name == "shape":
            named.extend(SHAPE_NAMES)
        elif block.name == "cosines":
            named.extend(("like_user_before", "like_assistant_before", "exchange", "like_earlier"))
        else:
            named.extend(f"{block.name}[{at}]" for at in range(block.stop - block.start))
    return named
