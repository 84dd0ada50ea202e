"""The state of the machine that a figure was measured on; printed with every result."""

from __future__ import annotations

import os
import platform
from typing import Any


def machine_state() -> dict[str, Any]:
    """Cores, load and versions; figures of a busy machine are worth less."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        "cores": os.cpu_count(),
        "load_1_5_15": [round(value, 2) for value in os.getloadavg()],
    }


def percentile(values: list[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of ``values`` lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
