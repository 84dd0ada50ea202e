"""What operators do: setup, and settling quarantined receipts with and without a gateway."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bdh_bridge.cli import main
from bdh_otel import database
from hermes_borgee import config, inbox, ledger
from hermes_borgee.config import inbox_path
from hermes_borgee.operator import Operator
from hermes_borgee.receipts import Status
from hermes_borgee.remediation import Refused
from hermes_borgee.setup import SetupError, with_variable, write
from tests.support.borgee import until
from tests.support.borgee_adapter import Bench, running
from tests.support.bpp_server import LOST, BppServer, Denied
from tests.support.receipts import plain

KEY = "agent:main:borgee:channel:chan-1"


@pytest.fixture(autouse=True)
def no_key_around(own_home: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BORGEE_API_KEY", raising=False)


def run(*arguments: str) -> tuple[int, str]:
    """``bdh-bridge …`` in this process: status, and what was printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(list(arguments))
    return status, out.getvalue() + err.getvalue()


def put(home: Path, text: str, status: Status = Status.QUARANTINED) -> int:
    path = inbox_path(home)
    with contextlib.closing(database.connect(path, inbox.SCHEMA)) as connection:
        number = inbox.commit(connection, plain(text, KEY, status=status))
        assert number is not None
        return number


def status_of(home: Path, number: int) -> Status:
    path = inbox_path(home)
    with contextlib.closing(database.connect(path, inbox.SCHEMA)) as connection:
        receipt = inbox.get(connection, number)
        assert receipt is not None
        return receipt.status


# ── Setup ───────────────────────────────────────────────────────────────────────────────────

EXISTING = """\
# My agent. Don't touch the model!
model:
  default: fake   # the good one
plugins:
  enabled:
    - other   # mine
display:
  theme: dark
telegram:
  enabled: true
"""


def test_setup_changes_only_what_it_needs_and_keeps_comments(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(EXISTING)
    path.chmod(0o640)
    env = tmp_path / ".env"
    env.write_text("OTHER=1\nBORGEE_API_KEY=old\nexport BORGEE_API_KEY=older\n# end\n")
    env.chmod(0o644)
    changes = write(tmp_path, "https://chat.example.com", "bgr_new")
    text = path.read_text()
    assert "# My agent. Don't touch the model!" in text
    assert "# the good one" in text
    assert "# mine" in text
    document = yaml.safe_load(text)
    assert document["plugins"]["enabled"] == ["other", "borgee"]
    assert document["telegram"] == {"enabled": True}
    assert document["display"]["theme"] == "dark"
    assert "streaming" not in document  # the global switch is every other platform's, too
    assert document["display"]["platforms"]["borgee"]["streaming"] is True
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert stat.S_IMODE(env.stat().st_mode) == 0o600
    assert env.read_text() == "OTHER=1\nBORGEE_API_KEY=bgr_new\n# end\n"
    assert "bgr_new" not in " ".join(changes)
    assert "ALLOW_ALL" not in env.read_text()
    assert config.load(tmp_path).base_url == "https://chat.example.com"
    before = path.stat().st_mtime_ns
    write(tmp_path, "https://chat.example.com", "bgr_new")
    assert path.stat().st_mtime_ns == before


def test_setup_of_an_empty_home_is_complete(tmp_path: Path) -> None:
    write(tmp_path, "http://127.0.0.1:4000", "bgr_k")
    assert config.load(tmp_path).allow_insecure_loopback
    assert stat.S_IMODE((tmp_path / "config.yaml").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("url", "key", "text", "says"),
    [
        ("http://10.0.0.1", "k", "", "base_url"),
        ("https://chat.example.com/x", "k", "", "base_url"),
        ("https://chat.example.com", "", "", "BORGEE_API_KEY"),
        ("https://chat.example.com", "k", "a: [", "YAML"),
        ("https://chat.example.com", "k", "plugins: {enabled: borgee}", "plugins.enabled"),
        ("https://chat.example.com", "k", "multiplex_profiles: true", "multiplex_profiles"),
        ("https://chat.example.com", "k", "borgee: {api_key: x}", "borgee.api_key"),
    ],
)
def test_setup_writes_nothing_that_would_not_work(
    tmp_path: Path, url: str, key: str, text: str, says: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(SetupError, match=says):
        write(tmp_path, url, key)
    assert path.read_text() == text
    assert not (tmp_path / ".env").exists()


def test_setup_needs_an_existing_home(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no Hermes home"):
        write(tmp_path / "nowhere", "https://chat.example.com", "k")


def test_a_variable_is_added_once() -> None:
    assert with_variable("", "K", "v") == "K=v\n"
    assert with_variable("A=1\n", "K", "v") == "A=1\nK=v\n"
    assert with_variable("XK=1\nK =2\n", "K", "v") == "XK=1\nK=v\n"


def test_setup_by_command_takes_the_key_from_standard_input(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("bgr_piped\n"))
    status, printed = run(
        "borgee", "setup", "--base-url", "https://chat.example.com", "--key-stdin"
    )
    assert status == 0
    assert "bgr_piped" not in printed
    assert "BORGEE_API_KEY=bgr_piped" in (home / ".env").read_text()


# ── Looking ─────────────────────────────────────────────────────────────────────────────────


def test_without_an_inbox_it_says_so_calmly(home: Path) -> None:
    status, printed = run("borgee", "inbox", "list")
    assert status == 0
    assert "does not exist yet" in printed
    status, printed = run("borgee", "status")
    assert (status, "borgee setup" in printed) == (0, False)
    assert not inbox_path(home).exists()
    (home / "config.yaml").write_text("{}\n")
    assert "or: bdh-bridge borgee setup" in run("borgee", "status")[1]
    (home / "config.yaml").unlink()
    assert run("borgee", "status")[1].count("borgee setup") == 1


def test_list_and_show_escape_what_people_wrote(home: Path) -> None:
    number = put(home, "hello \x1b[31mred\x1b[0m \u202e evil\nsecond line")
    put(home, "done", Status.IGNORED)
    status, printed = run("borgee", "inbox", "list")
    assert status == 0
    assert "\x1b" not in printed
    assert "\u202e" not in printed
    assert "hello" in printed
    assert "done" not in printed
    assert "done" in run("borgee", "inbox", "list", "--all")[1]
    status, printed = run("borgee", "inbox", "show", str(number))
    assert "\x1b" not in printed
    assert f"requeue {number} --may-repeat-effects" in printed
    lines = run("borgee", "inbox", "list", "--json")[1].splitlines()
    assert [json.loads(line)["ingest_seq"] for line in lines] == [number]
    status, printed = run("borgee", "inbox", "show", "999")
    assert status == 2
    assert "no receipt 999" in printed


def test_what_waits_behind_a_quarantined_message_says_so(home: Path) -> None:
    number = put(home, "doubtful")
    put(home, "later", Status.PENDING)
    assert f"pending (behind {number})" in run("borgee", "inbox", "list")[1]


@pytest.mark.parametrize(
    ("answer", "why", "posts"),
    [
        (lambda _: LOST, "outcome unknown", 1),
        (lambda _: Denied("message.send"), "refused: the agent lacks message.send", 0),
    ],
)
async def test_a_reply_that_may_not_have_arrived_stays_in_sight(
    home: Path, server: BppServer, answer: Any, why: str, posts: int
) -> None:
    server.answers["send_message"] = answer
    async with running(home) as bench:
        server.push("hello")
        receipt = await bench.until_state("hello", "failed")
        status, printed = run("borgee", "inbox", "list")
        assert status == 0
        assert "failed (undelivered)" in printed
        printed = run("borgee", "inbox", "show", str(receipt.ingest_seq))[1]
        assert why in printed
        assert "ask the agent there to repeat its last answer" in printed
        assert len(server.asked("send_message")) == 1
        assert len(server.contents()) == posts
        # It holds nothing up.
        del server.answers["send_message"]
        server.push("next")
        await bench.until_state("next", "completed")
    # After a week its text goes, and with it the reason to look.
    with contextlib.closing(database.connect(inbox_path(home), inbox.SCHEMA)) as connection:
        connection.execute("UPDATE receipts SET updated_at = updated_at - 8 * 86400")
    assert "no such receipts" in run("borgee", "inbox", "list")[1]


def test_status_tells_what_is_wrong_with_the_configuration(home: Path) -> None:
    put(home, "doubtful")
    (home / "config.yaml").write_text("borgee: {enabled: true}\n")
    status, printed = run("borgee", "status")
    assert status == 0
    assert "borgee.base_url" in printed
    assert "1 quarantined" in printed


async def test_status_tells_how_the_connection_stands(home: Path, server: BppServer) -> None:
    async with running(home) as bench:
        assert "connection     online since" in run("borgee", "status")[1]
        server.status = 503
        server.drop(1012)
        await until(lambda: bench.adapter.link.failure is not None)
        await until(lambda: "answers 503" in run("borgee", "status")[1])
        server.status = None
        await until(lambda: bench.adapter.is_connected)
    assert "connection     stopped since" in run("borgee", "status")[1]
    server.status = 401
    refused = Bench(home)
    assert not await refused.start()
    await refused.adapter.disconnect()
    assert "connection     failed since" in run("borgee", "status")[1]
    assert "BORGEE_API_KEY" in run("borgee", "status")[1]


# ── Settling ────────────────────────────────────────────────────────────────────────────────


def test_without_a_gateway_it_is_settled_directly(home: Path) -> None:
    bench = Bench(home)
    bench.make_session()
    old = bench.store.peek_session_id(KEY)
    first, second = put(home, "one"), put(home, "two")
    status, printed = run("borgee", "inbox", "discard", str(first))
    assert status == 0, printed
    assert "session was reset" in printed
    assert status_of(home, first) is Status.FAILED
    status, printed = run("borgee", "inbox", "requeue", str(second))
    assert status == 2
    assert "may repeat" in printed
    assert "--may-repeat-effects" in printed
    assert status_of(home, second) is Status.QUARANTINED
    status, printed = run("borgee", "inbox", "requeue", str(second), "--may-repeat-effects")
    assert status == 0, printed
    assert status_of(home, second) is Status.PENDING
    assert Bench(home).store.peek_session_id(KEY) != old
    status, printed = run("borgee", "inbox", "discard", str(first))
    assert status == 2
    assert "only a quarantined one" in printed
    assert not list((home / "locks").glob("*.lock"))


async def test_a_running_gateway_carries_it_out_itself(home: Path, server: BppServer) -> None:
    number = put(home, "doubtful")
    put(home, "behind it", Status.PENDING)
    async with running(home) as bench:
        bench.make_session()
        decision = await asyncio.to_thread(Operator(home).settle, number, "requeue", confirmed=True)
        assert decision.by_gateway
        assert "session was reset" in decision.answer
        await bench.until_state("behind it", "completed")
        assert bench.seen == ["doubtful", "behind it"]
        assert bench.runner.evicted == [KEY]


async def test_a_gateway_that_refuses_says_why(home: Path, server: BppServer) -> None:
    number = put(home, "doubtful")
    async with running(home) as bench:
        bench.runner._running_agents[KEY] = object()
        with pytest.raises(Refused, match="a turn of its session runs"):
            await asyncio.to_thread(Operator(home).settle, number, "discard")
        assert status_of(home, number) is Status.QUARANTINED


def test_a_gateway_that_does_not_answer_changes_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hermes_borgee import operator

    number = put(home, "doubtful")
    monkeypatch.setattr(operator.Operator, "_own", lambda self: None)
    monkeypatch.setattr(operator, "ANSWER_WAIT", 0.2)
    status, printed = run("borgee", "inbox", "discard", str(number))
    assert status == 2
    assert "did not answer" in printed
    assert status_of(home, number) is Status.QUARANTINED
    with contextlib.closing(database.connect(inbox_path(home), inbox.SCHEMA)) as connection:
        assert ledger.waiting_requests(connection) == []
