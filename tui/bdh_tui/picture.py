"""``--screenshot``: a screen as SVG, without a terminal."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from textual.pilot import Pilot

    from bdh_tui.app import BridgeApp

#: Seconds that a screen may take to have everything on it.
PATIENCE = 10.0
_WEB_FONTS = re.compile(r"@font-face\s*\{.*?\}\s*", re.DOTALL)


def take(app: BridgeApp, target: Path, size: tuple[int, int], keys: tuple[str, ...] = ()) -> None:
    """Write the screen that ``app`` begins with, after ``keys``. Raises: OSError."""
    picture = ""

    async def look(pilot: Pilot[object]) -> None:
        nonlocal picture
        await settle(app, pilot)
        for key in keys:
            await pilot.press(key)
            await settle(app, pilot)
        picture = svg(app)
        app.exit()

    app.run(headless=True, size=size, auto_pilot=look)
    target.write_text(picture, encoding="utf-8")


async def settle(app: BridgeApp, pilot: Pilot[Any]) -> None:
    """Wait until everything that was asked for has been answered and drawn."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        await pilot.pause()
        if app.settled:
            await pilot.pause(0.05)
            if app.settled:
                return
        await asyncio.sleep(0.02)


def svg(app: BridgeApp) -> str:
    """The screen, with no font from the web: whoever looks at it has one of his own."""
    text = _WEB_FONTS.sub("", app.export_screenshot(title="bdh-bridge-tui"))
    return text.replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas")
