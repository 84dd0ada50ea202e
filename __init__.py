"""Hermes loads a cloned repository through this file.

All work is inside :func:`register`, since test runners and type checkers import this module
too. The clone's own packages win over an installed distribution of the same name: they are
found by a finder of their own, which adds nothing else of the clone to the import path.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

_ROOT = Path(__file__).resolve().parent
_PACKAGES = {
    "bdh_bridge": _ROOT / "bdh_bridge",
    "bdh_otel": _ROOT / "otel" / "bdh_otel",
    "bdh_tui": _ROOT / "tui" / "bdh_tui",
    "hermes_borgee": _ROOT / "borgee" / "hermes_borgee",
}


class _CloneFinder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        folder = _PACKAGES.get(fullname)
        if folder is None:
            return None
        return importlib.util.spec_from_file_location(
            fullname, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )


def register(ctx: Any) -> None:
    """Hermes' entry point of a directory plugin."""
    if not any(type(finder).__name__ == _CloneFinder.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, _CloneFinder())
    import bdh_bridge

    bdh_bridge.register(ctx)
