"""How good the local router is on writers that it has not seen, and why not better.

    python benchmarks/routing/report.py        # about two minutes; writes results/local_router.*

Every figure but the last is of messages whose writer the fit did not see; calibration and
thresholds are the other writers' too. *Sealed* are the writers whose number is a multiple of
four: but for the weight of the shape, no choice of features, scales or penalty was made by looking
at them, and their figures are of a head made without them. ``mechanical`` is what happens
without a router.
"""
# ruff: noqa: E402 (the number of threads has to be set before NumPy is imported)

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "otel")]

from bdh_bridge.graph.embedded.threads import use_one_thread

use_one_thread()

import numpy as np
from numpy.typing import NDArray

from bdh_bridge.routing.local.decide import LocalRouter
from bdh_bridge.routing.local.encoder import Encoder
from bdh_bridge.routing.local.evaluate import local_decisions, mechanical_decisions, read_labelled
from bdh_bridge.routing.local.features import BLOCKS
from bdh_bridge.routing.local.fit import Matrix
from bdh_bridge.routing.local.head import FLAGS, Head, load
from bdh_bridge.routing.local.scores import by_group, calibration, calibration_error, scores
from bdh_bridge.routing.local.train import PENALTY, SCALES, Samples, out_of_fold, train
from benchmarks.machine import machine_state
from benchmarks.routing.corpus import CONTRASTING, HERE, Message, agreement, digest, read_corpus
from benchmarks.routing.drawing import draw
from scripts.train_router import held_out_decisions, prepare

RESULTS = ROOT / "benchmarks" / "results"
GOLDENSET = ROOT / "benchmarks" / "query_rewrite_goldenset.json"
#: Answers of a language model to the golden set, given blind, as ``labels/*.jsonl`` are.
RECORDED = HERE / "recorded" / "goldenset.jsonl"
CURVE = (100, 200, 400, 800, 1_600, 3_200)
SEEDS = (1, 2, 3)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=RESULTS / "local_router.json")
    args = parser.parse_args(argv)
    encoder = Encoder()
    messages = read_corpus()
    samples = prepare(messages, encoder.encode)
    found = report(messages, samples, encoder)
    args.output.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", "utf-8")
    args.output.with_suffix(".svg").write_text(draw(found), "utf-8")
    print(table(found))
    return 0


def report(messages: Sequence[Message], samples: Samples, encoder: Encoder) -> dict[str, Any]:
    logits = out_of_fold(samples)
    got, p = held_out_decisions(samples, logits)
    first = np.array([m.first for m in messages])
    agreed = np.array([not any(m.debatable) for m in messages])
    mechanical = mechanical_decisions([m.conversation for m in messages])
    few = [m for m, keep in zip(messages, agreed, strict=True) if keep]
    usual = np.array([m.writer not in CONTRASTING for m in messages])

    def grouped(decisions: NDArray[np.bool_], key: str) -> dict[str, Any]:
        return by_group(decisions[agreed], first[agreed], [_key(m, key) for m in few])

    groups = ("language", "kind", "writer", "history")
    return {
        "benchmark": "local_router",
        "data": {
            "sha256": digest(messages),
            "messages": len(messages),
            "agreed": int(agreed.sum()),
            "agreement": agreement(messages),
        },
        "machine": machine_state(),
        "local": scores(got[agreed], first[agreed]),
        "local_usual": scores(got[agreed & usual], first[agreed & usual]),
        "local_contrasting": scores(got[agreed & ~usual], first[agreed & ~usual]),
        "local_all_labels": scores(got, first),
        "mechanical": scores(mechanical[agreed], first[agreed]),
        "second_labeller": second_labeller(messages),
        **{f"local_by_{key}": grouped(got, key) for key in groups},
        **{f"mechanical_by_{key}": grouped(mechanical, key) for key in ("language", "kind")},
        "calibration": {
            flag: {
                "error": calibration_error(p[agreed, at], first[agreed, at]),
                "bins": calibration(p[agreed, at], first[agreed, at]),
            }
            for at, flag in enumerate(FLAGS)
        },
        "sealed": sealed(messages, samples),
        "cascade_second_labels": cascade(messages, samples, logits, got, p),
        "learning_curve": learning_curve(messages, samples),
        "ablation": ablation(messages, samples),
        "goldenset": goldenset(encoder),
        "errors": [
            {
                "id": m.id,
                "wanted": list(m.first),
                "got": list(map(bool, g)),
                "p": [round(x, 2) for x in q],
            }
            for m, g, q, a in zip(messages, got.tolist(), p.tolist(), agreed, strict=True)
            if a and list(m.first) != g
        ],
    }


def second_labeller(messages: Sequence[Message]) -> dict[str, Any] | None:
    """What the same figures come to for a labeller who read the definitions: as good as it gets."""
    twice = [m for m in messages if m.second is not None]
    if not twice:
        return None
    return scores(np.array([m.second for m in twice]), np.array([m.first for m in twice]))


def sealed(messages: Sequence[Message], samples: Samples) -> dict[str, Any] | None:
    """A head of the other writers, on those who were kept away from every choice."""
    away = np.array([is_sealed(m.writer) for m in messages])
    if not away.any() or away.all():
        return None
    others = samples.only(~away)
    head = train(others, "without the sealed", {}, out_of_fold(others))
    got = decided(head, samples.only(away))
    first = np.array([m.first for m in messages])[away]
    agreed = np.array([not any(m.debatable) for m in messages])[away]
    names = [m for m, is_away in zip(messages, away, strict=True) if is_away]
    mechanical = mechanical_decisions([m.conversation for m in names])
    return {
        "writers": sorted({m.writer for m in names}),
        "agreed": scores(got[agreed], first[agreed]),
        "all": scores(got, first),
        "mechanical": scores(mechanical[agreed], first[agreed]),
    }


def is_sealed(writer: str) -> bool:
    digits = "".join(char for char in writer if char.isdigit())
    return bool(digits) and int(digits) % 4 == 0


def decided(head: Head, samples: Samples) -> NDArray[np.bool_]:
    return np.array(
        [
            [head.flags[flag].probability(x) >= head.flags[flag].threshold for flag in FLAGS]
            for x in samples.features
        ]
    )


def cascade(
    messages: Sequence[Message],
    samples: Samples,
    logits: Matrix,
    got: NDArray[np.bool_],
    p: Matrix,
) -> dict[str, Any] | None:
    """The second labels as a recorded model's answers, given in the grey zone alone; measured by
    the writers' labels on all messages that have both."""
    twice = np.array([m.second is not None for m in messages])
    if not twice.any():
        return None
    head = train(samples, "", {}, logits)
    zones = [head.flags[flag].grey for flag in FLAGS]
    grey = np.any(
        [(p[:, at] >= low) & (p[:, at] <= high) for at, (low, high) in enumerate(zones)], 0
    )
    second = np.array([m.second or m.first for m in messages])
    first = np.array([m.first for m in messages])
    both = np.where(grey[:, None], second, got)
    return {
        "grey_zones": dict(zip(FLAGS, zones, strict=True)),
        "asked": round(float(grey[twice].mean()), 4),
        "local_outside": scores(got[twice & ~grey], first[twice & ~grey]),
        "local_inside": scores(got[twice & grey], first[twice & grey]),
        "cascade": scores(both[twice], first[twice]),
        "model_alone": scores(second[twice], first[twice]),
        "local_alone": scores(got[twice], first[twice]),
    }


def learning_curve(messages: Sequence[Message], samples: Samples) -> list[dict[str, Any]]:
    """Means over the seeds, each with another choice of training messages; scores are of the
    usual writers."""
    first = np.array([m.first for m in messages])
    agreed = np.array([not any(m.debatable) for m in messages])
    usual = np.array([m.writer not in CONTRASTING for m in messages])
    points = []
    for size in [n for n in CURVE if n < len(samples)] + [len(samples)]:
        runs: list[dict[str, Any]] = []
        for seed in SEEDS if size < len(samples) else SEEDS[:1]:
            chosen = np.zeros(len(samples), dtype=bool)
            chosen[np.random.default_rng(seed).permutation(len(samples))[:size]] = True
            logits = out_of_fold(samples, train_on=chosen)
            got, _ = held_out_decisions(samples, logits)
            runs.append(scores(got[agreed & usual], first[agreed & usual]))
        keys = ("joint", "read", "store", "missed_read", "missed_store")
        means = {key: round(float(sum(run[key] for run in runs)) / len(runs), 4) for key in keys}
        points.append({"messages": size, **means})
    return points


def ablation(messages: Sequence[Message], samples: Samples) -> dict[str, Any]:
    """Without each block of features, and with the strength of the penalty changed."""
    first = np.array([m.first for m in messages])
    agreed = np.array([not any(m.debatable) for m in messages])

    def run(penalty: float = PENALTY, **without: float) -> dict[str, Any]:
        got, _ = held_out_decisions(samples, out_of_fold(samples, penalty, {**SCALES, **without}))
        return scores(got[agreed], first[agreed])

    found = {"everything": run()}
    for block in BLOCKS:
        found[f"without {block.name}"] = run(**{block.name: 0.0})
    vectors = [block.name for block in BLOCKS if block.name not in ("shape", "cosines")]
    before = ("user_before", "assistant_before", "topic", "topic_answer", "cosines")
    found["without any history vector"] = run(**dict.fromkeys(before, 0.0))
    found["shape alone"] = run(**dict.fromkeys([*vectors, "cosines"], 0.0))
    found["half the penalty"] = run(PENALTY / 2)
    found["twice the penalty"] = run(PENALTY * 2)
    return found


def goldenset(encoder: Encoder) -> dict[str, Any]:
    """The shipped head on the golden set, which no fit has seen."""
    cases = read_labelled(GOLDENSET)
    router = LocalRouter(encoder, load())
    wanted = np.array([[case.read, case.store] for case in cases])
    got = local_decisions(router, cases)
    mechanical = mechanical_decisions([case.given for case in cases])
    found: dict[str, Any] = {
        "head": router.head.version,
        "mechanical": scores(mechanical, wanted),
        "local": scores(got, wanted),
        "local_by_language": by_group(got, wanted, [case.language for case in cases]),
        "local_by_kind": by_group(got, wanted, [case.kind for case in cases]),
    }
    if RECORDED.exists():
        rows = map(json.loads, filter(None, RECORDED.read_text("utf-8").splitlines()))
        answers = {row["id"]: [row["read"], row["store"]] for row in rows}
        model = np.array([answers[case.id] for case in cases])
        asks = np.array([_asks(router, case.given) for case in cases])
        found["recorded_model"] = scores(model, wanted)
        found["cascade"] = scores(np.where(asks[:, None], model, got), wanted)
        found["cascade_asked"] = round(float(asks.mean()), 4)
    return found


def _asks(router: LocalRouter, given: Any) -> bool:
    found = router.decide(given, strongest=0)
    return bool(found.grey) or (found.read and found.follow_up)


def _key(message: Message, key: str) -> str:
    if key == "history":
        return "with history" if message.history else "without history"
    return str(getattr(message, key))


def table(found: dict[str, Any]) -> str:
    """Markdown: everything that the documentation shows."""
    lines: list[str] = []

    def rows(title: str, parts: dict[str, Any]) -> None:
        lines.extend(
            ["", f"| {title} | n | both right | read | store | false reads | false stores |"]
        )
        lines.append("|---|---|---|---|---|---|---|")
        for name, part in parts.items():
            if part is not None:
                keys = ("joint", "read", "store", "false_read", "false_store")
                cells = " | ".join("–" if part[k] is None else f"{part[k]:.1%}" for k in keys)
                lines.append(f"| {name} | {part.get('messages', '')} | {cells} |")

    alone = found["sealed"] or {}
    rows(
        "held-out writers",
        {
            "mechanical": found["mechanical"],
            "local": found["local"],
            "local, usual writers": found["local_usual"],
            "local, contrasting writers": found["local_contrasting"],
            "local, every writer's label": found["local_all_labels"],
            "local, sealed writers": alone.get("agreed"),
            "second labeller": found["second_labeller"],
        },
    )
    for key in ("language", "kind", "writer", "history"):
        rows(key, found[f"local_by_{key}"])
        if key in ("language", "kind"):
            rows(f"{key}, mechanical", found[f"mechanical_by_{key}"])
    rows("ablation", found["ablation"])
    golden = found["goldenset"]
    named: tuple[str, ...] = ("mechanical", "local", "recorded_model", "cascade")
    rows("golden set", {name: golden[name] for name in named if name in golden})
    if found["cascade_second_labels"]:
        parts = found["cascade_second_labels"]
        named = ("local_alone", "local_outside", "local_inside", "model_alone", "cascade")
        rows(f"cascade, {parts['asked']:.0%} asked", {name: parts[name] for name in named})
    lines.append("")
    lines += [json.dumps(point) for point in found["learning_curve"]]
    lines += [f"{flag} calibration error {found['calibration'][flag]['error']}" for flag in FLAGS]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
