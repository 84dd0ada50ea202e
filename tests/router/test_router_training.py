"""The fit, the calibration, the thresholds, and the head's file."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from bdh_bridge.routing.local import head as heads
from bdh_bridge.routing.local.features import SIZE
from bdh_bridge.routing.local.fit import calibrate, fit, sigmoid
from bdh_bridge.routing.local.head import FlagHead, Head, HeadError
from bdh_bridge.routing.local.scores import by_group, calibration, calibration_error, scores
from bdh_bridge.routing.local.train import Samples, out_of_fold, personal, threshold, train

RANDOM = np.random.default_rng(20)


def samples(count: int = 120, writers: int = 6) -> Samples:
    """Read depends on one feature, store on another, both with noise."""
    found = np.zeros((count, SIZE), dtype=np.float32)
    found[:, :40] = RANDOM.normal(size=(count, 40)) / 6
    targets = np.stack([found[:, 3] > 0, found[:, 7] > 0.05], axis=1).astype(np.float64)
    return Samples(found, targets, np.ones((count, 2)), np.arange(count) % writers)


def test_the_fit_ends_where_its_gradient_vanishes() -> None:
    x = RANDOM.normal(size=(60, 8))
    y = (x[:, :1] + 0.5 * RANDOM.normal(size=(60, 1)) > 0).astype(np.float64)
    gram = x @ x.T + 1.0
    found = fit(gram, y, np.ones_like(y), 0.01, steps=5_000, tolerance=1e-7)
    weights = np.concatenate([x, np.ones((60, 1))], axis=1).T @ found.alpha
    features = np.concatenate([x, np.ones((60, 1))], axis=1)
    gradient = features.T @ (sigmoid(features @ weights) - y) / 60 + 0.01 * weights
    assert float(np.abs(gradient).max()) < 1e-4


def test_problems_are_fitted_independently() -> None:
    x = RANDOM.normal(size=(50, 5))
    gram = x @ x.T + 1.0
    y = (x[:, :2] > 0).astype(np.float64)
    both = fit(gram, y, np.ones_like(y), 0.05, steps=3_000, tolerance=1e-8)
    for at in (0, 1):
        alone = fit(gram, y[:, [at]], np.ones((50, 1)), 0.05, steps=3_000, tolerance=1e-8)
        np.testing.assert_allclose(alone.logits[:, 0], both.logits[:, at], atol=1e-2)


def test_a_writer_is_predicted_without_the_own_messages() -> None:
    """Were they in the fit, a feature that is unique to each message would give them away."""
    count = 80
    found = np.zeros((count, SIZE), dtype=np.float32)
    found[np.arange(count), np.arange(count)] = 1.0
    targets = RANDOM.integers(0, 2, size=(count, 2)).astype(np.float64)
    given = Samples(found, targets, np.ones((count, 2)), np.arange(count) % 4)
    logits = out_of_fold(given)
    for group in range(4):
        inside = given.groups == group
        assert float(np.ptp(logits[inside], axis=0).max()) < 1e-3, "nothing told them apart"


def test_calibration_finds_slope_and_shift() -> None:
    logits = RANDOM.normal(size=20_000) * 2
    wanted = (RANDOM.random(20_000) < sigmoid(0.5 * logits - 1)).astype(np.float64)
    slope, shift = calibrate(logits, wanted)
    assert slope == pytest.approx(0.5, abs=0.05)
    assert shift == pytest.approx(-1, abs=0.05)


def test_calibration_survives_what_can_be_told_apart_entirely() -> None:
    logits = np.array([-3.0, -2.0, 2.0, 3.0] * 10)
    slope, shift = calibrate(logits, (logits > 0).astype(np.float64))
    assert np.isfinite([slope, shift]).all()
    assert slope > 0


def test_the_threshold_keeps_its_cap() -> None:
    p = RANDOM.random(5_000)
    wanted = RANDOM.random(5_000) < p
    bound = threshold(p, wanted, 0.05)
    assert float((p >= bound)[~wanted].mean()) <= 0.05
    assert bound > threshold(p, wanted, 0.5)


def test_a_trained_head_decides_as_its_fit_did(tmp_path: Path) -> None:
    given = samples()
    made = train(given, "t", {"data": {}}, out_of_fold(given))
    heads.save(made, tmp_path / "head.json")
    again = heads.load(tmp_path / "head.json")
    for at, flag in enumerate(heads.FLAGS):
        part = again.flags[flag]
        p = [part.probability(x) for x in given.features]
        right = (np.array(p) > 0.5) == (given.targets[:, at] > 0.5)
        assert right.mean() > 0.8
        assert part.probability(given.features[0]) == pytest.approx(
            made.flags[flag].probability(given.features[0]), abs=1e-3
        )


def test_a_correction_moves_its_own_message_and_hardly_another() -> None:
    given = samples()
    made = train(given, "t", {}, out_of_fold(given))
    one = given.only(np.array([0]))
    wrong = Samples(one.features, 1 - one.targets, np.array([[1.0, 0.0]]), one.groups)
    mine = personal(made, wrong)
    before, after = (h.flags["read"].probability(one.features[0]) for h in (made, mine))
    assert (after - before) * (wrong.targets[0, 0] - 0.5) > 0, "towards the correction"
    assert mine.flags["store"].probability(one.features[0]) == pytest.approx(
        made.flags["store"].probability(one.features[0]), abs=1e-6
    ), "nothing was said about storing"
    assert mine.card["personal"] == {"corrections": 1, "shipped": "t"}
    assert abs(after - before) < 0.6, "one correction is no revolution"


def blank_head() -> Head:
    part = FlagHead(np.zeros(SIZE, dtype=np.float32), 0.0)
    return Head(
        "0",
        {"read": part, "store": part},
        np.zeros(SIZE, dtype=np.float32),
        np.ones(SIZE, dtype=np.float32),
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda made: made.update(format=99),
        lambda made: made.update(signature="other"),
        lambda made: made.pop("flags"),
        lambda made: made["flags"].pop("store"),
        lambda made: made["flags"]["read"].update(weights="AAAA"),
        lambda made: made["flags"]["read"].update(weights="not base64!"),
        lambda made: made["flags"]["read"].update(bias="x"),
        lambda made: made["flags"]["read"].update(bias=float("nan")),
        lambda made: made["flags"]["read"].update(bias=10**400),
        lambda made: made["flags"]["read"].update(slope=float("inf")),
        lambda made: made["flags"]["read"].update(slope=0),
        lambda made: made["flags"]["store"].update(threshold=float("nan")),
        lambda made: made["flags"]["store"].update(grey=[float("nan"), 1]),
        lambda made: made.update(card=[]),
        lambda made: made.update(version="\x1b[31m"),
        lambda made: made.update(
            scales=base64.b64encode(np.full(SIZE, 3e38, "<f4").tobytes()).decode()
        ),
        lambda made: made["flags"]["read"].update(
            weights=base64.b64encode(np.full(SIZE, np.nan, "<f4").tobytes()).decode()
        ),
    ],
)
def test_a_head_that_does_not_fit_is_refused(tmp_path: Path, damage: object) -> None:
    path = tmp_path / "head.json"
    heads.save(blank_head(), path)
    heads.load(path)
    made = json.loads(path.read_text("utf-8"))
    damage(made)  # type: ignore[operator]
    path.write_text(json.dumps(made), "utf-8")
    with pytest.raises(HeadError):
        heads.load(path)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[]", b"{}", b"x" * ((1 << 20) + 1)])
def test_what_is_no_head_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "head.json"
    path.write_bytes(content)
    with pytest.raises(HeadError):
        heads.load(path)
    with pytest.raises(HeadError, match="can't be read"):
        heads.load(tmp_path / "missing.json")


def test_scores_are_what_they_are_called() -> None:
    wanted = np.array([[1, 0], [1, 1], [0, 0], [0, 1]], dtype=bool)
    got = np.array([[1, 0], [0, 1], [1, 0], [0, 1]], dtype=bool)
    found = scores(got, wanted)
    assert found["joint"] == 0.5
    assert (found["read"], found["false_read"], found["missed_read"]) == (0.5, 0.5, 0.5)
    assert (found["store"], found["false_store"], found["missed_store"]) == (1.0, 0.0, 0.0)
    assert list(by_group(got, wanted, ["a", "b", "b", "b"])) == ["b", "a"]


def test_calibration_error_is_the_distance_of_the_bins() -> None:
    p = np.array([0.05] * 10 + [0.95] * 10)
    wanted = np.array([False] * 10 + [True] * 10)
    assert calibration_error(p, wanted) == pytest.approx(0.05)
    assert [part["messages"] for part in calibration(p, wanted)] == [10, 10]
