"""A day with the bridge, as the bridge itself records it: spans, writes, breakers, a blacklist.

Everything goes through the real tracer, outbox, state and blacklist; only the conversation is
invented.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opentelemetry.trace import SpanKind

from bdh_bridge.outbox.queue import Queue
from bdh_bridge.outbox.states import State
from bdh_bridge.outbox.store import Accepted, NewWrite, Outbox
from bdh_bridge.outbox.transitions import Result
from bdh_bridge.paths import BridgePaths
from bdh_bridge.state import SharedState
from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.tracer import LocalSpan, Tracer

MS = 1_000_000
GRAPH = "http://127.0.0.1:9"
BLACKLIST = """# Nothing about money.
salaries
# Health is nobody's business.
re:\\bmedical (record|history)\\b

#off: the old harbour
re:(unclosed
"""
_READ_GATES = (
    ("bridge", "active"),
    ("origin", "human"),
    ("cron", "not_cron"),
    ("platform", "platform_allowed"),
    ("blacklist", "no_rule_matched"),
    ("injectable", "text"),
    ("sender", "no_sender_list"),
)
_WRITE_GATES = (
    ("bridge", "active"),
    ("answer", "final_answer"),
    ("captured", "captured"),
    ("origin", "human"),
    ("cron", "not_cron"),
    ("platform", "platform_allowed"),
    ("sender", "no_sender_list"),
    ("blacklist", "no_rule_matched"),
)


class Scene:
    """One turn in the making; ``now`` moves on by itself, in Unix nanoseconds."""

    def __init__(
        self, tracer: Tracer, message: str, session: str, platform: str, when_ns: int
    ) -> None:
        self.tracer, self.now = tracer, when_ns
        self.root = tracer.start_span(
            names.TURN,
            start_time=when_ns,
            attributes={
                attr.CONVERSATION_ID: session,
                attr.TURN_ID: f"{session}:{when_ns}",
                attr.PLATFORM: platform,
                attr.REQUEST_MODEL: "host-model",
                attr.TURN_MESSAGE: message,
                attr.TURN_MESSAGE_CHARACTERS: len(message),
            },
        )
        self.message = message

    def span(
        self, name: str, took_ms: float, values: dict[str, Any], error: str = "", **kwargs: Any
    ) -> LocalSpan:
        kwargs.setdefault("parent", self.root)
        span = self.tracer.start_span(name, start_time=self.now, attributes=values, **kwargs)
        if error:
            span.fail(error)
        self.now += int(took_ms * MS)
        span.end(self.now)
        return span

    def gate(self, path: str, name: str, reason: str, decision: str = "allow", **more: Any) -> None:
        values = {
            attr.GATE_NAME: name,
            attr.GATE_PATH: path,
            attr.GATE_DECISION: decision,
            attr.GATE_REASON: reason,
            **{getattr(attr, key): value for key, value in more.items()},
        }
        self.span(names.gate(name), 0.02, values)

    def gates(self, path: str, until: str = "") -> None:
        for name, reason in _READ_GATES if path == "read" else _WRITE_GATES:
            if name == until:
                return
            self.gate(path, name, reason)

    def hop(self, provider: str, outcome: str, took_ms: float, index: int, **more: Any) -> None:
        failed = outcome not in ("ok", "no_credential", "circuit_open")
        values = {
            attr.OPERATION_NAME: "chat",
            attr.PROVIDER_NAME: provider,
            attr.REQUEST_MODEL: f"{provider}-model",
            attr.HOP_INDEX: index,
            attr.HOP_OUTCOME: outcome,
            **more,
        }
        error = outcome if failed else ""
        self.span(names.chat(f"{provider}-model"), took_ms, values, error, kind=SpanKind.CLIENT)

    def retrieve(self, hybrid: float, vector: float, terms: int) -> None:
        values = {
            attr.RETRIEVAL_OUTCOME: "ok",
            attr.RETRIEVAL_NOTES: 6,
            attr.RETRIEVAL_QUERY: self.message,
            attr.RETRIEVAL_HYBRID_TOP: hybrid,
            attr.RETRIEVAL_HYBRID_SECOND: hybrid * 0.7,
            attr.RETRIEVAL_VECTOR_TOP: vector,
            attr.RETRIEVAL_BM25_TOP: 1.0,
            attr.RETRIEVAL_QUERY_TERMS: terms + 2,
            attr.RETRIEVAL_MATCHED_TERMS_COUNT: terms,
        }
        self.span(names.retrieval(""), 24 + 40 * hybrid, values, kind=SpanKind.CLIENT)

    def end(self, route: str, read: str, write: str, think_ms: float = 600) -> LocalSpan:
        self.root.set_attributes(
            {
                attr.TURN_ROUTE: route,
                attr.TURN_READ_OUTCOME: read,
                attr.TURN_WRITE_OUTCOME: write,
                attr.TURN_CLOSE_REASON: "end_of_turn",
            }
        )
        self.root.end(self.now + int(think_ms * MS))
        return self.root

    def short_answer(self) -> None:
        self.gate("write", "bridge", "active")
        self.gate(
            "write", "answer", "short_answer", "skip",
            GATE_VALUE=61, GATE_THRESHOLD=200, GATE_UNIT="characters",
        )  # fmt: skip


def enriched(scene: Scene, rng: random.Random) -> None:
    scene.gates("read")
    scene.gate("read", "eligibility", "knowledge_cue", GATE_RULE="why did we")
    scene.retrieve(rng.uniform(0.35, 0.95), rng.uniform(0.2, 0.9), rng.randint(2, 6))
    scene.gate(
        "read", "relevance", "terms_matched", GATE_VALUE=4, GATE_THRESHOLD=2, GATE_UNIT="terms"
    )
    titles = ["SQLite on the gateway", "Gateway settings", "A full disk stops everything"]
    values = {
        attr.CONTEXT_NOTES: 3,
        attr.CONTEXT_CHARACTERS: 81,
        attr.CONTEXT_ALREADY_PRESENT: 1,
        attr.CONTEXT_TITLES: titles,
        attr.CONTEXT_TEXT: "[BDH context]\n" + "\n".join(f"- {title}" for title in titles),
    }
    scene.span(names.CONTEXT, 0.3, values)
    scene.now += 700 * MS
    scene.short_answer()
    scene.end("retrieve_only", "context", "short_answer")


def small_talk(scene: Scene, rng: random.Random) -> None:
    scene.gates("read")
    scene.gate("read", "eligibility", "casual", "skip")
    scene.short_answer()
    scene.end("skip", "casual", "short_answer", 200)


def blacklisted(scene: Scene, rng: random.Random) -> None:
    for path in ("read", "write"):
        scene.gates(path, until="blacklist")
        scene.gate(path, "blacklist", "blacklisted", "skip", GATE_RULE="salaries", GATE_RULE_LINE=2)
    scene.end("skip", "blacklisted", "blacklisted")


def weak_match(scene: Scene, rng: random.Random) -> None:
    scene.gates("read")
    scene.gate("read", "eligibility", "question")
    vector = rng.uniform(0.2, 0.49)
    scene.retrieve(rng.uniform(0.3, 0.4), vector, 1)
    scene.gate(
        "read", "relevance", "weak_match", "skip",
        GATE_VALUE=vector, GATE_THRESHOLD=0.5, GATE_UNIT="vector",
    )  # fmt: skip
    scene.short_answer()
    scene.end("skip", "weak_match", "short_answer")


def graph_down(scene: Scene, rng: random.Random) -> None:
    scene.gates("read")
    scene.gate("read", "eligibility", "knowledge_cue", GATE_RULE="how did we")
    values = {
        attr.RETRIEVAL_OUTCOME: "unreachable",
        attr.RETRIEVAL_ERROR: "ConnectError: connection refused",
    }
    scene.span(names.retrieval(""), 11, values, "unreachable", kind=SpanKind.CLIENT)
    scene.short_answer()
    scene.end("skip", "failed", "short_answer")


def rewritten(scene: Scene, rng: random.Random) -> None:
    """The first provider fails in some way, the second one answers."""
    scene.gates("read")
    outcome = rng.choice(["rate_limited", "timeout", "ok", "ok", "ok"])
    took = {"timeout": 15_000, "rate_limited": 90}.get(outcome, rng.uniform(300, 1_400))
    tokens = {attr.INPUT_TOKENS: rng.randint(600, 900), attr.OUTPUT_TOKENS: rng.randint(50, 120)}
    more = tokens if outcome == "ok" else {attr.HOP_ERROR: f"the provider said: {outcome}"}
    scene.hop("ollama", outcome, took, 1, **more)
    if outcome != "ok":
        scene.hop("nous", "no_credential", 0.01, 2)
        scene.hop("openrouter", "ok", rng.uniform(500, 2_500), 3, **tokens)
    values = {
        attr.REWRITE_SHOULD_RETRIEVE: True,
        attr.REWRITE_STORE_CANDIDATE: False,
        attr.REWRITE_CONFIDENCE: 0.86,
        attr.REWRITE_VARIANTS: 2,
        attr.REWRITE_HOPS: 1 if outcome == "ok" else 3,
        attr.REWRITE_REASON: "asks for a decision of the project",
    }
    scene.span(names.REWRITE, 0.4, values)
    scene.retrieve(rng.uniform(0.5, 0.9), rng.uniform(0.4, 0.9), rng.randint(1, 5))
    scene.gate(
        "read", "relevance", "vector_matched",
        GATE_VALUE=0.71, GATE_THRESHOLD=0.5, GATE_UNIT="vector",
    )  # fmt: skip
    scene.span(names.CONTEXT, 0.3, {attr.CONTEXT_NOTES: 2, attr.CONTEXT_CHARACTERS: 811})
    scene.gate("write", "bridge", "active")
    scene.gate("write", "route", "router_no_store", "skip")
    scene.end("retrieve_only", "context", "router_no_store")


def fallback(scene: Scene, rng: random.Random) -> None:
    """No provider answers."""
    scene.gates("read")
    scene.hop("ollama", "http_error", 140, 1, **{attr.HTTP_STATUS_CODE: 503})
    scene.hop("nous", "no_credential", 0.01, 2)
    scene.hop("openrouter", "circuit_open", 0.01, 3)
    scene.hop("local", "network", 3, 4, **{attr.HOP_ERROR: "connection refused"})
    scene.span(names.REWRITE, 0.2, {attr.REWRITE_FALLBACK: True, attr.REWRITE_HOPS: 4})
    scene.gate("read", "eligibility", "no_cue", "skip")
    scene.short_answer()
    scene.end("skip", "no_cue", "short_answer")


def taught(scene: Scene, rng: random.Random) -> None:
    """A turn that is written and delivered."""
    _written(scene, "delivered", {attr.DELIVERY_NEW_CONCEPTS: 1, attr.DELIVERY_HEBBIAN_UPDATES: 10})


def waits(scene: Scene, rng: random.Random) -> None:
    _written(scene, "retry", {attr.DELIVERY_REASON: "unreachable"})


def in_doubt(scene: Scene, rng: random.Random) -> None:
    _written(scene, "quarantined", {attr.DELIVERY_REASON: "connection_lost"})


def _written(scene: Scene, outcome: str, more: dict[str, Any]) -> None:
    scene.gates("read")
    scene.gate("read", "eligibility", "too_short", "skip")
    scene.now += 900 * MS
    scene.gates("write")
    values = {attr.WRITE_OUTCOME: "queued", attr.WRITE_CHARACTERS: 494}
    write = scene.span(names.WRITE, 0.6, values, kind=SpanKind.PRODUCER)
    root_ends = scene.now
    scene.now += 120 * MS
    values = {attr.DELIVERY_OUTCOME: outcome, attr.DELIVERY_ATTEMPT: 1, **more}
    error = "connection_lost" if outcome == "quarantined" else ""
    scene.span(names.DELIVER, 148, values, error, kind=SpanKind.CONSUMER, parent=write)
    scene.now = root_ends
    scene.end("store_only", "too_short", "queued", 5)


SCRIPT: tuple[tuple[str, Callable[[Scene, random.Random], None]], ...] = (
    ("Why did we choose SQLite instead of PostgreSQL on the gateway?", enriched),
    ("Ciao, grazie mille!", small_talk),
    ("What did we decide about the salaries of the harbour office?", blacklisted),
    ("Is there anything new under the sun?", weak_match),
    ("How did we configure the radio channels of the gateway?", graph_down),
    ("Which buoys report over radio, and since when?", rewritten),
    ("Tell me something about the weather tomorrow", fallback),
    ("We decided today that the spare siren is stored in the boathouse.", taught),
    ("Perché abbiamo abbandonato la rete mobile per le boe?", enriched),
    ("From now on the forecast runs every ten minutes.", waits),
    ("The night shift ends at six from Monday on.", in_doubt),
    ("Which alert level closes the lower bridge?", rewritten),
)
_PLATFORMS = ("cli", "telegram", "api_server")


def play(
    store: Path, turns: int, *, over_seconds: float = 3_000, seed: int = 7, content: Any = "preview"
) -> list[str]:
    """``turns`` turns that end about now; returns their trace ids, oldest first."""
    rng = random.Random(seed)
    tracer = Tracer(store, {"service.version": "1.0.0"}, content=content, strict=True)
    start = time.time_ns() - int(over_seconds * 1e9)
    step = int(over_seconds * 1e9 / max(turns, 1))
    made = []
    for number, (message, scene) in zip(range(turns), itertools.cycle(SCRIPT), strict=False):
        session = f"session-{number // 9}"
        one = Scene(tracer, message, session, rng.choice(_PLATFORMS), start + number * step)
        scene(one, rng)
        made.append(f"{one.root.trace_id:032x}")
        if number % 50 == 49:
            assert tracer.flush(30)
    assert tracer.flush(30)
    tracer.shutdown()
    return made


def fill_outbox(home: Path, traceparent: str = "") -> Outbox:
    """One write in every state that an operator meets, each in a vault of its own."""
    paths = BridgePaths(home)
    outbox = Outbox(paths.outbox, spool=paths.outbox_spool)
    results = {
        "delivered": Result(State.DELIVERED, new_concepts=1, hebbian_updates=10),
        "unconfirmed": Result(State.UNCONFIRMED, "timeout", "no answer within 30 s"),
        "quarantined": Result(State.IN_DOUBT, "connection_lost", "the peer closed the connection"),
        "failed": Result(State.FAILED, "unauthorized", "Unauthorized", http_status=401),
        "retried": Result(State.PENDING, "unreachable", "connection refused"),
        "pending": None,
    }
    queue = Queue(outbox, owner="the tests")
    for vault, result in results.items():
        accepted = outbox.accept(
            NewWrite(
                query=f"What the conversation was about ({vault})",
                user_prompt="The spare siren is stored in the boathouse. " * 8,
                source="assistant_response",
                destination=GRAPH,
                vault_id=vault,
                traceparent=traceparent,
                session_id="session-0",
                turn_id="turn-0",
                platform="cli",
                model="host-model",
                created_ns=time.time_ns(),
            )
        )
        assert isinstance(accepted, Accepted), accepted
        if result is not None:
            write = queue.next_write(GRAPH)
            assert write is not None
            assert write.vault_id == vault
            claim = queue.claim(write, None)
            assert claim is not None
            assert queue.finish(claim, result) is not None
    return outbox


def busy_home(home: Path, turns: int = 120, *, over_seconds: float = 3_000) -> list[str]:
    """A home with everything in it; returns the turns' trace ids, oldest first."""
    paths = BridgePaths(home)
    made = play(paths.spans, turns, over_seconds=over_seconds)
    fill_outbox(home, f"00-{made[-1]}-{'b2' * 8}-01").close()
    paths.blacklist.write_text(BLACKLIST, encoding="utf-8")
    state = SharedState(paths.state, busy_timeout=5.0)
    for _ in range(3):
        state.record_failure("provider:openrouter")
    state.record_failure("provider:ollama")
    state.close()
    (home / ".env").write_text(
        f"BDH_API_URL={GRAPH}\nBDH_QUERY_REWRITE_ENABLED=true\n", encoding="utf-8"
    )
    return made
