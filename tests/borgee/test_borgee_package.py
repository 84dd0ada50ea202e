"""Registration: with and without the SDK, with the real plugin manager of Hermes."""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys
from typing import Any

import pytest

import hermes_borgee

HAS_SDK = importlib.util.find_spec("borgee_plugin_sdk") is not None


class Context:
    """What a plugin gets from Hermes, recording."""

    def __init__(self) -> None:
        self.platforms: list[dict[str, Any]] = []
        self.tools: list[dict[str, Any]] = []
        self.hooks: list[str] = []

    def register_platform(self, **kwargs: Any) -> None:
        self.platforms.append(kwargs)

    def register_tool(self, **kwargs: Any) -> None:
        self.tools.append(kwargs)

    def register_hook(self, name: str, callback: Any) -> None:
        self.hooks.append(name)


def test_without_its_sdk_it_says_what_to_install_and_registers_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "borgee_plugin_sdk" else find_spec(name, *rest),
    )
    context = Context()
    with caplog.at_level(logging.ERROR):
        hermes_borgee.register(context)
    assert (context.platforms, context.tools, context.hooks) == ([], [], [])
    [record] = caplog.records
    assert "pip install" in record.getMessage()
    assert record.getMessage().endswith("'borgee-plugin-sdk==0.13.1'")


def test_importing_the_package_loads_neither_hermes_nor_the_sdk() -> None:
    code = (
        "import sys, hermes_borgee;"
        "loaded = {m.split('.')[0] for m in sys.modules};"
        "bad = loaded & {'borgee_plugin_sdk', 'gateway', 'websockets', 'bdh_otel', 'pydantic'};"
        "sys.exit(str(bad) if bad else 0)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.skipif(not HAS_SDK, reason="needs the SDK")
def test_registering_loads_nothing_heavy_into_every_start_of_hermes() -> None:
    code = (
        "import sys, hermes_borgee;"
        "Context = type('C', (), {'__getattr__': lambda self, name: lambda *a, **k: None});"
        "hermes_borgee.register(Context());"
        "heavy = {'borgee_plugin_sdk', 'jsonschema', 'websockets', 'pydantic', 'bdh_otel'};"
        "loaded = heavy & {m.split('.')[0] for m in sys.modules};"
        "sys.exit(str(loaded) if loaded else 0)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.skipif(not HAS_SDK, reason="needs the SDK")
def test_the_platform_fits_hermes_own_registry() -> None:
    from gateway.platform_registry import PlatformEntry

    context = Context()
    hermes_borgee.register(context)
    [platform] = context.platforms
    entry = PlatformEntry(**platform)  # raises TypeError for a field that Hermes does not know
    assert entry.name == "borgee"
    assert entry.check_fn()
    assert context.hooks == ["pre_llm_call", "on_session_end"]
    assert {tool["toolset"] for tool in context.tools} == {"borgee"}
    assert all(tool["schema"]["name"] == tool["name"] for tool in context.tools)
