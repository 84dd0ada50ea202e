"""The walk along the providers until one gives a decision or the time is up.

Each provider has a circuit breaker that all processes share. A provider on probation is never
asked within a turn: it gets the same question *on the side*, on a thread that the turn does not
wait for, and its answer only closes or reopens the circuit. The same is done with what the time
did not suffice for. So a turn loses its whole budget at most once: the next one knows who is
alive.
"""

from __future__ import annotations

import contextvars
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit

from opentelemetry.trace import SpanKind

from bdh_bridge.deadline import BoundedCalls, Deadline, DeadlineExceededError
from bdh_bridge.routing.chat import ChatReply, Message, within
from bdh_bridge.routing.hop import Hop, HopError, HopOutcome
from bdh_bridge.routing.providers import Provider
from bdh_otel import attributes as attr
from bdh_otel import names

if TYPE_CHECKING:
    from bdh_bridge.state import SharedState
    from bdh_otel.tracer import LocalSpan, Tracer

log = logging.getLogger(__name__)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

LEAST_SECONDS = 0.05
"""With less left, asking is pointless."""
SLOW_FAILURE_SECONDS = 1.0
"""A failure that cost a turn more than this opens the circuit at once, cheaper ones in a row."""
SLOW_FAILURE_PAUSE = 30.0
RATE_LIMIT_PAUSE = 60.0
REFUSED_PAUSE = 60.0
_LEASE_MARGIN = 15.0
_REFUSED = frozenset({401, 402, 403, 404})
"""Key, credit or model: nothing that the next turn would find mended."""

_aside = BoundedCalls("bdh-rewrite-aside", limit=8)


@dataclass(frozen=True, slots=True)
class Question(Generic[T_co]):
    """What is asked of every provider: the chat ``messages``, and how an answer is understood.

    ``parse`` raises :class:`HopError` for an answer that can't be used; the next provider is
    asked then.
    """

    messages: Sequence[Message]
    parse: Callable[[str], T_co]


class Chain:
    """``provider_seconds`` bounds one provider and ``total_seconds`` the whole walk. Without
    ``asides`` nobody is asked on the side (for dry runs)."""

    def __init__(
        self,
        providers: Sequence[Provider],
        state: SharedState,
        tracer: Tracer,
        provider_seconds: float,
        total_seconds: float,
        *,
        asides: bool = True,
    ) -> None:
        self._providers = tuple(providers)
        self._state = state
        self._tracer = tracer
        self._provider_seconds = provider_seconds
        self._total_seconds = total_seconds
        self._asides = asides

    def walk(self, question: Question[T], parent: LocalSpan | None) -> tuple[T | None, list[Hop]]:
        """The first answer of use, and every hop up to it, skipped ones included."""
        deadline = Deadline(self._total_seconds)
        hops: list[Hop] = []
        late: list[tuple[int, Provider]] = []
        answer: T | None = None
        for index, provider in enumerate(self._providers, start=1):
            visit = _Visit(self._tracer, parent, index, provider)
            try:
                self._admit(index, provider, question, parent)
                seconds = min(self._provider_seconds, deadline.remaining)
                if seconds < LEAST_SECONDS:
                    late.append((index, provider))
                    raise HopError(HopOutcome.OUT_OF_TIME, "the chain's time was used up")
                try:
                    answer, reply = self._ask(provider, question, seconds, visit)
                except HopError as error:
                    # Cut short by the chain's bound: how it really is shows on the side.
                    if error.outcome is HopOutcome.TIMEOUT and seconds < self._provider_seconds:
                        late.append((index, provider))
                    raise
                hops.append(visit.succeeded(reply))
                break
            except HopError as error:
                hops.append(visit.failed(error))
        if answer is None:
            for index, provider in late:
                self._state.record_failure(_key(provider), retry_after=SLOW_FAILURE_PAUSE)
                self._ask_aside(index, provider, question, parent)
        return answer, hops

    def _admit(
        self, index: int, provider: Provider, question: Question[T], parent: LocalSpan | None
    ) -> None:
        """Raises: HopError if the provider is not to be asked in this turn."""
        if not provider.blocking and provider.credential(0.0) is None:
            raise HopError(HopOutcome.NO_CREDENTIAL, "no key or login")
        breaker = self._state.breaker_allows(
            _key(provider), lease=self._provider_seconds + _LEASE_MARGIN
        )
        if breaker.allowed and breaker.reason == "closed":
            return
        detail = "left out after failures"
        if breaker.allowed and self._ask_aside(index, provider, question, parent):
            detail = "on probation: asked on the side"
        raise HopError(HopOutcome.CIRCUIT_OPEN, detail, retry_after=breaker.retry_in)

    def _ask(
        self, provider: Provider, question: Question[T], seconds: float, visit: _Visit
    ) -> tuple[T, ChatReply]:
        """Ask, and tell the breaker how it went. Raises: HopError."""
        started = time.monotonic()
        try:
            reply = within(
                seconds, lambda exchange: provider.ask(question.messages, seconds, exchange)
            )
            visit.replied(reply)
            answer = question.parse(reply.text)
        except HopError as error:
            if error.outcome is HopOutcome.NO_CREDENTIAL:
                self._state.record_success(_key(provider))  # nothing of it is down
            else:
                pause = _pause(error, time.monotonic() - started)
                self._state.record_failure(_key(provider), retry_after=pause)
            raise
        except Exception as error:  # a fault of ours must not cost the turn the other providers
            log.warning("[bdh-bridge] asking %s failed", provider.name, exc_info=True)
            self._state.record_failure(_key(provider))
            raise HopError(HopOutcome.INTERNAL_ERROR, type(error).__name__) from None
        self._state.record_success(_key(provider))
        return answer, reply

    def _ask_aside(
        self, index: int, provider: Provider, question: Question[T], parent: LocalSpan | None
    ) -> bool:
        """Ask without anybody waiting; only the breaker learns the outcome."""
        if not self._asides:
            return False

        def ask() -> None:
            visit = _Visit(self._tracer, parent, index, provider, aside=True)
            try:
                _, reply = self._ask(provider, question, self._provider_seconds, visit)
                visit.succeeded(reply)
            except HopError as error:
                visit.failed(error)

        context = contextvars.copy_context()
        try:
            _aside.start(lambda: context.run(ask))
        except (DeadlineExceededError, RuntimeError):  # too many already, or no thread to be had
            return False
        return True


class _Visit:
    """One provider's span and, in the end, its :class:`Hop`."""

    def __init__(
        self,
        tracer: Tracer,
        parent: LocalSpan | None,
        index: int,
        provider: Provider,
        *,
        aside: bool = False,
    ) -> None:
        self._index = index
        self._provider = provider
        self._started = time.monotonic()
        self._reply: ChatReply | None = None
        attributes: dict[str, Any] = {
            attr.OPERATION_NAME: "chat",
            attr.PROVIDER_NAME: provider.name,
            attr.REQUEST_MODEL: provider.model or None,  # the host's is inherited
            attr.HOP_INDEX: index,
        }
        if provider.url:
            parts = urlsplit(provider.url)
            attributes[attr.SERVER_ADDRESS] = parts.hostname or ""
            attributes[attr.SERVER_PORT] = parts.port or (443 if parts.scheme == "https" else 80)
        if aside:
            attributes[attr.HOP_ASIDE] = True
        self._span = tracer.start_span(
            names.chat(provider.model), parent=parent, kind=SpanKind.CLIENT, attributes=attributes
        )

    def replied(self, reply: ChatReply) -> None:
        """Note the reply before it is understood: a rejected one used its tokens, too."""
        self._reply = reply

    def succeeded(self, reply: ChatReply) -> Hop:
        return self._end(HopOutcome.OK, "", 200 if self._provider.url else None, None)

    def failed(self, error: HopError) -> Hop:
        status = error.status_code
        if status is None and self._reply is not None and self._provider.url:
            status = 200  # it answered; what it said was of no use
        return self._end(error.outcome, error.detail, status, error.retry_after)

    def _end(
        self,
        outcome: HopOutcome,
        detail: str,
        status_code: int | None,
        retry_after: float | None,
    ) -> Hop:
        reply = self._reply or ChatReply("")
        attributes: dict[str, Any] = {
            attr.HOP_OUTCOME: str(outcome),
            attr.HOP_ERROR: detail or None,
            attr.HTTP_STATUS_CODE: status_code,
            attr.HOP_RETRY_AFTER: retry_after,
            attr.RESPONSE_MODEL: reply.model,
            attr.RESPONSE_FINISH_REASONS: [reply.finish_reason] if reply.finish_reason else None,
            attr.INPUT_TOKENS: reply.input_tokens,
            attr.OUTPUT_TOKENS: reply.output_tokens,
        }
        if outcome.asked and self._provider.url:
            attributes[attr.HTTP_METHOD] = "POST"
        self._span.set_attributes(attributes)
        if outcome.failed:
            self._span.fail(str(outcome))
        self._span.end()
        return Hop(
            self._index,
            self._provider.name,
            self._provider.model,
            outcome,
            time.monotonic() - self._started,
            detail,
            status_code,
            retry_after,
            reply.model,
            reply.input_tokens,
            reply.output_tokens,
        )


def _key(provider: Provider) -> str:
    return f"provider:{provider.name}"


def _pause(error: HopError, seconds: float) -> float | None:
    """Seconds for which to leave the provider out at once; None: only after failures in a row."""
    if error.retry_after is not None:
        return error.retry_after
    if error.outcome is HopOutcome.RATE_LIMITED:
        return RATE_LIMIT_PAUSE
    if error.status_code in _REFUSED:
        return REFUSED_PAUSE
    if error.outcome is HopOutcome.TIMEOUT or (
        error.outcome in (HopOutcome.NETWORK, HopOutcome.HTTP_ERROR, HopOutcome.TOO_LARGE)
        and seconds > SLOW_FAILURE_SECONDS
    ):
        return SLOW_FAILURE_PAUSE
    return None
