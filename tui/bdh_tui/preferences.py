"""What an operator chose, kept between runs: theme and saved filters."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bdh_otel.database import make_private_directory

MAX_FILTERS = 50


@dataclass
class Preferences:
    """Kept in ``path``, owner-only. A file that can't be read or written is no trouble."""

    path: Path | None = None
    theme: str = ""
    filters: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> Preferences:
        found = cls(path)
        with contextlib.suppress(OSError, ValueError):
            kept = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(kept, dict):
                found.theme = str(kept.get("theme", ""))
                filters = kept.get("filters", [])
                if isinstance(filters, list):
                    found.filters = [str(one) for one in filters[:MAX_FILTERS]]
        return found

    def add_filter(self, source: str) -> None:
        self.filters = [source, *(one for one in self.filters if one != source)][:MAX_FILTERS]
        self.save()

    def remove_filter(self, source: str) -> None:
        self.filters = [one for one in self.filters if one != source]
        self.save()

    def save(self) -> None:
        if self.path is None:
            return
        values = asdict(self)
        del values["path"]
        with contextlib.suppress(OSError):
            make_private_directory(self.path.parent)
            descriptor, name = tempfile.mkstemp(prefix=".tui.", dir=self.path.parent)  # 0600
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(values, file, indent=1)
            Path(name).replace(self.path)
