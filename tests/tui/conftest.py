"""Homes full of spans, and the real application driven by keys."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from bdh_bridge.settings import load
from bdh_tui.app import BridgeApp
from bdh_tui.picture import settle
from bdh_tui.sources import LocalSource, Source
from tests.tui.scenes import busy_home

PATIENCE = 20.0
"""For a broken program, not for a slow machine."""


@pytest.fixture(scope="session")
def full_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    busy_home(home, 120)
    return home


@pytest.fixture
def home(full_home: Path, tmp_path: Path) -> Path:
    """A home with 120 turns, a blacklist, and a write in every state; its graph is down."""
    return Path(shutil.copytree(full_home, tmp_path / "home"))


@pytest.fixture
def empty_home(tmp_path: Path) -> Path:
    home = tmp_path / "empty"
    home.mkdir()
    (home / ".env").write_text("BDH_API_URL=http://127.0.0.1:9\n", encoding="utf-8")
    return home


class Driver:
    """The application, and the keyboard in front of it."""

    def __init__(self, app: BridgeApp, pilot: Pilot[Any]) -> None:
        self.app, self.pilot = app, pilot

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.settled()

    def fill(self, field: str, text: str) -> None:
        """Put text into an input, at once."""
        self.app.screen.query_one(field, Input).value = text

    async def settled(self) -> None:
        await settle(self.app, self.pilot)

    async def until(self, condition: Callable[[], Any], what: str = "") -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"never seen: {what}\n{self.screen}"
            await self.pilot.pause()
            await asyncio.sleep(0.02)

    async def sees(self, *texts: str) -> None:
        """Wait until every text is on the screen."""
        for text in texts:
            await self.until(lambda text=text: text in self.screen, text)  # type: ignore[misc]

    @property
    def screen(self) -> str:
        """What is on the screen, as text."""
        return "\n".join(
            strip.text.rstrip() for strip in self.app.screen._compositor.render_strips()
        )

    def pane(self, name: str) -> Any:
        found = self.app.pane(name)
        assert found is not None
        return found


Drive = Callable[..., contextlib.AbstractAsyncContextManager[Driver]]


@pytest.fixture
def drive() -> Drive:
    """``async with drive(home) as ui``: the application on that home, settled."""

    @contextlib.asynccontextmanager
    async def driving(
        home: Path,
        *,
        size: tuple[int, int] = (120, 40),
        source: Source | None = None,
        screen: str = "live",
    ) -> AsyncIterator[Driver]:
        loaded = load(home, environ={})
        app = BridgeApp(loaded, source or LocalSource(loaded.paths.spans, home), screen)
        async with app.run_test(size=size, notifications=True) as pilot:
            driver = Driver(app, pilot)
            await driver.settled()
            yield driver

    return driving
