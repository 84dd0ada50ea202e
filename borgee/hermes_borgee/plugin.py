"""Registration with Hermes: the platform, its tools, one hook."""

from __future__ import annotations

import sys
from typing import Any

from bdh_bridge import install_command
from hermes_borgee import SDK_REQUIREMENT, sdk_installed
from hermes_borgee.constants import HOME_CHANNEL_VARIABLE, KEY_VARIABLE, MAX_MESSAGE_BYTES

PLATFORM_HINT = (
    "You are talking in Borgee, a chat workspace, in Markdown. Several people may write in one "
    "channel. The borgee_* tools act on the workspace; take ids from the Borgee conversation "
    "given with the message."
)


def register(ctx: Any) -> None:
    """Everything Hermes has to know of the adapter.

    Runs at every start of Hermes, also of a chat that never connects to Borgee: the SDK and what
    needs it are imported when the adapter is built.
    """
    from hermes_borgee.evidence import note_end, note_model_call
    from hermes_borgee.tools import register_tools

    ctx.register_platform(
        name="borgee",
        label="Borgee",
        adapter_factory=_adapter,
        check_fn=sdk_installed,
        required_env=[KEY_VARIABLE],
        install_hint=install_command(sys.executable, f"'{SDK_REQUIREMENT}'"),
        is_connected=_configured,
        setup_fn=_setup,
        max_message_length=MAX_MESSAGE_BYTES,
        emoji="💬",
        platform_hint=PLATFORM_HINT,
        cron_deliver_env_var=HOME_CHANNEL_VARIABLE,
        standalone_sender_fn=_send_standalone,
    )
    ctx.register_hook("pre_llm_call", note_model_call)
    ctx.register_hook("on_session_end", note_end)
    register_tools(ctx)


def _adapter(config: Any) -> Any:
    from hermes_borgee.adapter import BorgeeAdapter

    return BorgeeAdapter(config)


def _configured(config: Any) -> bool:
    """Whether the profile is set up; asked before Hermes enables a platform by itself."""
    from hermes_borgee import config as configuration

    try:
        configuration.load(configuration.hermes_home())
    except configuration.ConfigError:
        return False
    return True


def _setup() -> None:
    """``hermes gateway setup``: the same questions as ``bdh-bridge borgee setup``."""
    from hermes_borgee.config import hermes_home
    from hermes_borgee.setup import interactive

    interactive(hermes_home())


async def _send_standalone(
    pconfig: Any,
    chat_id: str,
    message: str,
    *,
    thread_id: str | None = None,
    media_files: Any = None,
    force_document: bool = False,
) -> dict[str, Any]:
    """Send from a process without the gateway (a scheduled job on its own)."""
    from hermes_borgee.config import hermes_home
    from hermes_borgee.standalone import send_once

    return await send_once(hermes_home(), chat_id, message)
