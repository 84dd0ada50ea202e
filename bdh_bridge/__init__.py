"""The bridge between Hermes Agent and a BDH knowledge graph."""

from __future__ import annotations

from typing import Any

__version__ = "1.0.0"


def register(ctx: Any) -> None:
    """Hermes' entry point: called once when the host loads the plugin."""
    from bdh_bridge.plugin import register as register_plugin

    register_plugin(ctx)
