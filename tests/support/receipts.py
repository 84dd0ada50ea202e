"""Receipts for tests that need one and care little about it."""

from __future__ import annotations

from typing import Any

from hermes_borgee.receipts import NewReceipt


def plain(text: str, session_key: str = "agent:main:borgee:channel:chan-1", **fields: Any) -> Any:
    """A pending message with this text."""
    values: dict[str, Any] = {
        "kind": "message",
        "channel_id": session_key.rpartition(":")[2],
        "channel_type": "channel",
        "author_id": "user-1",
        "author_name": "Ada",
        "message_id": f"m-{text}",
        "session_key": session_key,
        "source_body": text,
        "effective_body": text,
        "source_created_at": 0,
        "dedupe_key": f"message {session_key} {text}",
        **fields,
    }
    return NewReceipt(**values)
