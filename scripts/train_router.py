"""Train the head of the local router from ``benchmarks/routing``, or check the shipped one.

    python scripts/train_router.py            # train and write the head, print its scores
    python scripts/train_router.py --check    # train again and compare with what is shipped

The same data give the same head, up to the last digits of the machine's matrix products. Scores
are of messages whose writer the fit has not seen: each writer's messages are predicted by a fit
on the others', and thresholds are chosen without them. ``benchmarks/routing/report.py`` makes
the full report. Needs the ``local-router`` extra and nothing else.
"""
# ruff: noqa: E402 (the number of threads has to be set before NumPy is imported)

from __future__ import annotations

import argparse
import sys
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "otel")]

from bdh_bridge.graph.embedded.threads import use_one_thread

use_one_thread()

import numpy as np
from numpy.typing import NDArray

from bdh_bridge.routing.local import head as heads
from bdh_bridge.routing.local.encoder import Encoder
from bdh_bridge.routing.local.features import Embed
from bdh_bridge.routing.local.fit import Matrix
from bdh_bridge.routing.local.scores import calibration_error, scores
from bdh_bridge.routing.local.train import (
    CAPS,
    PENALTY,
    SCALES,
    Samples,
    measure,
    out_of_fold,
    probabilities,
    threshold,
    train,
)
from benchmarks.routing.corpus import CONTRASTING, Message, agreement, digest, read_corpus

#: What a label counts in the fit if the second labeller saw it otherwise; its target lies between.
DEBATABLE_WEIGHT = 0.3
#: Scores may differ by so much on another machine.
TOLERANCE = 0.01


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare with the shipped head")
    parser.add_argument("--output", type=Path, default=heads.SHIPPED, metavar="FILE")
    args = parser.parse_args(argv)
    messages = read_corpus()
    made = make(messages, Encoder().encode)
    print_card(made.card)
    if not args.check:
        heads.save(made, args.output)
        print(f"{args.output}: {args.output.stat().st_size:,} bytes")
        return 0
    wrong = differences(heads.load(args.output), made)
    for sentence in wrong:
        print(f"differs: {sentence}")
    return 1 if wrong else 0


def make(messages: Sequence[Message], embed: Embed) -> heads.Head:
    """The head of these messages, with its card."""
    samples = prepare(messages, embed)
    logits = out_of_fold(samples)
    card: dict[str, Any] = {
        "data": {
            "sha256": digest(messages),
            "messages": len(messages),
            "writers": len({m.writer for m in messages}),
            "languages": dict(Counter(m.language for m in messages).most_common()),
            "with_history": sum(bool(m.history) for m in messages),
            "agreement": {
                key: value
                for key, value in agreement(messages).items()
                if not key.startswith("joint_agreement_by")
            },
        },
        "fit": fit_settings(),
        "scores": held_out_scores(messages, samples, logits),
        "limits": "Invented messages of few writers; scores are of writers the fit has not seen. "
        "A message that only its meaning for this person decides is beyond it.",
    }
    version = f"1-{card['data']['sha256'][:8]}"
    made = train(samples, version, card, logits)
    card["slice"] = slice_scores(messages, embed, made)
    return replace(made, card=card)


def fit_settings() -> dict[str, Any]:
    return {
        "penalty": PENALTY,
        "scales": dict(SCALES),
        "debatable_weight": DEBATABLE_WEIGHT,
        "caps": list(CAPS),
    }


def slice_of(messages: Sequence[Message]) -> list[Message]:
    """A twelfth of every writer's messages: enough to see by whether a head belongs to them."""
    return [m for m in messages if zlib.crc32(m.id.encode()) % 12 == 0]


def slice_scores(messages: Sequence[Message], embed: Embed, made: heads.Head) -> dict[str, Any]:
    """What the slice alone gives when it is trained, and what ``made`` says of it."""
    chosen = slice_of(messages)
    samples = prepare(chosen, embed)
    return {
        "messages": len(chosen),
        "held_out": held_out_scores(chosen, samples, out_of_fold(samples))["all"],
        "shipped": _decided(made, samples, chosen),
    }


def shipped_scores(chosen: Sequence[Message], embed: Embed, made: heads.Head) -> dict[str, Any]:
    return _decided(made, prepare(chosen, embed), chosen)


def _decided(made: heads.Head, samples: Samples, chosen: Sequence[Message]) -> dict[str, Any]:
    parts = [made.flags[flag] for flag in heads.FLAGS]
    got = [[part.probability(x) >= part.threshold for part in parts] for x in samples.features]
    return scores(np.array(got), np.array([m.first for m in chosen]))


def prepare(messages: Sequence[Message], embed: Embed) -> Samples:
    """Features, and what the labellers said: in between where they differ."""
    writers = sorted({m.writer for m in messages})
    targets, weights = [], []
    for m in messages:
        second = m.second or m.first
        targets.append([(a + b) / 2 for a, b in zip(m.first, second, strict=True)])
        weights.append([DEBATABLE_WEIGHT if debatable else 1.0 for debatable in m.debatable])
    return Samples(
        measure([m.conversation for m in messages], embed),
        np.array(targets, dtype=np.float64),
        np.array(weights, dtype=np.float64),
        np.array([writers.index(m.writer) for m in messages]),
        np.array([m.writer not in CONTRASTING for m in messages]),
    )


def held_out_decisions(samples: Samples, logits: Matrix) -> tuple[NDArray[np.bool_], Matrix]:
    """Decisions and calibrated probabilities, both (samples, 2): for each writer with the
    calibration and the thresholds that the other writers give."""
    got = np.zeros(samples.targets.shape, dtype=bool)
    p = np.zeros_like(samples.targets)
    for group in np.unique(samples.groups):
        inside = samples.groups == group
        others = samples.only(~inside)
        if not len(others):
            continue
        p_others, calibrations = probabilities(logits[~inside], others)
        for at in (0, 1):
            slope, shift = calibrations[at]
            p[inside, at] = 1 / (1 + np.exp(-(slope * logits[inside, at] + shift)))
            chosen = others.for_threshold(at)
            wanted = others.targets[:, at] > 0.5
            bound = threshold(p_others[chosen, at], wanted[chosen], CAPS[at])
            got[inside, at] = p[inside, at] >= bound
    return got, p


def held_out_scores(
    messages: Sequence[Message], samples: Samples, logits: Matrix
) -> dict[str, Any]:
    """``agreed``: messages on which both labellers, or the only one, agree; ``usual``: those of
    them whose writers are not contrasting; ``all`` by the writers' own labels."""
    got, p = held_out_decisions(samples, logits)
    first = np.array([m.first for m in messages])
    agreed = ~np.array([any(m.debatable) for m in messages])
    usual = np.ones(len(messages), dtype=bool) if samples.usual is None else samples.usual
    return {
        "agreed": scores(got[agreed], first[agreed]),
        "usual": scores(got[agreed & usual], first[agreed & usual]),
        "all": scores(got, first),
        "calibration_error": {
            flag: calibration_error(p[agreed, at], first[agreed, at])
            for at, flag in enumerate(heads.FLAGS)
        },
    }


def differences(shipped: heads.Head, made: heads.Head) -> list[str]:
    """What speaks against ``shipped`` having been made from the same data by this script."""
    found = []
    theirs, ours = shipped.card["data"]["sha256"], made.card["data"]["sha256"]
    if theirs != ours:
        found.append(f"the data: {theirs[:12]} is shipped, {ours[:12]} is here")
    for which in ("agreed", "usual", "all"):
        for name, value in made.card["scores"][which].items():
            other = shipped.card["scores"][which][name]
            if value is not None and abs(value - other) > TOLERANCE:
                found.append(f"{which} {name}: {other} is shipped, {value} is here")
    for flag in heads.FLAGS:
        a, b = shipped.flags[flag].weights, made.flags[flag].weights
        cosine = float(a @ b) / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-12)
        if cosine < 0.999:
            found.append(f"{flag}: the weights point elsewhere (cosine {cosine:.4f})")
    return found


def print_card(card: Any) -> None:
    data = card["data"]
    print(f"{data['messages']} messages of {data['writers']} writers, sha256 {data['sha256'][:12]}")
    for which in ("agreed", "usual", "all"):
        figures = card["scores"][which]
        print(f"{which:>7}: " + ", ".join(f"{name} {value}" for name, value in figures.items()))


if __name__ == "__main__":
    sys.exit(main())
