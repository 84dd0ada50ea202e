"""``python -m bdh_bridge.cli``: the command line where no console script is installed."""

from __future__ import annotations

import sys

from bdh_bridge.cli import main

sys.exit(main())
