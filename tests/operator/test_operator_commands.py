"""status, query, stats and blacklist, on a real graph and real stores."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from bdh_bridge.cli import GROUPS, add_commands, main
from bdh_bridge.state import SharedState
from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.tracer import Tracer
from tests.operator.conftest import TOKEN, Home
from tests.support.embedded_graph import EmbeddedGraph
from tests.support.outbox import accept, open_outbox


@pytest.fixture
def answering(home: Home, graph: EmbeddedGraph) -> Home:
    home.set(BDH_API_URL=graph.url, BDH_API_TOKEN=TOKEN)
    return home


def turn(tracer: Tracer, read: str, write: str, *, ended: bool = True) -> None:
    span = tracer.start_span(names.TURN)
    span.set_attributes({attr.TURN_READ_OUTCOME: read, attr.TURN_WRITE_OUTCOME: write})
    if not ended:
        span.save_provisional()
        return
    hop = tracer.start_span(
        names.chat("m"),
        parent=span,
        attributes={attr.PROVIDER_NAME: "ollama", attr.HOP_OUTCOME: "timeout"},
    )
    hop.end()
    span.end()


def test_status_of_a_home_where_nothing_has_happened(answering: Home) -> None:
    done = answering.run("status")
    assert done.status == 0
    assert "turns today  0" in done.out
    assert "8 notes" in done.out
    assert not answering.paths.directory.exists()


def test_status_adds_up_the_day(answering: Home) -> None:
    tracer = Tracer(answering.paths.spans, {})
    turn(tracer, "context", "queued")
    turn(tracer, "context", "short_answer")
    turn(tracer, "casual", "short_answer")
    turn(tracer, "", "", ended=False)
    tracer.flush(10)
    tracer.shutdown()
    outbox = open_outbox(answering.path)
    accept(outbox)
    outbox.close()
    state = SharedState(answering.paths.state)
    state.pause("s\x1b[31m", 600)
    state.close()
    shown = answering.run("status").out
    assert "turns today  4, 1 still open" in shown
    assert "reads        2 context, 1 casual" in shown
    assert "writes       2 short answer, 1 queued" in shown
    assert "provider     ollama: 3 timeout" in shown
    assert "outbox       1 pending" in shown
    assert "\x1b" not in shown
    values = answering.run("status", "--json").json
    assert (values["turns"], values["reads"]) == (4, {"context": 2, "casual": 1})
    assert values["graph"]["neurons"] == 8


def test_status_when_the_graph_is_down_and_a_store_is_damaged(home: Home) -> None:
    home.set(BDH_API_URL="http://127.0.0.1:1")
    home.paths.directory.mkdir(mode=0o700)
    home.paths.spans.write_text("no database at all, but long enough to be looked at" * 40)
    home.paths.spans.chmod(0o600)
    done = home.run("status")
    assert done.status == 0
    assert "unreachable" in done.out
    assert "problem" in done.out


def test_query_shows_scores_and_teaches_nothing(answering: Home, graph: EmbeddedGraph) -> None:
    before = answering.run("stats", "--json").json
    done = answering.run("query", "What does the durable outbox do after a crash?")
    assert done.status == 0
    assert "Durable Outbox" in done.out
    assert "An automatic read would give these to the model" in done.out
    after = answering.run("stats", "--json").json
    assert after["hebbian_synapses"] == before["hebbian_synapses"]
    assert answering.run("query", "--learn", "outbox crash log").status == 0
    learned = answering.run("stats", "--json").json
    assert learned["hebbian_synapses"] > before["hebbian_synapses"]
    assert "8" in answering.run("stats").out.splitlines()[0]
    assert "give nothing" in answering.run("query", "zzxq wvut qqq").out
    assert answering.run("query", "outbox", "--json").json["notes"]


def test_query_without_a_graph_is_one_sentence(home: Home) -> None:
    home.set(BDH_API_URL="http://127.0.0.1:1")
    for command in (["query", "x"], ["stats"], ["query", " "]):
        done = home.run(*command)
        assert done.status == 2
        assert done.err.startswith("error: ")
        assert len(done.err.splitlines()) == 1


def test_blacklist_add_list_test_remove(home: Home) -> None:
    assert home.run("blacklist", "list").out.startswith("no rules")
    assert home.run("blacklist", "add", "# not a comment", "--comment", "mine").status == 0
    assert home.run("blacklist", "add", "--regex", r"^digest \d+").status == 0
    assert "there already" in home.run("blacklist", "add", "# not a comment").out
    assert home.paths.blacklist.read_text() == "# mine\n\\# not a comment\n\nre:^digest \\d+\n"
    assert home.paths.blacklist.stat().st_mode & 0o777 == 0o600
    hit = home.run("blacklist", "test", "Digest 12")
    assert (hit.status, "line 4" in hit.out) == (1, True)
    assert home.run("blacklist", "test", "something else").status == 0
    assert len(home.run("blacklist", "list", "--json").out.splitlines()) == 2
    assert home.run("blacklist", "remove", "4").status == 0
    assert home.run("blacklist", "remove", "\\# not a comment").status == 0
    assert home.run("blacklist", "remove", "9").status == 2


def test_what_is_added_stands_apart_from_the_examples(home: Home) -> None:
    from bdh_bridge.operator.install.plan import example_blacklist

    home.paths.directory.mkdir(mode=0o700)
    home.paths.blacklist.write_text(example_blacklist().rstrip("\n"))
    home.paths.blacklist.chmod(0o600)
    for words in (["one"], ["two"], ["three", "--comment", "why"], ["four"]):
        assert home.run("blacklist", "add", *words).status == 0
    added = home.paths.blacklist.read_text().removeprefix(example_blacklist().rstrip("\n"))
    assert added == "\n\none\ntwo\n\n# why\nthree\n\nfour\n"
    rules = [json.loads(line) for line in home.run("blacklist", "list", "--json").out.splitlines()]
    comments = {rule["rule"]: rule["comment"] for rule in rules}
    assert (comments["one"], comments["three"], comments["four"]) == ("", "why", "")


@pytest.mark.parametrize("rule", ["(unclosed", ".*", ""])
def test_a_rule_that_can_not_be_used_is_refused(home: Home, rule: str) -> None:
    done = home.run("blacklist", "add", "--regex", rule)
    assert done.status == 2
    assert not home.paths.blacklist.exists()


def in_a_terminal(home: Home, *arguments: str, **variables: str) -> str:
    """What ``bdh-bridge …`` shows on a terminal, standard error included."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "bdh_bridge.cli", "--home", str(home.path), *arguments],
        env={"PATH": os.environ["PATH"], "TERM": "xterm", **variables},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal's end is an error on Linux
        while piece := os.read(ours, 65536):
            shown += piece
    process.wait(30)
    os.close(ours)
    return shown.decode()


def test_colours_and_progress_on_a_terminal_only(home: Home) -> None:
    home.set(BDH_API_URL="http://127.0.0.1:1")
    shown = in_a_terminal(home, "doctor")
    assert "\x1b[32mok" in shown
    assert "\x1b[31mfailed" in shown
    assert "stores …" in shown
    assert "\x1b[3" not in in_a_terminal(home, "doctor", NO_COLOR="1")
    piped = home.run("doctor")
    assert "\x1b" not in piped.out + piped.err
    assert "…" not in piped.err


def test_a_circuit_that_is_open_shows_without_any_turn(home: Home) -> None:
    home.set(BDH_API_URL="http://127.0.0.1:1")
    state = SharedState(home.paths.state)
    state.record_failure("provider:ollama", retry_after=600)
    state.close()
    assert "circuit      provider:ollama failed" in home.run("status").out


def test_every_command_has_help_and_the_operators_have_examples(home: Home) -> None:
    for group in ("doctor", "status", "config", "query", "stats", "blacklist"):
        assert "examples:" in home.run(group, "--help").out
    parser = argparse.ArgumentParser()
    add_commands(parser)
    help_text = parser.format_help()
    assert all(group in help_text for group in GROUPS)


@pytest.mark.parametrize(
    ("command", "actions"),
    [
        (["graph"], ["serve", "start", "consolidate"]),
        (["outbox"], ["list", "requeue"]),
        (["borgee", "inbox"], ["discard"]),
        ([], ["doctor", "completion"]),
    ],
)
def test_a_group_alone_shows_its_help(home: Home, command: list[str], actions: list[str]) -> None:
    done = home.run(*command)
    assert (done.status, done.out) == (2, "")
    assert all(f"    {action}" in done.err for action in actions)


@pytest.mark.parametrize("command", [["status"], ["blacklist", "list"], ["spans", "tail"]])
def test_a_home_that_is_not_there_is_no_home_without_turns(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    gone = tmp_path / "gone"
    done = home.run("--home", str(gone), *command)
    assert (done.status, done.out) == (2, "")
    assert done.err == (
        f"error: there is no Hermes home {gone}: start hermes once, or name one: --home DIR\n"
    )
    assert "profiles/nobody" in home.run("--profile", "nobody", *command).err
    monkeypatch.setenv("HERMES_HOME", str(gone))
    assert main(command) == (0 if command[0] == "spans" else 2)
    assert not gone.exists()


def test_no_turns_asked_for_is_nothing_missing(home: Home) -> None:
    tracer = Tracer(home.paths.spans, {})
    turn(tracer, "context", "queued")
    tracer.flush(10)
    tracer.shutdown()
    done = home.run("spans", "tail", "-n", "0")
    assert (done.status, done.out, done.err) == (0, "", "")
    assert (
        "No turns on record yet for this session" in home.run("spans", "tail", "--session", "x").err
    )


def test_explain_tells_no_length_of_an_answer_that_was_not_given(home: Home) -> None:
    words = ["How do I configure the backup of my notes?", "--no-graph"]
    shown = home.run("explain", *words).out
    assert "if the answer to come is final and has 200 characters or more" in shown
    assert "write answer        assumed" in shown
    assert "≥" not in next(line for line in shown.splitlines() if "write answer" in line)
    decisions = home.run("explain", "--json", *words).json["decisions"]
    [answer] = [one for one in decisions if one["gate"] == "answer"]
    assert (answer["reason"], "value" in answer) == ("assumed", False)


def test_explain_last_tells_the_newest_turn_in_sentences(home: Home) -> None:
    assert "no spans yet" in home.run("explain", "last").err
    tracer = Tracer(home.paths.spans, {})
    for rule in ("older", "salaries"):
        span = tracer.start_span(names.TURN, attributes={attr.TURN_MESSAGE: f"the {rule}\x1b[2J"})
        decision = {
            attr.GATE_NAME: "blacklist",
            attr.GATE_PATH: "read",
            attr.GATE_DECISION: "skip",
            attr.GATE_REASON: "blacklisted",
            attr.GATE_RULE: rule,
        }
        tracer.start_span(names.gate("blacklist"), parent=span, attributes=decision).end()
        span.end()
    tracer.flush(10)
    tracer.shutdown()
    told = home.run("explain", "last")
    assert told.status == 0
    assert "✗ Read: skipped by gate blacklist" in told.out
    assert "“the salaries" in told.out
    assert "older" not in told.out
    assert "\x1b" not in told.out
    trace = home.run("explain", "last", "--json").json["trace"]
    assert f"bdh-bridge spans trace {trace[:8]}" in told.out


def test_without_a_command_it_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr().err
    assert "bdh-bridge doctor" in said
    assert "bdh-bridge install --graph embedded" in said
