"""Whole screens at three sizes, as text.

After a wanted change: ``BDH_TUI_SNAPSHOTS=write pytest tests/tui/test_tui_snapshots.py``, and look
at the difference.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

import pytest

from tests.tui.conftest import Drive

SNAPSHOTS = Path(__file__).with_name("snapshots")
SIZES = ((80, 24), (120, 40), (200, 60))
SCREENS = ("live", "turn", "decisions", "providers", "graph", "blacklist", "outbox")
#: What differs from run to run, in as many cells as it has.
_VARYING = (
    (r"(open, \d+ s|probe is due) *", "?"),
    (r"\d\d:\d\d:\d\d(\.\d{3})?", "#"),
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "#"),
    (r"\b[0-9a-f]{13,16}\b", "#"),
    (r" +\d+ (s|min|h|d)\b", "#"),
    (r"session-\d+:\d+", "#"),
    (r"(Answers|Failures) \d+ +0 to \d+", "?"),
    (r"…?\S*/home(/bdh-bridge/prompt_blacklist\.txt)?(?= |$)", "#"),
    (r"(?<=tried again in )\d+", "#"),
)


def steady(screen: str) -> str:
    for pattern, mark in _VARYING:
        screen = re.sub(pattern, lambda found, mark=mark: mark * len(found[0]), screen, flags=re.M)  # type: ignore[misc]
    # What a chart shows depends on where its parts begin: now.
    screen = re.sub(r"[ ▁▂▃▄▅▆▇█]*[▁▂▃▄▅▆▇█][ ▁▂▃▄▅▆▇█]*", " ▆ ", screen)
    lines = (line.rstrip() for line in screen.splitlines())
    return "\n".join(line for line in lines if line.strip("▆?│ ")) + "\n"


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_every_screen_looks_as_it_did(
    home: Path, drive: Drive, size: tuple[int, int]
) -> None:
    changed: list[str] = []
    async with drive(home, size=size) as ui:
        for number, name in enumerate(SCREENS, start=1):
            await ui.press(str(number))
            await ui.settled()
            seen = steady(ui.screen)
            kept = SNAPSHOTS / f"{name}-{size[0]}x{size[1]}.txt"
            if os.environ.get("BDH_TUI_SNAPSHOTS") == "write":
                SNAPSHOTS.mkdir(exist_ok=True)
                kept.write_text(seen, encoding="utf-8")
            else:
                before = kept.read_text(encoding="utf-8").splitlines()
                changed += difflib.unified_diff(before, seen.splitlines(), name, "now", n=0)
    assert not changed, "\n".join(changed)
