"""Where the demo plays: the ways to speak to Hermes, and what each turn left behind.

A turn is judged by three witnesses that don't know of each other: the answer that Hermes gave,
the model server's log of requests, and the span store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from bdh_bridge.demo.home import DemoHome
from bdh_bridge.demo.model_server import LoggedRequest, ScriptedModelServer
from bdh_bridge.demo.processes import Finished, Processes, command
from bdh_bridge.text import CONTEXT_CLOSING, CONTEXT_OPENING
from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.database import StoreError
from bdh_otel.reader import SpanReader, StoredSpan

#: Seconds to wait for something that is on its way: generous, since machines are slow at times.
PATIENCE = 30.0

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """One turn: Hermes' answer, the model's requests and the spans that belong to it."""

    answer: str
    requests: Sequence[LoggedRequest]
    spans: Sequence[StoredSpan]

    @property
    def root(self) -> StoredSpan:
        return next(span for span in self.spans if span.name == names.TURN)

    @property
    def context(self) -> str:
        """The context block that the model was sent with the user's message, or ``""``."""
        for request in self.requests:
            _, opening, rest = request.user_message.partition(CONTEXT_OPENING)
            if opening:
                return opening + rest.partition(CONTEXT_CLOSING)[0] + CONTEXT_CLOSING
        return ""

    def gate(self, name: str, path: str) -> StoredSpan | None:
        """The decision of gate ``name`` on ``path`` (``read`` or ``write``)."""
        return next((s for s in self.spans if s.gate == name and s.path == path), None)

    def of_type(self, type_: str) -> list[StoredSpan]:
        """Spans whose name starts with the word ``type_``."""
        return [span for span in self.spans if span.type == type_]


class Stage:
    """The demo's home with everything that runs in it."""

    def __init__(self, home: DemoHome, model: ScriptedModelServer, processes: Processes) -> None:
        self.home = home
        self.model = model
        self.processes = processes
        self.reader = SpanReader(home.paths.spans)

    # The ways to speak to Hermes

    def say(self, prompt: str) -> PlayedTurn:
        """One turn of the long conversation that the gateway process holds."""
        return self._play(prompt, lambda: self._ask_gateway(prompt), platform="api_server")

    def one_shot(self, prompt: str) -> PlayedTurn:
        """``hermes -z``: a process for one answer, which ends abruptly."""
        return self._play(prompt, lambda: self.hermes("-z", prompt).output, platform="cli")

    def chat(self, prompt: str) -> PlayedTurn:
        """``hermes chat -Q -q``: a session of its own, in a process of its own."""
        return self._play(
            prompt, lambda: self.hermes("chat", "-Q", "-q", prompt).output, platform="cli"
        )

    def run_job(self, job_id: str, prompt: str) -> PlayedTurn:
        """``hermes cron run``: the job's turn as the scheduler runs it; it answers into a file."""

        def run() -> str:
            told = self.hermes("cron", "run", job_id).output
            files = sorted((self.home.root / "cron" / "output" / job_id).glob("*.md"))
            return files[-1].read_text("utf-8").partition("## Response")[2] if files else told

        return self._play(prompt, run, platform="cron")

    def hermes(self, *arguments: str) -> Finished:
        """Run a command of Hermes to its end."""
        return self.processes.run("hermes", [*command("hermes"), *arguments])

    # What is seen

    def wait_for_span(self, turn: PlayedTurn, name: str) -> StoredSpan | None:
        """The span ``name`` of the turn's trace, which another process may still have to write."""

        def look() -> StoredSpan | None:
            spans = self.reader.trace(turn.root.trace_id)
            return next((s for s in spans if s.name == name and s.end_ns is not None), None)

        return eventually(look)

    def graph(self, path: str, **parameters: str) -> Any:
        """The graph server's JSON answer to a GET of ``path``."""
        import httpx

        answer = httpx.get(
            f"{self.home.graph_url}{path}", params=parameters, timeout=PATIENCE, trust_env=False
        )
        return answer.raise_for_status().json()

    def _ask_gateway(self, prompt: str) -> str:
        import httpx

        answer = httpx.post(
            f"{self.home.gateway_url}/v1/chat/completions",
            headers={
                "Authorization": f"Bearer {self.home.gateway_key}",
                "X-Hermes-Session-Id": "demo-conversation",
            },
            json={"model": "hermes", "messages": [{"role": "user", "content": prompt}]},
            timeout=60,
            trust_env=False,
        )
        answer.raise_for_status()
        return str(answer.json()["choices"][0]["message"]["content"])

    def _play(self, prompt: str, speak: Callable[[], str], *, platform: str) -> PlayedTurn:
        began_ns = time.time_ns()
        before = len(self.model.requests())
        answer = speak().strip()
        requests = [one for one in self.model.requests()[before:] if one.scripted == prompt]
        spans = eventually(lambda: self._spans_of_turn(began_ns, platform)) or []
        return PlayedTurn(answer, requests, spans)

    def _spans_of_turn(self, began_ns: int, platform: str) -> list[StoredSpan] | None:
        try:
            turns = self.reader.turns(limit=5)
        except (FileNotFoundError, StoreError):
            return None
        for turn in turns:
            root = turn.root
            if root.start_ns >= began_ns and root.end_ns and root.platform == platform:
                return self.reader.trace(root.trace_id)
        return None


def decision(span: StoredSpan | None) -> str:
    """A gate's decision in one line, as evidence."""
    if span is None:
        return "no such decision in the trace"
    line = f"{span.path} gate {span.gate}: {span.decision}, reason {span.reason}"
    rule = span.attributes.get(attr.GATE_RULE)
    number = span.attributes.get(attr.GATE_RULE_LINE)
    if rule:
        line += f", rule {rule!r}"
    return f"{line} (line {number})" if number else line


def eventually(look: Callable[[], Found | None]) -> Found | None:
    """Ask ``look`` until it finds something or patience ends."""
    deadline = time.monotonic() + PATIENCE
    while (found := look()) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return found
