"""Which traces are sent: ``OTEL_TRACES_SAMPLER``, applied to the export alone."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

log = logging.getLogger(__name__)


class Sampler:
    """``OTEL_TRACES_SAMPLER``, applied to what is exported.

    Whether a trace is kept follows from its id alone, so that all its spans share one fate,
    whichever process made them and whenever they are exported.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        name = environment.get("OTEL_TRACES_SAMPLER", "").strip().lower() or "parentbased_always_on"
        self._follow_parent = name.startswith("parentbased_")
        ratio = {"always_on": 1.0, "always_off": 0.0}.get(name.removeprefix("parentbased_"))
        if ratio is None and name.endswith("traceidratio"):
            ratio = _ratio(environment.get("OTEL_TRACES_SAMPLER_ARG", ""))
        elif ratio is None:
            log.warning("[bdh-bridge] OTEL_TRACES_SAMPLER: unknown sampler, everything is exported")
            ratio = 1.0
        # As the SDK's TraceIdRatioBased: the lower 64 bits against the ratio's share of them.
        self._bound = round(ratio * (1 << 64))

    def keeps(self, trace_id: str, flags: int) -> bool:
        """``flags`` are those of the trace's first span: a plugin's own trace may be unsampled."""
        if self._follow_parent and not flags & 1:
            return False
        return int(trace_id[16:], 16) < self._bound


def _ratio(value: str) -> float:
    try:
        ratio = float(value or 1)
    except ValueError:
        ratio = math.nan
    if 0 <= ratio <= 1:
        return ratio
    log.warning("[bdh-bridge] OTEL_TRACES_SAMPLER_ARG: %.40r is not from 0 to 1; using 1", value)
    return 1.0
