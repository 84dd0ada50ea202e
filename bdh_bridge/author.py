"""The author's name that the host puts before a message, where several people share a session.

There the model reads ``[Ada] when does the backup run?``. The name is the host's, not part of what
Ada asks: left in, it is judged by the gates and looked for in the graph. It is taken away only
where the host's own rule says that it was added, and only if it is the name that the host gives
for this turn; brackets that somebody wrote stay.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace


def without_author(message: str) -> str:
    """``message`` without the host's prefix; called in the turn's own context. Never raises."""
    if not message.startswith("["):
        return message
    try:
        names = _names()
    except Exception:  # another version of the host: the message as it is
        return message
    for name in names:
        prefix = f"[{name}] "
        if message.startswith(prefix):
            return message[len(prefix) :]
    return message


def _names() -> tuple[str, ...]:
    """How the host writes this turn's author before a message; nothing where it does not."""
    run = sys.modules.get("gateway.run")
    runner = run._gateway_runner_ref() if run is not None else None
    if runner is None:
        return ()
    from gateway import session
    from gateway.session_context import get_session_env

    name = get_session_env("HERMES_SESSION_USER_NAME")
    key = get_session_env("HERMES_SESSION_KEY").split(":")
    if not name or len(key) < 4:
        return ()
    # agent:PROFILE:PLATFORM:CHAT TYPE:…
    source = SimpleNamespace(
        chat_type=key[3], thread_id=get_session_env("HERMES_SESSION_THREAD_ID")
    )
    shared = session.is_shared_multi_user_session(
        source,
        group_sessions_per_user=getattr(runner.config, "group_sessions_per_user", True),
        thread_sessions_per_user=getattr(runner.config, "thread_sessions_per_user", False),
    )
    if not shared:
        return ()
    # Newer versions of the host make a name safe before they show it.
    shown = getattr(session, "neutralize_untrusted_inline_text", str)
    return (shown(name), name)
