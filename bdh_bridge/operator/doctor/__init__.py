"""The examination behind ``bdh-bridge doctor``: every check is one line, with its mend."""

from __future__ import annotations

from bdh_bridge.operator.doctor.checks import STATUS, Check, Level, Subject, examine, worst

__all__ = ["STATUS", "Check", "Level", "Subject", "examine", "worst"]
