"""Logistic regression with a quadratic penalty, in NumPy.

By the representer theorem the weights are a combination of the samples, ``w = Xᵀ a``, so the fit
needs the samples' inner products alone: cheap where features outnumber samples, and many fits on
parts of the same samples (folds, learning curves, labels) run as one matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def sigmoid(values: NDArray[np.floating]) -> Matrix:
    """``1 / (1 + exp(-values))`` without overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * np.asarray(values, dtype=np.float64))))


@dataclass(frozen=True, slots=True)
class Fit:
    """``alpha`` and ``logits`` have shape (samples, problems)."""

    alpha: Matrix
    logits: Matrix
    steps: int


def fit(
    gram: NDArray[np.floating],
    targets: Matrix,
    weights: Matrix,
    penalty: float,
    *,
    offsets: Matrix | None = None,
    steps: int = 400,
    tolerance: float = 1e-4,
) -> Fit:
    """Minimise ``mean of weighted log loss + penalty/2 * |w|²`` for every column at once.

    ``gram``: inner products of the samples' features (samples, samples), the constant feature
    included. ``targets`` in 0..1 and ``weights`` >= 0, both (samples, problems); a weight of 0
    leaves a sample out of a problem, yet its logit comes out. ``offsets`` are logits that are
    there already, to which the fit adds. Accelerated gradient descent in function space
    (Nesterov) with restarts; ends when no gradient exceeds ``tolerance`` per sample.
    """
    kernel = np.asarray(gram, dtype=np.float32)
    share = weights / np.maximum(weights.sum(axis=0), 1e-12)
    base = np.zeros_like(targets) if offsets is None else offsets
    # Curvature of the loss along any direction, bounded by that of its largest eigenvector.
    largest = _largest_eigenvalue(kernel)
    rate = 1.0 / (0.25 * largest * float(share.max()) + penalty)
    alpha = np.zeros_like(targets)
    ahead, momentum = alpha, 1.0
    logits = base
    done = 0
    for done in range(1, steps + 1):  # noqa: B007
        logits = base + (kernel @ ahead.astype(np.float32)).astype(np.float64)
        gradient = share * (sigmoid(logits) - targets) + penalty * ahead
        if float(np.abs(gradient).max()) < tolerance * float(share.max()):
            break
        following = ahead - rate * gradient
        if float((gradient * (following - alpha)).sum()) > 0:
            momentum = 1.0  # uphill: start the acceleration anew
        faster = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
        ahead = following + (momentum - 1.0) / faster * (following - alpha)
        alpha, momentum = following, faster
    logits = base + (kernel @ alpha.astype(np.float32)).astype(np.float64)
    return Fit(alpha, logits, done)


def calibrate(
    logits: Matrix, targets: Matrix, weights: Matrix | None = None, *, steps: int = 50
) -> tuple[float, float]:
    """Slope and shift that make ``sigmoid(slope * logit + shift)`` a probability (Platt 1999),
    by Newton's method on logits that the fit did not see. All of shape (samples,)."""
    share = np.ones_like(logits) if weights is None else weights
    slope, shift = 1.0, 0.0
    for _ in range(steps):
        p = sigmoid(slope * logits + shift)
        error, curve = share * (p - targets), share * np.maximum(p * (1 - p), 1e-6)
        gradient = np.array([error @ logits, error.sum()])
        hessian = np.array(
            [[curve @ logits**2, curve @ logits], [curve @ logits, curve.sum()]]
        ) + 1e-6 * np.eye(2)
        change = np.linalg.solve(hessian, gradient)
        slope, shift = slope - float(change[0]), shift - float(change[1])
        if float(np.abs(change).max()) < 1e-8:
            break
    return slope, shift


def _largest_eigenvalue(kernel: NDArray[np.float32], steps: int = 30) -> float:
    vector = np.ones(len(kernel), dtype=np.float32)
    size = 1.0
    for _ in range(steps):
        vector = kernel @ vector
        size = float(np.linalg.norm(vector))
        vector /= max(size, 1e-12)
    return size * 1.02
