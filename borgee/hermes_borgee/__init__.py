"""The Borgee platform adapter for Hermes Agent.

Importing this module needs neither Hermes nor the Borgee SDK: Hermes imports it at every start,
also on machines where nobody uses Borgee.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from typing import Any

#: What the adapter needs beyond the bridge itself, and the release that it was made for.
SDK_REQUIREMENT = "borgee-plugin-sdk==0.13.1"


def register(ctx: Any) -> None:
    """Hermes' entry point, called once when the host loads the plugin.

    Without the SDK nothing is registered and one line in the log says what to install; nothing
    is raised.
    """
    if not sdk_installed():
        from bdh_bridge import install_command

        logging.getLogger(__name__).error(
            "[bdh-bridge] borgee: not loaded, the Borgee SDK is missing. Install with: %s",
            install_command(sys.executable, f"'{SDK_REQUIREMENT}'"),
        )
        return
    from hermes_borgee.plugin import register as register_platform

    register_platform(ctx)


def sdk_installed() -> bool:
    """Whether the Borgee SDK can be imported."""
    try:
        return importlib.util.find_spec("borgee_plugin_sdk") is not None
    except (ImportError, ValueError):
        return False
