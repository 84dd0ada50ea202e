"""Whether the worker's own code was changed on disk: an upgrade, or a pulled clone."""

from __future__ import annotations

import time
from pathlib import Path

#: Seconds between two looks at the files.
INTERVAL = 15.0


class CodeStamp:
    """Looks at ``folders`` (default: this project's packages), every ``interval`` seconds."""

    def __init__(
        self, folders: tuple[Path, ...] | None = None, *, interval: float = INTERVAL
    ) -> None:
        import bdh_bridge
        import bdh_otel

        self._folders = folders or tuple(
            Path(str(package.__file__)).parent for package in (bdh_bridge, bdh_otel)
        )
        self._interval = interval
        self._stamp = self._look()
        self._looked = time.monotonic()

    def changed(self) -> bool:
        if time.monotonic() - self._looked < self._interval:
            return False
        self._looked = time.monotonic()
        return self._look() != self._stamp

    def _look(self) -> frozenset[tuple[str, int, int]]:
        found = set()
        for folder in self._folders:
            for path in folder.rglob("*.py"):
                try:
                    status = path.stat()
                except OSError:  # in the middle of being replaced
                    continue
                found.add((str(path), status.st_mtime_ns, status.st_size))
        return frozenset(found)
