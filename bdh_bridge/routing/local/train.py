"""Making a head: from labelled conversations, or from the shipped head and a few corrections.

Used by ``scripts/train_router.py`` and by ``bdh-bridge router train``, never by a turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bdh_bridge.routing.local.conversation import Conversation
from bdh_bridge.routing.local.encoder import LAYER
from bdh_bridge.routing.local.features import BLOCKS, SIZE, Embed, Vector, features
from bdh_bridge.routing.local.fit import Matrix, calibrate, fit, sigmoid
from bdh_bridge.routing.local.head import FLAGS, FlagHead, Head

#: How much each block may weigh: the square of its features' scale. Chosen by cross-validation.
SCALES: Mapping[str, float] = {
    "message": 1.0,
    "first_sentence": 0.4,
    "last_sentence": 0.4,
    "user_before": 0.3,
    "assistant_before": 0.3,
    "topic": 0.5,
    "topic_answer": 0.5,
    "cosines": 0.3,
    "shape": 1.0,
}
PENALTY = 2e-4
#: What holds a personal head to the shipped one, against the summed loss of the corrections: one
#: of them moves the logit of a message just like it by two at most.
PERSONAL_PENALTY = 2.0
#: Most false reads and false stores, as shares of the messages that want none: somewhat under the
#: aims of 0.08 and 0.05, since other writers differ.
CAPS = (0.075, 0.045)
#: Of messages in the grey zone more are expected to be wrong than this share.
DOUBT = 0.2


@dataclass(frozen=True, slots=True)
class Samples:
    """``features`` (samples, SIZE); ``targets`` in 0..1 and ``weights``, both (samples, 2), read
    and store; ``groups`` (samples,) numbers the writers, who are never on both sides.

    ``usual`` (samples,) marks those that come as often as in use: thresholds are set by them
    alone, since a cap on false decisions means shares. None: all are."""

    features: NDArray[np.float32]
    targets: Matrix
    weights: Matrix
    groups: NDArray[np.int64]
    usual: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.features)

    def only(self, chosen: NDArray[Any]) -> Samples:
        return Samples(
            self.features[chosen],
            self.targets[chosen],
            self.weights[chosen],
            self.groups[chosen],
            None if self.usual is None else self.usual[chosen],
        )

    def for_threshold(self, at: int) -> NDArray[np.bool_]:
        """Which samples set the threshold of flag ``at``: the usual ones of undisputed label; all
        of them where none is usual."""
        sure: NDArray[np.bool_] = self.weights[:, at] == 1
        chosen = sure if self.usual is None else sure & self.usual
        return chosen if chosen.any() else sure


def measure(conversations: Sequence[Conversation], embed: Embed) -> NDArray[np.float32]:
    """Features of all, shape (conversations, SIZE)."""
    if not conversations:
        return np.zeros((0, SIZE), dtype=np.float32)
    return np.stack([features(given, embed) for given in conversations])


@dataclass(frozen=True, slots=True)
class Scaling:
    """Features as the fit sees them: ``(x - means) * scales``."""

    means: Vector
    scales: Vector

    @classmethod
    def of(cls, found: NDArray[np.float32], weigh: Mapping[str, float] = SCALES) -> Scaling:
        """Features of the shape are brought to one spread each, layers of vectors as a whole. A
        block that ``weigh`` does not name is left out."""
        means, scales = np.zeros(SIZE, dtype=np.float32), np.zeros(SIZE, dtype=np.float32)
        for block in BLOCKS:
            root = np.sqrt(weigh.get(block.name, 0.0))
            width = block.stop - block.start
            if block.name == "shape":
                at = slice(block.start, block.stop)
                means[at] = found[:, at].mean(axis=0)
                scales[at] = root / (np.maximum(found[:, at].std(axis=0), 0.1) * np.sqrt(width))
            elif width % LAYER == 0:
                for start in range(block.start, block.stop, LAYER):
                    at = slice(start, start + LAYER)
                    means[at] = found[:, at].mean(axis=0)
                    spread = np.sqrt(((found[:, at] - means[at]) ** 2).sum(axis=1).mean())
                    scales[at] = root / max(float(spread), 0.1)
            else:
                scales[block.start : block.stop] = root
        return cls(means, scales)

    def apply(self, found: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray((found - self.means) * self.scales, dtype=np.float32)


def out_of_fold(
    samples: Samples,
    penalty: float = PENALTY,
    weigh: Mapping[str, float] = SCALES,
    *,
    train_on: NDArray[np.bool_] | None = None,
) -> Matrix:
    """Logits for every sample by a fit on the other groups alone, shape (samples, 2).

    ``train_on`` leaves samples out of every fit, but they get their logits.
    """
    scaled = Scaling.of(samples.features, weigh).apply(samples.features)
    groups = np.unique(samples.groups)
    used = np.ones(len(samples), dtype=bool) if train_on is None else train_on
    masks = [((samples.groups != group) & used)[:, None] for group in groups]
    found = fit(
        scaled @ scaled.T + 1.0,
        np.concatenate([samples.targets] * len(groups), axis=1),
        np.concatenate([samples.weights * mask for mask in masks], axis=1),
        penalty,
    )
    logits = np.zeros_like(samples.targets)
    for number, group in enumerate(groups):
        inside = samples.groups == group
        logits[inside] = found.logits[inside, 2 * number : 2 * number + 2]
    return logits


def probabilities(logits: Matrix, samples: Samples) -> tuple[Matrix, list[tuple[float, float]]]:
    """Calibrated ones with (slope, shift) of each flag."""
    calibrations = [
        calibrate(logits[:, at], samples.targets[:, at], samples.weights[:, at]) for at in (0, 1)
    ]
    columns = [
        sigmoid(slope * logits[:, at] + shift) for at, (slope, shift) in enumerate(calibrations)
    ]
    return np.stack(columns, axis=1), calibrations


def threshold(p: Matrix, wanted: NDArray[np.bool_], cap: float) -> float:
    """The one with the fewest errors of those with at most ``cap`` false positives among the
    samples that are not ``wanted``. Both of shape (samples,)."""
    best, best_right = 1.0, -1.0
    for candidate in np.arange(0.2, 0.96, 0.01):
        got = p >= candidate
        if (got & ~wanted).sum() <= cap * max(int((~wanted).sum()), 1):
            right = float((got == wanted).mean())
            if right > best_right:
                best, best_right = float(candidate), right
    return round(best, 2)


def grey_zone(p: Matrix, wanted: NDArray[np.bool_], bound: float) -> tuple[float, float]:
    """Where the decision at ``bound`` is too often wrong: with calibrated probabilities, where
    the less likely answer has more than :data:`DOUBT`, and always around ``bound`` itself."""
    low, high = min(DOUBT, bound - 0.05), max(1 - DOUBT, bound + 0.05)
    return round(low, 2), round(min(high, 0.99), 2)


def train(samples: Samples, version: str, card: Mapping[str, Any], logits: Matrix) -> Head:
    """A head of all samples; calibration and thresholds from the out-of-fold ``logits``."""
    scaling = Scaling.of(samples.features)
    scaled = scaling.apply(samples.features)
    found = fit(scaled @ scaled.T + 1.0, samples.targets, samples.weights, PENALTY)
    p, calibrations = probabilities(logits, samples)
    wanted = samples.targets > 0.5
    flags: dict[str, FlagHead] = {}
    for at, flag in enumerate(FLAGS):
        weights = scaled.T @ found.alpha[:, at].astype(np.float32) * scaling.scales
        chosen = samples.for_threshold(at)
        bound = threshold(p[chosen, at], wanted[chosen, at], CAPS[at])
        flags[flag] = FlagHead(
            weights=np.asarray(weights, dtype=np.float32),
            bias=float(found.alpha[:, at].sum()) - float(scaling.means @ weights),
            slope=calibrations[at][0],
            shift=calibrations[at][1],
            threshold=bound,
            grey=grey_zone(p[:, at], wanted[:, at], bound),
        )
    return Head(version, flags, scaling.means, scaling.scales, dict(card))


def personal(head: Head, samples: Samples, *, penalty: float = PERSONAL_PENALTY) -> Head:
    """``head`` moved towards a person's own corrections, no further than they can carry.

    Fits what the shipped head gets wrong on them, with its logits as offsets; calibration and
    thresholds stay.
    """
    scaling = Scaling(head.means, head.scales)
    scaled = scaling.apply(samples.features)
    offsets = np.stack(
        [
            head.flags[flag].slope
            * (samples.features @ head.flags[flag].weights + head.flags[flag].bias)
            + head.flags[flag].shift
            for flag in FLAGS
        ],
        axis=1,
    ).astype(np.float64)
    found = fit(
        scaled @ scaled.T + 1.0,
        samples.targets,
        samples.weights,
        penalty / max(len(samples), 1),
        offsets=offsets,
    )
    flags = {}
    for at, flag in enumerate(FLAGS):
        part = head.flags[flag]
        # Learned on top of the calibrated logit: back to the scale of the head's own.
        change = scaled.T @ found.alpha[:, at].astype(np.float32) * scaling.scales / part.slope
        bias = (float(found.alpha[:, at].sum())) / part.slope - float(scaling.means @ change)
        flags[flag] = replace(
            part,
            weights=np.asarray(part.weights + change, dtype=np.float32),
            bias=part.bias + bias,
        )
    card = {**head.card, "personal": {"corrections": len(samples), "shipped": head.version}}
    return Head(f"{head.version}+{len(samples)}", flags, head.means, head.scales, card)
