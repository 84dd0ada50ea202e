"""Where the demo of the Borgee platform plays: a chat, a gateway that can be killed, an operator.

A message is judged by four witnesses: the stand-in server (what the chat shows), the model
server's log, the inbox and the span store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bdh_bridge.demo.borgee.conversation import GUILD, Message
from bdh_bridge.demo.borgee.server import StandInServer
from bdh_bridge.demo.home import DemoHome
from bdh_bridge.demo.model_server import LoggedRequest, ScriptedModelServer
from bdh_bridge.demo.performance import bridge
from bdh_bridge.demo.processes import Finished, Processes, command
from bdh_bridge.demo.report import Command, Step
from bdh_bridge.demo.stage import PATIENCE, PlayedTurn, eventually
from bdh_otel import names
from bdh_otel.database import StoreError
from bdh_otel.reader import SpanReader, StoredSpan
from hermes_borgee.operator import NoInbox, Operator
from hermes_borgee.receipts import FINAL, Receipt


@dataclass(frozen=True, slots=True)
class ChatTurn(PlayedTurn):
    """A message that was answered: also its receipt, and how the answer came to be."""

    receipt: Receipt
    versions: Sequence[str]
    """The text of the answer's message in the chat: as first sent, then after every edit."""

    @property
    def trace_id(self) -> str:
        return trace_id(self.receipt)


class BorgeeStage:
    """The demo's home with everything that runs in it."""

    def __init__(
        self,
        home: DemoHome,
        model: ScriptedModelServer,
        processes: Processes,
        borgee: StandInServer,
    ) -> None:
        self.home = home
        self.model = model
        self.processes = processes
        self.borgee = borgee
        self.inbox = Operator(home.root)
        self.reader = SpanReader(home.paths.spans)

    # The chat

    def push(self, message: Message) -> str:
        """Somebody writes it. Returns the message's id."""
        place = {"guild_id": GUILD, "top_level_channel_id": message.channel}
        return self.borgee.push(
            message.text,
            channel_id=message.channel,
            channel_type="dm" if message.private else "channel",
            author_id=message.author.lower(),
            author_name=message.author,
            conversation_context=None if message.private else place,
        )

    def say(self, message: Message) -> ChatTurn:
        """Somebody writes it, and it is answered. Raises: TimeoutError."""
        return self.answered(message, self.push(message))

    def answered(self, message: Message, message_id: str) -> ChatTurn:
        """Wait until the message ``message_id`` is settled. Raises: TimeoutError."""
        receipt = eventually(lambda: self._settled(message_id))
        if receipt is None:
            found = self.receipt(message_id)
            raise TimeoutError(
                f"the message is {found.status if found else 'not in the inbox'} "
                f"after {PATIENCE:.0f} s"
            )
        spans = eventually(lambda: self._spans_of_turn(receipt)) or []
        # What was begun last in the channel is the answer.
        post = self.borgee.posts(message.channel)[-1]
        requests = self.requests(message)
        return ChatTurn(post.content, requests, spans, receipt, post.versions)

    def requests(self, message: Message) -> list[LoggedRequest]:
        """The model's requests for ``message``; not those for a title of the conversation."""
        return [r for r in self.model.requests() if r.scripted == message.text and r.tools]

    # The inbox, beside the gateway

    def receipts(self) -> list[Receipt]:
        try:
            return self.inbox.receipts()
        except NoInbox:
            return []

    def receipt(self, message_id: str) -> Receipt | None:
        return next((one for one in self.receipts() if one.message_id == message_id), None)

    def status(self, message_id: str) -> str:
        receipt = self.receipt(message_id)
        return receipt.status.value if receipt else "not received"

    def operate(self, step: Step, *arguments: str) -> Finished:
        """``bdh-bridge borgee …`` as an operator types it; the step shows it."""
        done = self.processes.run(
            "bdh-bridge", [*bridge(self.home), "borgee", *arguments], with_errors=True
        )
        step.commands.append(
            Command(" ".join(["bdh-bridge borgee", *arguments]), done.output.rstrip())
        )
        return done

    # The gateway

    def start_gateway(self) -> None:
        """Start it and wait until it is in the chat. Raises: ProcessError."""
        before = len(self.borgee.asked("get_me"))
        self.processes.start("gateway", [*command("hermes"), "gateway", "run"])
        self.processes.wait_ready(
            "gateway",
            lambda: self.borgee.is_online() and len(self.borgee.asked("get_me")) > before,
        )

    # The traces

    def wait_for_span(self, turn: ChatTurn, name: str) -> StoredSpan | None:
        """The span ``name`` of the message's trace, which another process may have to write."""

        def look() -> StoredSpan | None:
            spans = self.reader.trace(turn.trace_id)
            return next((s for s in spans if s.name == name and s.end_ns is not None), None)

        return eventually(look)

    def _settled(self, message_id: str) -> Receipt | None:
        receipt = self.receipt(message_id)
        return receipt if receipt and receipt.status in FINAL else None

    def _spans_of_turn(self, receipt: Receipt) -> list[StoredSpan] | None:
        try:
            spans = self.reader.trace(trace_id(receipt))
        except (FileNotFoundError, StoreError):
            return None
        ended = {span.name for span in spans if span.end_ns is not None}
        return spans if {names.TURN, names.BORGEE_DISPATCH} <= ended else None


def trace_id(receipt: Receipt) -> str:
    return receipt.traceparent.split("-")[1]
