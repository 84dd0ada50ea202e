"""What Hermes says in Borgee: sending, editing and deleting, with the outcome told apart."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from gateway.platforms.base import SendResult

from bdh_otel import attributes as attr
from hermes_borgee.evidence import note_reply_failure
from hermes_borgee.failures import SendKind
from hermes_borgee.outbound import Outbound, Sent

if TYPE_CHECKING:
    from hermes_borgee.tracing import Tracing

log = logging.getLogger(__name__)


class Replies:
    """The outbound half of the adapter."""

    _outbound: Outbound | None

    if TYPE_CHECKING:

        @property
        def tracing(self) -> Tracing: ...

    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Any = None
    ) -> SendResult:
        if self._outbound is None:
            return SendResult(success=False, error="never sent: there is no connection to Borgee")
        with self.tracing.send("send", chat_id) as span:
            sent = await self._outbound.send(chat_id, content, reply_to)
            return self._result(sent, span)

    async def edit_message(
        self, chat_id: str, message_id: str, content: str, *, finalize: bool = False
    ) -> SendResult:
        if self._outbound is None:
            return SendResult(success=False, error="never sent: there is no connection to Borgee")
        with self.tracing.send("edit", chat_id) as span:
            sent = await self._outbound.edit(chat_id, message_id, content, final=finalize)
            return self._result(sent, span)

    async def delete_message(self, chat_id: str, message_id: str) -> bool:
        if self._outbound is None:
            return False
        with self.tracing.send("delete", chat_id) as span:
            failure = await self._outbound.delete(message_id)
            kind = failure.kind if failure else SendKind.SENT
            span.set_attribute(attr.BORGEE_OUTCOME, kind.value)
        if failure is not None:
            log.warning("[bdh-bridge] borgee: a message was not deleted: %s", failure.message)
        return failure is None

    async def _send_with_retry(
        self,
        chat_id: str,
        content: str,
        reply_to: str | None = None,
        metadata: Any = None,
        max_retries: int = 2,
        base_delay: float = 2.0,
    ) -> SendResult:
        """What certainly was not sent has been tried again already; the rest must not be:
        refused stays refused, and what is uncertain might be shown twice."""
        return await self.send(chat_id, content, reply_to=reply_to, metadata=metadata)

    def _result(self, sent: Sent, span: Any) -> SendResult:
        failure = sent.failure
        kind = failure.kind if failure else SendKind.SENT
        span.set_attributes({attr.BORGEE_OUTCOME: kind.value, attr.BORGEE_PARTS: sent.parts})
        last = sent.message_ids[-1] if sent.message_ids else None
        if failure is None:
            return SendResult(
                success=True, message_id=last, continuation_message_ids=sent.message_ids[:-1]
            )
        detail = failure.message
        if sent.message_ids:
            detail = f"{len(sent.message_ids)} of {sent.parts} parts arrived; {detail}"
        log.warning("[bdh-bridge] borgee: %s", detail)
        note_reply_failure(detail)
        return SendResult(
            success=False,
            message_id=last,
            error=detail,
            error_kind={
                SendKind.REFUSED: "forbidden" if failure.permission else "unknown",
                SendKind.NEVER_SENT: "transient",
            }.get(kind, "unknown"),
            raw_response={
                "kind": kind.value,
                "code": failure.code,
                "permission": failure.permission,
                "message_ids": list(sent.message_ids),
            },
        )
