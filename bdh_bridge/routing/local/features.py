"""From a conversation to the numbers that the head weighs.

The blocks, in this order: sentence vectors of the message, of the last user message and of the
last answer; their products and cosines; the shape; hashed words and character n-grams.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bdh_bridge.routing.local.conversation import Conversation
from bdh_bridge.routing.local.shape import NAMES as SHAPE_NAMES
from bdh_bridge.routing.local.shape import shape, shown
from bdh_bridge.routing.text import clean, clip_middle

Vector = NDArray[np.float32]
Embed = Callable[[Sequence[str]], Vector]
"""Unit vectors, shape (number of texts, DIMENSIONS)."""

DIMENSIONS = 512
#: Characters that are encoded: the cost grows with them, and the topic is told by then.
MESSAGE_CHARS, BEFORE_CHARS = 400, 200
WORD_BUCKETS, GRAM_BUCKETS = 4_096, 4_096

_TOKEN = re.compile(r"\w+|[^\w\s]")
_SPACELESS = re.compile("[\u3040-\u30ff\u3400-\u9fff]")


@dataclass(frozen=True, slots=True)
class Block:
    name: str
    start: int
    stop: int


def _blocks() -> tuple[Block, ...]:
    sizes = {
        "message": DIMENSIONS,
        "user_before": DIMENSIONS,
        "assistant_before": DIMENSIONS,
        "cosines": 4,
        "shape": len(SHAPE_NAMES),
        "words": WORD_BUCKETS,
        "grams": GRAM_BUCKETS,
    }
    made, at = [], 0
    for name, size in sizes.items():
        made.append(Block(name, at, at + size))
        at += size
    return tuple(made)


BLOCKS = _blocks()
SIZE = BLOCKS[-1].stop


def texts(given: Conversation) -> tuple[str, str, str, str]:
    """What is encoded: the message, the last user message, the last answer, the user message
    before that; ``""`` where there is none."""
    return (
        clip_middle(clean(given.message), MESSAGE_CHARS),
        clip_middle(given.last("user"), BEFORE_CHARS),
        clip_middle(given.last("assistant"), BEFORE_CHARS),
        clip_middle(given.last("user", skip=1), BEFORE_CHARS),
    )


def features(given: Conversation, embed: Embed) -> Vector:
    """Shape (SIZE,). ``embed`` is asked once, for the texts that are there."""
    wanted = texts(given)
    there = [text for text in dict.fromkeys(wanted) if text]
    known = dict(zip(there, embed(there), strict=True)) if there else {}
    zero = np.zeros(DIMENSIONS, dtype=np.float32)
    message, user, assistant, earlier = (known.get(text, zero) for text in wanted)
    cosines = [message @ user, message @ assistant, user @ assistant, message @ earlier]
    words, grams = hashed(given.message)
    return np.concatenate(
        [
            message,
            user,
            assistant,
            np.asarray(cosines, dtype=np.float32),
            np.asarray(shape(given), dtype=np.float32),
            words,
            grams,
        ],
        dtype=np.float32,
    )


def hashed(text: str) -> tuple[Vector, Vector]:
    """Words with their neighbours, and the character n-grams inside of words, each as a unit
    vector over its buckets. Shapes (WORD_BUCKETS,), (GRAM_BUCKETS,)."""
    words = np.zeros(WORD_BUCKETS, dtype=np.float32)
    grams = np.zeros(GRAM_BUCKETS, dtype=np.float32)
    seen = shown(text)
    words[[bucket for _, bucket in _words(seen)]] = 1.0
    grams[[bucket for _, bucket in _grams(seen)]] = 1.0
    return _unit(words), _unit(grams)


def bucket_items(text: str, block: str) -> list[tuple[str, int]]:
    """What filled the buckets of ``words`` or ``grams``: words, each with one of its buckets."""
    found = (_words if block == "words" else _grams)(shown(text))
    return list(dict.fromkeys(found))


def _words(seen: str) -> list[tuple[str, int]]:
    pieces: list[str] = []
    for token in _TOKEN.findall(seen):  # a run without blanks is taken as single characters
        pieces.extend(token if _SPACELESS.search(token) else (token,))
    pairs = [f"{a} {b}" for a, b in zip(["^", *pieces], [*pieces, "$"], strict=True)]
    return [(item, _bucket(item, WORD_BUCKETS)) for item in pieces + pairs]


def _grams(seen: str) -> list[tuple[str, int]]:
    return [
        (token, _bucket(padded[at : at + size], GRAM_BUCKETS))
        for token in _TOKEN.findall(seen)
        for padded in (f" {token} ",)
        for size in (3, 4)
        for at in range(len(padded) - size + 1)
    ]


def _bucket(item: str, buckets: int) -> int:
    return zlib.crc32(item.encode("utf-8", "replace")) % buckets


def _unit(values: Vector) -> Vector:
    norm = np.linalg.norm(values)
    return values / norm if norm else values


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
