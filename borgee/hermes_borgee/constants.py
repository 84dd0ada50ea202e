"""Names and bounds that registration needs: this module imports nothing."""

from __future__ import annotations

#: Environment variables.
KEY_VARIABLE = "BORGEE_API_KEY"
HOME_CHANNEL_VARIABLE = "BORGEE_HOME_CHANNEL"

#: A frame may have 32 KiB. What is left of it holds the envelope: ids, nonce, field names.
MAX_CONTENT_BYTES = 32 * 1024 - 1024
#: What Hermes is told, in the same measure; it adds a few characters of its own.
MAX_MESSAGE_BYTES = MAX_CONTENT_BYTES - 256
