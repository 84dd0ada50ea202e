"""How good decisions are: the same figures for every router and every set of messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]


def scores(got: Flags, wanted: Flags) -> dict[str, Any]:
    """Both of shape (messages, 2), read and store; shares are 0 to 1, None where nothing counts.

    ``false_read``: of the messages that should not be read, those that were; ``missed_read``: of
    those that should, the ones that were not; alike for ``store``.
    """
    found: dict[str, Any] = {
        "messages": len(wanted),
        "joint": _mean((got == wanted).all(axis=1)),
    }
    for at, flag in enumerate(("read", "store")):
        g, w = got[:, at], wanted[:, at]
        found[flag] = _mean(g == w)
        found[f"false_{flag}"] = _mean(g[~w])
        found[f"missed_{flag}"] = _mean(~g[w])
    return found


def by_group(got: Flags, wanted: Flags, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """:func:`scores` for each name, the largest group first."""
    labels = np.asarray(names)
    order = sorted(set(names), key=lambda name: (-int((labels == name).sum()), name))
    return {name: scores(got[labels == name], wanted[labels == name]) for name in order}


def calibration(
    p: NDArray[np.float64], wanted: NDArray[np.bool_], bins: int = 10
) -> list[dict[str, Any]]:
    """What probabilities of each tenth came to: mean prediction, share of yes, count."""
    at = np.minimum((p * bins).astype(int), bins - 1)
    return [
        {
            "predicted": round(float(p[at == number].mean()), 4),
            "observed": round(float(wanted[at == number].mean()), 4),
            "messages": int((at == number).sum()),
        }
        for number in range(bins)
        if (at == number).any()
    ]


def calibration_error(p: NDArray[np.float64], wanted: NDArray[np.bool_]) -> float:
    """Expected calibration error: the bins' distances, weighed by their messages."""
    parts = calibration(p, wanted)
    total = sum(part["messages"] for part in parts)
    apart = [part["messages"] * abs(part["predicted"] - part["observed"]) for part in parts]
    return round(float(sum(apart) / total), 4)


def _mean(values: NDArray[np.bool_]) -> float | None:
    return round(float(values.mean()), 4) if values.size else None
