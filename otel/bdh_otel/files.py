"""Files that are replaced whole: whoever reads sees the old content or the new one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def replacing(target: Path, mode: int = 0o600, *, prefix: str = "") -> Iterator[IO[bytes]]:
    """Write a file beside ``target``, which takes its place once it is durable; an error leaves
    ``target`` as it was. A symbolic link is replaced, not followed.

    ``prefix`` begins the name of the file beside it, that of the target behind a dot by default.
    Raises: OSError.
    """
    descriptor, name = tempfile.mkstemp(".part", prefix or f".{target.name}.", target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            yield file
            file.flush()
            os.fsync(descriptor)
        Path(name).replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
