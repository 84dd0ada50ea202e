"""Leaving while something is being read."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from bdh_bridge.paths import BridgePaths
from bdh_otel.database import StoreUnavailable
from bdh_tui.history import History

_ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"


def test_closing_breaks_off_a_long_count(full_home: Path) -> None:
    history = History(BridgePaths(full_home).spans)
    history.reader.last_seq()
    raised: list[Exception] = []

    def ask() -> None:
        try:
            history.reader.rows(_ENDLESS)
        except StoreUnavailable as error:
            raised.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(0.2)
    history.close()
    asking.join(20)
    assert not asking.is_alive()
    assert "interrupted" in str(raised[0])
