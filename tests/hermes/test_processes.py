"""The plugin in Hermes' own command line: loading, one-shot turns, and what is left after exit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bdh_bridge import install_command
from bdh_bridge.text import CONTEXT_OPENING
from bdh_otel import attributes as attr
from tests.support.hermes import PLUGIN, REPOSITORY, Host, attributes

pytestmark = [pytest.mark.hermes, pytest.mark.slow]

QUESTION = "What does the outbox do when the agent crashes?"

#: Hides the installed distribution, so that only a clone can be loaded; the dependencies stay.
_WITHOUT_DISTRIBUTION = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r} and not clone_first(name):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return None
def clone_first(name):
    return any(type(f).__name__ == "_CloneFinder" for f in sys.meta_path[:1])
import importlib.metadata as metadata
entry_points = metadata.entry_points
class Filtered:
    def select(self, **kwargs):
        ours = ("bdh-hermes-bridge", "borgee")
        return [e for e in entry_points().select(**kwargs) if e.name not in ours]
metadata.entry_points = lambda **kwargs: Filtered() if not kwargs else Filtered().select(**kwargs)
sys.meta_path.insert(0, Hide())
"""


@pytest.mark.parametrize("arguments", [("chat", "-Q", "-q"), ("-z",)], ids=["chat-q", "z"])
def test_the_write_arrives_and_all_spans_are_there_after_exit(
    host: Host, graph: Any, arguments: tuple[str, ...]
) -> None:
    before = graph.get("/api/stats")["queries_processed"]
    finished = host.run(*arguments, QUESTION)
    at_exit = host.spans()
    assert finished.returncode == 0, finished.stderr
    assert "committed to the SQLite outbox" in finished.stdout
    assert CONTEXT_OPENING in host.model.requests()[-1].user_message

    names = {span.name for span in at_exit}
    assert {"bdh.turn", "retrieval", "bdh.context", "bdh.write"} <= names
    (root,) = [span for span in at_exit if span.name == "bdh.turn"]
    assert root.attributes[attr.TURN_CLOSE_REASON] == "end_of_turn"

    spans = host.wait_for(lambda spans: attributes(spans, "bdh.deliver"))
    (delivery,) = attributes(spans, "bdh.deliver")
    assert delivery[attr.DELIVERY_OUTCOME] == "delivered"
    assert graph.get("/api/stats")["queries_processed"] == before + 1
    mode = host.paths.directory.stat().st_mode & 0o777
    assert mode == 0o700
    for path in host.paths.directory.rglob("*"):
        assert not path.stat().st_mode & 0o077, path


def test_what_was_written_is_found_later(host: Host, graph: Any) -> None:
    host.run("-z", QUESTION)
    host.wait_for(lambda spans: attributes(spans, "bdh.deliver"))
    host.run("-z", "What does the outbox do, and what did we decide about retries and jitter?")
    sent = host.model.requests()[-1].user_message
    assert QUESTION.rstrip("?") in sent.split(CONTEXT_OPENING)[1]


def test_the_load_is_logged_with_hooks_tools_and_targets(host: Host) -> None:
    host.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://user:secret@127.0.0.1:9/x"
    host.run("-z", "grazie")
    (line,) = [line for line in host.log().splitlines() if "registered: hooks=" in line][:1]
    assert "[bdh-bridge]" in line
    assert "pre_llm_call" in line
    assert "bdh_query" in line
    assert host.environ["BDH_API_URL"] in line
    assert str(host.paths.spans) in line
    assert "http://127.0.0.1:9" in line
    assert "secret" not in host.log()


def test_a_setting_that_does_not_parse_is_named_and_hermes_starts(host: Host) -> None:
    host.environ["BDH_WRITE_TIMEOUT"] = "soon"
    finished = host.run("-z", "grazie")
    assert "Prego" in finished.stdout
    (line, *_) = [line for line in host.log().splitlines() if "BDH_WRITE_TIMEOUT" in line]
    assert "'soon'" in line
    assert "30.0" in line


@pytest.fixture
def clone(host: Host) -> Path:
    """The working tree, as a clone below the home's plugins."""
    target = host.home / "plugins" / PLUGIN
    listed = subprocess.run(
        ["git", "-C", str(REPOSITORY), "ls-files", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in listed:
        source = REPOSITORY / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)
    return target


@pytest.fixture
def clone_alone(host: Host, clone: Path, tmp_path: Path) -> Path:
    """The clone, with the installed distribution hidden from every Python process."""
    site = tmp_path / "hide"
    site.mkdir()
    hidden = ["bdh_bridge", "bdh_otel", "bdh_tui", "hermes_borgee"]
    (site / "sitecustomize.py").write_text(_WITHOUT_DISTRIBUTION.format(hidden=hidden))
    host.environ["PYTHONPATH"] = str(site)
    return clone


def test_a_clone_is_a_plugin_with_its_own_packages(
    host: Host, clone_alone: Path, graph: Any
) -> None:
    finished = host.run("-z", QUESTION)
    assert finished.returncode == 0, finished.stderr
    assert CONTEXT_OPENING in host.model.requests()[-1].user_message
    spans = host.wait_for(lambda spans: attributes(spans, "bdh.deliver"))
    assert attributes(spans, "bdh.deliver")[0][attr.DELIVERY_OUTCOME] == "delivered"


def test_hermes_bdh_reaches_the_commands(host: Host, clone_alone: Path) -> None:
    host.run("-z", QUESTION)
    tail = host.run("bdh", "spans", "tail", "--json")
    assert tail.returncode == 0, tail.stderr
    names = {json.loads(line)["name"] for line in tail.stdout.splitlines()}
    assert "bdh.turn" in names
    wrong = host.run("bdh", "spans", "trace", "zzzz")
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr


def test_clone_and_package_together_register_once_with_a_warning(host: Host, clone: Path) -> None:
    host.run("-z", QUESTION)
    assert [line for line in host.log().splitlines() if "remove one of them" in line]
    roots = [span for span in host.spans() if span.name == "bdh.turn"]
    assert len(roots) == 1
    assert host.model.requests()[-1].user_message.count(CONTEXT_OPENING) == 1


def test_a_clone_under_another_name_beside_the_package_registers_once(
    host: Host, clone: Path
) -> None:
    clone.rename(clone.with_name("my-bridge"))
    config = host.home / "config.yaml"
    both = config.read_text().replace(f"- {PLUGIN}", f"- {PLUGIN}\n  - my-bridge")
    config.write_text(both)
    host.run("-z", QUESTION)
    roots = [span for span in host.spans() if span.name == "bdh.turn"]
    assert len(roots) == 1


def test_a_missing_dependency_is_one_line_and_hermes_goes_on(host: Host, tmp_path: Path) -> None:
    site = tmp_path / "hide"
    site.mkdir()
    hidden = ["regex"]
    (site / "sitecustomize.py").write_text(
        _WITHOUT_DISTRIBUTION.format(hidden=hidden).replace("metadata.entry_points =", "unused =")
    )
    host.environ["PYTHONPATH"] = str(site)
    finished = host.run("-z", "grazie")
    assert "Prego" in finished.stdout
    lines = [line for line in host.log().splitlines() if "not loaded, missing: regex" in line]
    assert lines
    assert install_command(sys.executable, "'regex'") in lines[0]
    assert not host.paths.spans.exists()


@pytest.mark.skipif(
    "BDH_TEST_HERMES_0182" not in os.environ,
    reason="BDH_TEST_HERMES_0182 names no Python with hermes-agent 0.18.2",
)
def test_the_older_host_works_too(host: Host) -> None:
    finished = host.run("-z", QUESTION, python=os.environ["BDH_TEST_HERMES_0182"])
    assert finished.returncode == 0, finished.stderr
    assert CONTEXT_OPENING in host.model.requests()[-1].user_message
    spans = host.wait_for(lambda spans: attributes(spans, "bdh.deliver"))
    assert attributes(spans, "bdh.deliver")[0][attr.DELIVERY_OUTCOME] == "delivered"
