"""``/bdh`` in chats of a running gateway (an IRC server on loopback), and at the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bdh_bridge import caller as callers
from bdh_bridge.caller import Caller, identify, note_dispatch
from bdh_bridge.demo.model_server import ScriptedModelServer
from bdh_bridge.slash import REFUSED, SlashCommand
from bdh_bridge.state import SharedState
from tests.hermes.conftest import ANSWERS
from tests.support.embedded_graph import EmbeddedGraph
from tests.support.hermes import REPOSITORY, Host, attributes, in_process, write_config
from tests.support.http_peer import peer
from tests.support.irc_server import BOT, CHANNEL, IrcServer

pytestmark = [pytest.mark.hermes, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _no_gateway_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "_seen_dispatch", False)


QUESTION = "What does the outbox do when the agent crashes?"


@contextlib.contextmanager
def running(host: Host, irc: IrcServer) -> Iterator[subprocess.Popen[bytes]]:
    host.environ.update(
        IRC_SERVER="127.0.0.1",
        IRC_PORT=str(irc.port),
        IRC_USE_TLS="false",
        IRC_NICKNAME=BOT,
        IRC_CHANNEL=CHANNEL,
        IRC_ALLOW_ALL_USERS="true",
        GATEWAY_ALLOW_ALL_USERS="true",
        XDG_STATE_HOME=str(host.home / "state"),
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "hermes_cli.main", "gateway", "run"],
        env=host.environment(),
        cwd=host.home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 90
        while not irc.joined.wait(0.2):
            assert process.poll() is None, host.log()
            assert time.monotonic() < deadline, host.log()
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.fixture(scope="module")
def chat(
    tmp_path_factory: pytest.TempPathFactory, graph: EmbeddedGraph
) -> Iterator[tuple[Host, IrcServer]]:
    """A gateway that knows one admin in private and one in groups."""
    folder = tmp_path_factory.mktemp("slash")
    with ScriptedModelServer(ANSWERS, folder / "model.jsonl") as model, IrcServer() as irc:
        admins = {"allow_admin_from": ["root"], "group_allow_admin_from": ["chair"]}
        allowed = {"user_allowed_commands": ["bdh"], "group_user_allowed_commands": ["bdh"]}
        platform = {"enabled": True, "extra": {**admins, **allowed}}
        write_config(folder / "hermes", model.base_url, gateway={"platforms": {"irc": platform}})
        host = Host(folder / "hermes", model, {"BDH_API_URL": graph.url})
        with running(host, irc):
            yield host, irc


def test_an_admin_sees_explains_and_steers(chat: tuple[Host, IrcServer]) -> None:
    host, irc = chat
    irc.ask("root", QUESTION, "exponential backoff")
    host.wait_for(lambda spans: attributes(spans, "bdh.deliver"))
    assert "turns today: " in irc.ask("root", "/bdh status", "graph: http")
    explained = irc.ask("root", "/bdh explain last", "Write:")
    assert "Read: gave" in explained

    assert "in this session for 30m" in irc.ask("root", "/bdh pause 30m", "Paused")
    irc.ask("root", QUESTION, "exponential backoff")
    paused = irc.ask("root", "/bdh explain last", "Write:")
    assert "the operator paused this session" in paused
    # Nobody else's session is paused.
    irc.ask("guest", QUESTION, "exponential backoff")
    assert "The bridge is on" in irc.ask("guest", "/bdh status", "The bridge")
    assert "on again here" in irc.ask("root", "/bdh resume", "on again")

    assert "everywhere until" in irc.ask("root", "/bdh pause all", "Paused")
    assert "paused here" in irc.ask("guest", "/bdh status", "The bridge")
    assert "/bdh resume all" in irc.ask("root", "/bdh resume", "Everything is paused")
    irc.ask("root", "/bdh resume all", "on again everywhere")

    irc.ask("root", "/bdh blacklist # my private diary", "kept out")
    assert host.paths.blacklist.read_text() == "\\# my private diary\n"
    assert "delivered" in irc.ask("root", "/bdh outbox", "worker: ")
    irc.ask("root", "/bdh nonsense", "Usage: /bdh")


def test_in_a_group_an_admin_is_told_no_contents(chat: tuple[Host, IrcServer]) -> None:
    host, irc = chat
    irc.ask("chair", "/bdh blacklist the secret word", "kept out", channel=True)
    irc.ask("chair", f"The secret word. {QUESTION}", "exponential backoff", channel=True)
    host.wait_for(lambda spans: any(s.reason == "blacklisted" for s in spans))
    told = irc.ask("chair", "/bdh explain last", "Write:", channel=True)
    assert "a rule of the blacklist matched" in told
    assert "secret word" not in told
    told = irc.ask("chair", "/bdh status", "graph: up", channel=True)
    assert "http" not in told


def test_a_stranger_learns_nothing_and_changes_nothing(chat: tuple[Host, IrcServer]) -> None:
    host, irc = chat
    before = host.paths.blacklist.read_text() if host.paths.blacklist.exists() else ""
    for command in ("pause all", "blacklist x", "outbox", "explain last"):
        assert irc.ask("guest", f"/bdh {command}", "/bdh").strip() == REFUSED
    # The admin of private chats is none in a group, and the other way round.
    assert irc.ask("root", "/bdh pause all", "/bdh", channel=True).strip() == REFUSED
    assert irc.ask("chair", "/bdh pause all", "/bdh").strip() == REFUSED
    assert irc.ask("guest", "/bdh status", "/bdh", channel=True).strip() == REFUSED
    state = SharedState(host.paths.state)
    assert state.pauses() == []
    state.close()
    assert (host.paths.blacklist.read_text() if before else "") == before


def test_in_a_gateway_of_several_profiles_it_is_the_chats_own(
    tmp_path: Path, graph: EmbeddedGraph
) -> None:
    """Routes send a chat to a profile; its /bdh sees and changes that profile's home alone."""
    home = tmp_path / "hermes"
    with ScriptedModelServer(ANSWERS, tmp_path / "model.jsonl") as model, IrcServer() as irc:
        extra = {"allow_admin_from": ["root", "worker"]}
        route = {"name": "work", "platform": "irc", "chat_id": "worker", "profile": "work"}
        gateway = {
            "platforms": {"irc": {"enabled": True, "extra": extra}},
            "multiplex_profiles": True,
            "profile_routes": [route],
        }
        write_config(home, model.base_url, gateway=gateway)
        host = Host(home, model, {"BDH_API_URL": graph.url})
        work = Host(home / "profiles" / "work", model)
        # One bot serves both: the routes tell them apart.
        write_config(work.home, model.base_url, gateway={"platforms": {"irc": {"enabled": False}}})
        (work.home / ".env").write_text(f"BDH_API_URL={graph.url}\n")
        with running(host, irc):
            # The host drops what a routed chat says before the gateway is all up.
            assert "turns today: 0" in irc.ask("root", "/bdh status", "graph: http")
            irc.ask("worker", QUESTION, "exponential backoff")
            work.wait_for(lambda spans: any(s.name == "bdh.turn" and s.end_ns for s in spans))
            assert not any(span.name == "bdh.turn" for span in host.spans())
            assert "Read: gave" in irc.ask("worker", "/bdh explain last", "Write:")
            assert "turns today: 1" in irc.ask("worker", "/bdh status", "graph: http")
            assert "turns today: 0" in irc.ask("root", "/bdh status", "graph: http")
            irc.ask("worker", "/bdh pause all", "Paused everywhere")
            irc.ask("worker", "/bdh blacklist of work", "kept out")
            assert work.paths.blacklist.read_text() == "of work\n"
            assert not host.paths.blacklist.exists()
            irc.ask("root", QUESTION, "exponential backoff")
            assert "Read: gave" in irc.ask("root", "/bdh explain last", "Write:")
            assert "not paused" in irc.ask("root", "/bdh resume all", "paused")
            assert "on again everywhere" in irc.ask("worker", "/bdh resume all", "on again")


class _Session:
    def peek_session_id(self, key: str) -> str:
        return f"session of {key}"


class _Gateway:
    """The attributes of the host's runner that are read, with its own policy behind them."""

    def __init__(self, **extra: Any) -> None:
        from gateway.config import GatewayConfig, Platform, PlatformConfig

        platform = PlatformConfig(enabled=True, extra=extra)
        self.config = GatewayConfig(platforms={Platform.TELEGRAM: platform})
        self.session_store = _Session()

    def _session_key_for_source(self, source: Any) -> str:
        return str(source.chat_id)


def message(text: str, user: str | None = "7", chat_type: str = "dm") -> Any:
    from gateway.config import Platform
    from gateway.platforms.base import MessageEvent
    from gateway.session import SessionSource

    source = SessionSource(Platform.TELEGRAM, "chat", chat_type=chat_type, user_id=user)
    return MessageEvent(text=text, source=source)


ADMIN = {"allow_admin_from": ["7"]}


@pytest.mark.parametrize(
    ("extra", "user", "chat_type", "role"),
    [
        (ADMIN, "7", "dm", "admin"),
        (ADMIN, "8", "dm", "user"),
        (ADMIN, None, "dm", "user"),
        (ADMIN, "7", "group", "user"),
        ({"group_allow_admin_from": "7"}, "7", "group", "admin"),
        ({"group_allow_admin_from": "7"}, "7", "dm", "user"),
        ({}, "7", "dm", "user"),
    ],
)
async def test_who_is_an_admin(
    extra: dict[str, Any], user: str | None, chat_type: str, role: str
) -> None:
    note_dispatch(message("/bdh pause", user, chat_type), _Gateway(**extra))
    caller = identify("bdh", "pause")
    assert (caller.role, caller.private) == (role, chat_type == "dm")
    assert callers.session_of(caller) == "session of chat"


async def test_without_configured_admins_nobody_is_one() -> None:
    """The host itself calls everybody an admin then."""
    from gateway.slash_access import policy_for_source

    gateway, event = _Gateway(), message("/bdh pause all")
    assert policy_for_source(gateway.config, event.source).is_admin("7")
    note_dispatch(event, gateway)
    command = SlashCommand(lambda home: pytest.fail("it must not get so far"))
    assert await command.run("pause all") == REFUSED


async def test_what_was_kept_counts_for_its_own_words_and_task_alone() -> None:
    gateway = _Gateway(**ADMIN)
    note_dispatch(message("/bdh pause"), gateway)
    assert identify("bdh", "pause").role == "admin"
    assert identify("bdh", "resume") == callers.STRANGER
    assert identify("other", "pause") == callers.STRANGER
    # A task that is started now inherits the variable, not the right.
    assert await asyncio.create_task(_identify_pause()) == callers.STRANGER
    # Another plugin may have put words into the message's mouth.
    note_dispatch(message("something else"), gateway)
    assert identify("bdh", "pause") == callers.STRANGER
    note_dispatch(object(), object())
    assert identify("bdh", "pause") == callers.STRANGER


HOMES = """
import asyncio, os, sys
from pathlib import Path
from bdh_bridge import caller as callers
from gateway.profile_routing import parse_profile_routes
from gateway.run import GatewayRunner
from tests.hermes.test_slash import ADMIN, _Gateway, message
home = Path(os.environ["HERMES_HOME"])
for name in ("work", "routed"):
    (home / "profiles" / name).mkdir(parents=True)
gateway = _Gateway(**ADMIN)
gateway.config.profile_routes = parse_profile_routes(
    [{"name": "r", "platform": "telegram", "chat_id": "chat", "profile": "routed"}]
)
for method in ("_resolve_profile_home_for_source", "_profile_name_for_source"):
    setattr(gateway, method, getattr(GatewayRunner, method).__get__(gateway))
async def home_of(multiplex, profile):
    gateway.config.multiplex_profiles = multiplex
    event = message("/bdh status")
    event.source.profile = profile
    callers.note_dispatch(event, gateway)
    found = callers.home_of(callers.identify("bdh", "status"))
    print(multiplex, profile, found and found.relative_to(home))
for multiplex in (True, False):
    for profile in ("work", None):
        asyncio.run(home_of(multiplex, profile))
"""


def test_the_home_is_the_one_that_the_host_takes_for_a_turn(tmp_path: Path) -> None:
    """A source that was built without its route is routed by the host as well; without
    multiplexing every turn is the gateway's own, whatever its source says."""
    done = subprocess.run(
        [sys.executable, "-c", HOMES],
        env={**os.environ, "HERMES_HOME": str(tmp_path)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.stdout.splitlines() == [
        "True work profiles/work",
        "True None profiles/routed",
        "False work None",
        "False None None",
    ], done.stderr


async def _identify_pause() -> Caller:
    return identify("bdh", "pause")


def test_two_chats_at_once_keep_apart() -> None:
    gateway = _Gateway(**ADMIN)

    async def one(user: str) -> str:
        note_dispatch(message("/bdh pause", user), gateway)
        await asyncio.sleep(0.01)
        return identify("bdh", "pause").role

    async def both() -> list[str]:
        return await asyncio.gather(*(one(user) for user in ("7", "8", "7", "8")))

    assert asyncio.run(both()) == ["admin", "user", "admin", "user"]


LOCAL = """
import asyncio, os, sys
from hermes_cli.plugins import discover_plugins, get_plugin_command_handler
from hermes_cli.plugins import resolve_plugin_command_result
discover_plugins(force=True)
handler = get_plugin_command_handler("bdh")
def bdh(line):
    print("@@", resolve_plugin_command_result(handler(line)), flush=True)
os.environ["HERMES_SESSION_ID"] = "my-session"
for line in ("", "explain last", "pause 10m", "pause soon", "resume", "resume", "outbox", "x"):
    bdh(line)
bdh("blacklist")
bdh("blacklist re: is a text here")
os.environ["_HERMES_GATEWAY"] = "1"  # as in what an agent of a gateway starts
bdh("pause all")
"""


def test_at_the_terminal_everything_is_allowed(host: Host) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOCAL],
        env=host.environment(),
        capture_output=True,
        text=True,
        timeout=90,
    )
    answers = done.stdout.split("@@ ")[1:]
    assert len(answers) == 11, done.stderr
    assert "turns today: 0" in answers[0]
    assert "No turn" in answers[1]
    assert "in this session for 10m" in answers[2]
    assert "Usage" in answers[3]
    assert "on again here" in answers[4]
    assert "not paused" in answers[5]
    assert "outbox: " in answers[6]
    assert answers[7].startswith("Usage: /bdh")
    assert answers[8].startswith("Usage: /bdh blacklist")
    assert host.paths.blacklist.read_text() == "\\re: is a text here\n"
    assert answers[10].strip() == REFUSED


FORKING = """
import asyncio, os
from bdh_bridge.slash import SlashCommand
command = SlashCommand(lambda home: None)
def ask():
    return asyncio.run(command.run("outbox"))
first = ask()
child = os.fork()
if child == 0:
    os.write(1, ask().encode())
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_forked_child_answers_too() -> None:
    """The threads that answered stay behind in the parent."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING], capture_output=True, text=True, timeout=90
    )
    assert done.stdout == "The bridge is not enabled here.", done.stderr


#: Hides what a bare Hermes does not bring, in every process that is started with it.
HIDING = """
import sys
for name in ("pydantic_settings", "regex"):
    sys.modules[name] = None
"""


def test_where_something_is_missing_the_command_says_what_to_install(
    host: Host, tmp_path: Path
) -> None:
    (tmp_path / "hiding").mkdir()
    (tmp_path / "hiding" / "sitecustomize.py").write_text(HIDING)
    host.environ["PYTHONPATH"] = str(tmp_path / "hiding")
    for arguments in ([], ["doctor"], ["--home", "/x", "spans", "tail", "-n", "3"]):
        done = host.run("bdh", *arguments)
        assert done.returncode == 2, done.stdout + done.stderr
        [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert "the BDH bridge is not loaded, missing: pydantic-settings, regex" in line
        assert line.endswith(" 'pydantic-settings' 'regex'")
    # Hermes itself goes on.
    assert "Prego!" in host.run("chat", "-Q", "-q", "grazie").stdout


async def test_the_event_loop_only_waits(host: Host) -> None:
    """The graph hangs: others are served meanwhile."""
    with peer(lambda connection, request: time.sleep(2)) as graph:
        host.environ["BDH_API_URL"] = graph.url
        with in_process(host):
            from hermes_cli.plugins import get_plugin_command_handler

            answer = asyncio.create_task(get_plugin_command_handler("bdh")("status"))
            longest, last = 0.0, time.monotonic()
            while not answer.done():
                await asyncio.sleep(0.005)
                now = time.monotonic()
                longest, last = max(longest, now - last), now
    assert "timeout" in await answer or "connection lost" in await answer
    assert longest < 1.5
