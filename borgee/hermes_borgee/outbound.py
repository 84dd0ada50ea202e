"""Messages to Borgee: split by their size on the wire, and failures told apart."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hermes_borgee.constants import MAX_CONTENT_BYTES
from hermes_borgee.failures import SendFailure, SendKind, send_failure
from hermes_borgee.link import Link

log = logging.getLogger(__name__)

#: Pauses before another attempt at what certainly was not sent, in seconds.
RETRY_PAUSES = (0.5, 2.0)
#: Seconds for which a reply waits for the connection to come back.
PATIENCE = 60.0

_FENCE = re.compile(r"^[ ]{0,3}(```+|~~~+)[ \t]*([^\s`]*)[^\n`]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sent:
    """What arrived. ``failure`` is set if a part did not; the parts before it did."""

    message_ids: tuple[str, ...]
    parts: int
    failure: SendFailure | None = None


def wire_size(text: str) -> int:
    """Bytes that ``text`` takes in a frame: it is JSON inside a JSON string, so quotes and line
    breaks are escaped twice."""
    inner = json.dumps(text, ensure_ascii=False)
    return len(json.dumps(inner, ensure_ascii=False).encode("utf-8", "replace"))


def split(text: str, limit: int = MAX_CONTENT_BYTES) -> list[str]:
    """``text`` in parts of at most ``limit`` bytes on the wire.

    Cut between paragraphs, else lines, sentences, words, else anywhere between two characters.
    A code block that is cut is closed and opened again.
    """
    parts: list[str] = []
    fence = ""
    rest = text
    while rest:
        head = f"{fence}\n" if fence else ""
        if wire_size(head + rest) <= limit:
            parts.append(head + rest)
            break
        # Room for the line that closes a code block.
        room = limit - 64
        cut = _best_cut(rest, _longest(head, rest, room))
        part, rest = rest[:cut].rstrip(), rest[cut:].lstrip("\n" if fence else "\n ")
        fence_after = _open_fence(head + part)
        closing = f"\n{re.match(r'[`~]+', fence_after)[0]}" if fence_after else ""  # type: ignore[index]
        parts.append(head + part + closing)
        fence = fence_after
    return parts or [""]


def _longest(head: str, rest: str, room: int) -> int:
    """How many characters of ``rest`` fit, at least one."""
    low, high = 1, min(len(rest), room)
    while low < high:
        middle = (low + high + 1) // 2
        if wire_size(head + rest[:middle]) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def _best_cut(text: str, most: int) -> int:
    window = text[:most]
    # A cut in the first half would make many small messages.
    least = most // 2
    for separator in ("\n\n", "\n", ". ", " "):
        place = window.rfind(separator, least)
        while place > least and _ends_in_heading(window[:place]):
            place = window.rfind(separator, least, place)
        if place >= least:
            return place + len(separator)
    return most


def _ends_in_heading(text: str) -> bool:
    """A heading belongs to what follows it."""
    return text.rstrip().rpartition("\n")[2].startswith("#")


def _open_fence(text: str) -> str:
    """The line that opened a code block which is still open at the end, or nothing."""
    opened = ""
    for match in _FENCE.finditer(text):
        mark = match[1]
        if not opened:
            opened = mark + match[2]
        elif mark[0] == opened[0] and len(mark) >= len(opened.rstrip(opened.lstrip("`~") or " ")):
            opened = ""
    return opened


class Outbound:
    """Sends through whatever client the link has. Never raises for a failed send."""

    def __init__(self, link: Link, remember: Callable[[str, str], Awaitable[None]]) -> None:
        self._link = link
        self._remember = remember

    async def send(self, channel_id: str, text: str, reply_to: str | None = None) -> Sent:
        """Send ``text`` in as many messages as it takes, in order; stops at the first failure."""
        parts = split(text)
        ids: list[str] = []
        for number, part in enumerate(parts):
            result = await self._send_part(channel_id, part, reply_to if number == 0 else None)
            if isinstance(result, SendFailure):
                return Sent(tuple(ids), len(parts), result)
            ids.append(result)
        return Sent(tuple(ids), len(parts))

    async def edit(self, channel_id: str, message_id: str, text: str, *, final: bool) -> Sent:
        """Replace a message's text. What does not fit any more follows in new messages if this
        is the last edit; before that the preview shows what fits."""
        parts = split(text)
        if final and not self._link.online:
            await self._link.wait_online(PATIENCE)
        try:
            await self._link.client.edit_message(message_id, parts[0])
        except asyncio.CancelledError:
            raise
        except Exception as error:
            return Sent((), len(parts), send_failure(error))
        if not final or len(parts) == 1:
            return Sent((message_id,), 1)
        rest: list[str] = []
        for part in parts[1:]:
            result = await self._send_part(channel_id, part, None)
            if isinstance(result, SendFailure):
                return Sent((message_id, *rest), len(parts), result)
            rest.append(result)
        return Sent((message_id, *rest), len(parts))

    async def delete(self, message_id: str) -> SendFailure | None:
        try:
            await self._link.client.delete_message(message_id)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            return send_failure(error)
        return None

    async def _send_part(
        self, channel_id: str, text: str, reply_to: str | None
    ) -> str | SendFailure:
        for pause in (*RETRY_PAUSES, None):
            if not self._link.online:
                await self._link.wait_online(PATIENCE)
            try:
                sent = await self._link.client.send_message(channel_id, text, reply_to_id=reply_to)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                failure = send_failure(error)
                # Only what certainly stayed here may be tried again, and not what never fits.
                retry = failure.kind is SendKind.NEVER_SENT and not failure.code.startswith(
                    "bpp.send_message_"
                )
                if retry and pause is not None:
                    await asyncio.sleep(pause)
                    continue
                return failure
            await self._note(sent.message_id, channel_id)
            return sent.message_id
        raise AssertionError("the last attempt returns")

    async def _note(self, message_id: str, channel_id: str) -> None:
        try:
            await self._remember(message_id, channel_id)
        except Exception as error:
            # The agent's own id still tells an echo.
            log.warning("[bdh-bridge] borgee: a sent id was not kept (%s)", type(error).__name__)
