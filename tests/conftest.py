"""What holds for all tests."""

from __future__ import annotations

import os

# A span attribute that is not declared is a mistake that production only warns of. Processes
# that tests start inherit this.
os.environ.setdefault("BDH_OTEL_STRICT", "1")
