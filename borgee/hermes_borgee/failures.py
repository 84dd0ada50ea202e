"""What went wrong between the adapter and the server, and what that means.

The SDK masks every refused WebSocket upgrade as one kind of error, so the HTTP status is looked
for in the chain of causes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from borgee_plugin_sdk import BorgeeError, PermissionDeniedError, ProtocolError


class LinkKind(StrEnum):
    """Why there is no connection."""

    AUTH = "auth"
    FORBIDDEN = "forbidden"
    DISABLED = "disabled"
    RATE_LIMITED = "rate_limited"
    SERVER_ERROR = "server_error"
    HTTP_ERROR = "http_error"
    NETWORK = "network"
    SILENT = "silent"
    PROTOCOL = "protocol"
    CONFIG = "config"


@dataclass(eq=False)
class LinkFailure(Exception):
    """A connection failed or ended for good.

    ``final``: trying again can't help, an operator has to act. ``retry_after`` is what the
    server asked for, in seconds.
    """

    kind: LinkKind
    message: str
    final: bool = False
    retry_after: float | None = None

    def __str__(self) -> str:
        return self.message


#: Longest time that a server's Retry-After is followed.
MAX_RETRY_AFTER = 600.0


def link_failure(error: BaseException) -> LinkFailure:
    """Classify what ``connect()`` raised or what ended a client."""
    if isinstance(error, LinkFailure):
        return error
    code = error.code if isinstance(error, BorgeeError) else ""
    status, retry_after = _http_status(error)
    if status == 401 or code == "bpp.auth_failed":
        return LinkFailure(
            LinkKind.AUTH, "the server does not accept the key in BORGEE_API_KEY", final=True
        )
    if status == 403:
        return LinkFailure(
            LinkKind.FORBIDDEN,
            "the server refuses this agent (403): is it disabled, or the key of another server?",
            final=True,
        )
    if status == 429:
        return LinkFailure(
            LinkKind.RATE_LIMITED, "the server asks to come back later (429)", False, retry_after
        )
    if status is not None and status >= 500:
        return LinkFailure(
            LinkKind.SERVER_ERROR, f"the server or a proxy answers {status}", False, retry_after
        )
    if status is not None:
        return LinkFailure(
            LinkKind.HTTP_ERROR,
            f"the server answers {status} instead of opening a WebSocket; is base_url right?",
            False,
            retry_after,
        )
    if code.startswith("bpp.websocket_"):
        return LinkFailure(LinkKind.CONFIG, str(error), final=True)
    if any(isinstance(cause, OSError | TimeoutError) for cause in _chain(error)):
        cause = next(c for c in _chain(error) if isinstance(c, OSError | TimeoutError))
        text = str(cause) or type(cause).__name__
        return LinkFailure(LinkKind.NETWORK, f"the server can't be reached: {text[:200]}")
    if isinstance(error, ValueError | RecursionError) and not isinstance(error, BorgeeError):
        # What Python's JSON reader will not read: a number of thousands of digits, say.
        return LinkFailure(
            LinkKind.PROTOCOL, f"the server sent a frame that can't be read: {error}"[:300]
        )
    if isinstance(error, ProtocolError) and code not in ("bpp.connection_lost",):
        return LinkFailure(LinkKind.PROTOCOL, f"the connection broke off: {error} ({code})"[:300])
    return LinkFailure(
        LinkKind.NETWORK, f"the connection ended: {error} ({code or 'no code'})"[:300]
    )


class SendKind(StrEnum):
    """What became of something that was to be sent."""

    SENT = "sent"
    NEVER_SENT = "never_sent"
    REFUSED = "refused"
    UNCERTAIN = "uncertain"
    """It may have arrived: sending it again may show it twice."""


@dataclass(frozen=True, slots=True)
class SendFailure:
    """``permission`` is the capability that the agent lacks, where the server named one."""

    kind: SendKind
    message: str
    code: str = ""
    permission: str = ""


_NEVER_SENT = frozenset(
    {
        "bpp.not_online",
        "bpp.send_message_limit",
        "bpp.send_message_invalid",
        "bpp.protocol_capacity",
        "bpp.writer_closed",
        "bpp.client_closed",
    }
)
_UNCERTAIN = frozenset({"bpp.action_timeout", "bpp.connection_lost", "bpp.send_message_incomplete"})


def send_failure(error: BaseException) -> SendFailure:
    """Classify what an action of the SDK raised."""
    if isinstance(error, PermissionDeniedError):
        lacking = error.required_capability or "a permission"
        scope = f" in {error.current_scope}" if error.current_scope else ""
        return SendFailure(
            SendKind.REFUSED,
            f"refused: the agent lacks {lacking}{scope}",
            error.code,
            error.required_capability,
        )
    code = error.code if isinstance(error, BorgeeError) else ""
    # The SDK adds a half-sentence to this one if the frame had left.
    waited = code == "bpp.action_timeout" and str(error) == "semantic action send_message timed out"
    if isinstance(error, LinkFailure) or code in _NEVER_SENT or waited:
        return SendFailure(SendKind.NEVER_SENT, f"never sent: {error}", code)
    if code in _UNCERTAIN or isinstance(error, ProtocolError) or not code:
        # A malformed answer, or something unforeseen after the frame left.
        name = code or type(error).__name__
        return SendFailure(SendKind.UNCERTAIN, f"outcome unknown: {error} ({name})", code)
    return SendFailure(SendKind.REFUSED, f"refused by the server: {code}", code)


def _http_status(error: BaseException) -> tuple[int | None, float | None]:
    for cause in _chain(error):
        response = getattr(cause, "response", None)
        status = getattr(response, "status_code", None)
        if isinstance(status, int) and status != 101:
            header = getattr(response, "headers", {}).get("Retry-After", "")
            try:
                retry_after = min(max(float(header), 0.0), MAX_RETRY_AFTER)
            except ValueError:
                retry_after = None
            return status, retry_after
    return None, None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
