"""install, uninstall and install --migrate on homes of every kind."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bdh_bridge import install_command
from bdh_bridge.gates.blacklist import Blacklist
from bdh_bridge.operator.install import plan
from hermes_borgee.config import inbox_path
from hermes_borgee.operator import Operator
from hermes_borgee.receipts import Status
from tests.operator.conftest import Done, Home

CONFIG = """# my configuration
model:
  default: fake   # the cheap one
plugins:
  enabled:
    - other-plugin   # keep
"""
ENV = "# keys\nOTHER_KEY=abc\n"


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    found = Home(tmp_path / "hermes", capsys)
    (found.path / "config.yaml").write_text(CONFIG)
    (found.path / "config.yaml").chmod(0o640)
    (found.path / ".env").write_text(ENV)
    (found.path / ".env").chmod(0o644)
    return found


def everything(folder: Path) -> dict[str, tuple[int, bytes | str]]:
    """Mode and content of all that is below ``folder``."""
    found: dict[str, tuple[int, bytes | str]] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content: bytes | str = ""
        if path.is_symlink():
            content = str(path.readlink())
        elif path.is_file():
            content = path.read_bytes()
        found[str(path.relative_to(folder))] = (stat.S_IMODE(status.st_mode), content)
    return found


def install(home: Home, *arguments: str) -> Done:
    done = home.run("install", *arguments)
    assert done.status == 0, done.err
    return done


def test_a_dry_run_says_everything_and_changes_nothing(home: Home) -> None:
    before = everything(home.path)
    done = install(home, "--graph", "http://127.0.0.1:9000", "--dry-run")
    assert done.out.count("would change") == 3
    assert "BDH_API_URL=http://127.0.0.1:9000" in done.out
    assert everything(home.path) == before


def test_install_twice_and_uninstall_leave_no_trace(home: Home) -> None:
    before = everything(home.path)
    done = install(home, "--graph", "http://127.0.0.1:9000")
    assert "hermes gateway restart" in done.out
    assert (home.path / "config.yaml").read_text() == f"{CONFIG}    - bdh-hermes-bridge\n"
    assert stat.S_IMODE((home.path / "config.yaml").stat().st_mode) == 0o640
    env = home.path / ".env"
    assert env.read_text().startswith(ENV)
    assert stat.S_IMODE(env.stat().st_mode) == 0o600
    assert home.loaded().settings.api_url == "http://127.0.0.1:9000"
    assert home.loaded().origins["BDH_API_URL"] == ".env"
    # Rules in it are examples until somebody switches them on.
    assert "Review the conversation above" in home.paths.blacklist.read_text()
    assert not any(rule.enabled for rule in Blacklist(home.paths.blacklist).rules)
    assert stat.S_IMODE(home.paths.directory.stat().st_mode) == 0o700

    installed = everything(home.path)
    again = install(home, "--graph", "http://127.0.0.1:9000")
    assert "nothing was changed" in again.out
    assert everything(home.path) == installed

    dry = home.run("uninstall", "--dry-run")
    assert "would undo" in dry.out
    assert everything(home.path) == installed
    assert home.run("uninstall").status == 0
    assert everything(home.path) == before
    assert "nothing was installed" in home.run("uninstall").out


def test_another_graph_later_is_still_undone_exactly(home: Home) -> None:
    before = everything(home.path)
    install(home, "--graph", "http://127.0.0.1:9000")
    install(home, "--graph", "http://127.0.0.1:9001", "--set", "BDH_OTEL_CONTENT=off")
    assert home.loaded().settings.api_url == "http://127.0.0.1:9001"
    assert home.loaded().settings.otel_content == "off"
    install(home, "--set", "BDH_OTEL_CONTENT=full")
    assert home.loaded().settings.api_url == "http://127.0.0.1:9001"
    assert (home.path / ".env").read_text().count("BDH_API_URL") == 1
    home.run("uninstall")
    assert everything(home.path) == before


def test_what_was_changed_since_stays(home: Home) -> None:
    install(home, "--graph", "http://127.0.0.1:9000")
    config = home.path / "config.yaml"
    config.write_text(config.read_text() + "agent: {max_turns: 3}\n")
    env = home.path / ".env"
    env.write_text(env.read_text() + "NEW=1\n")
    home.paths.blacklist.write_text("my rule\n")
    install(home, "--graph", "http://127.0.0.1:9002")
    done = home.run("uninstall")
    assert config.read_text() == CONFIG + "agent: {max_turns: 3}\n"
    assert env.read_text() == f"{ENV}NEW=1\n"
    assert home.paths.blacklist.read_text() == "my rule\n"
    assert "kept, since it was changed" in done.out


def test_a_home_with_nothing_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(tmp_path / "fresh", capsys)
    assert "bdh-bridge graph start" in install(home, "--graph", "embedded").out
    assert stat.S_IMODE((home.path / ".env").stat().st_mode) == 0o600
    assert home.loaded().settings.api_url == plan.EMBEDDED_URL
    home.run("uninstall")
    assert everything(home.path) == {}


def test_what_was_enabled_by_hand_is_not_undone(home: Home) -> None:
    home.enable("bdh-hermes-bridge")
    config = (home.path / "config.yaml").read_bytes()
    install(home, "--graph", "http://127.0.0.1:9000")
    home.run("uninstall")
    assert (home.path / "config.yaml").read_bytes() == config


def test_linked_files_stay_links(home: Home, tmp_path: Path) -> None:
    dotfiles = tmp_path / "dotfiles"
    dotfiles.mkdir()
    for name in ("config.yaml", ".env"):
        (home.path / name).rename(dotfiles / name)
        (home.path / name).symlink_to(dotfiles / name)
    before = everything(tmp_path)
    install(home, "--graph", "http://127.0.0.1:9000")
    assert (home.path / "config.yaml").is_symlink()
    assert "bdh-hermes-bridge" in (dotfiles / "config.yaml").read_text()
    home.run("uninstall")
    assert everything(tmp_path) == before


def test_the_token_comes_from_standard_input_and_is_never_shown(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("tok-SECRET\n"))
    done = install(home, "--graph", "https://graph.example.com", "--token-stdin")
    assert "SECRET" not in done.out + done.err
    assert home.loaded().settings.api_token.get_secret_value() == "tok-SECRET"
    for path in home.path.rglob("*"):
        if path.is_file() and b"SECRET" in path.read_bytes():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--graph", "ftp://x"], "BDH_API_URL"),
        (["--graph", "http://me:secret-word@x"], "must not hold credentials"),
        (["--set", "BDH_NOPE=1"], "BDH_NOPE is no setting"),
        (["--set", "BDH_API_TOKEN=secret-word"], "a command line is no place"),
        (["--set", "BDH_WORKER"], "needs NAME=VALUE"),
        (["--set", "BDH_WORKER=nobody"], "BDH_WORKER"),
        (["--hermes-python", "/nonexistent/python"], "can't be asked"),
    ],
)
def test_what_can_not_be_done_is_said_before_anything_is_changed(
    home: Home, arguments: list[str], said: str
) -> None:
    before = everything(home.path)
    done = home.run("install", *arguments)
    assert (done.status, said in done.err) == (2, True), done.err
    assert "secret-word" not in done.err
    assert everything(home.path) == before


def test_a_config_that_can_not_be_edited_names_hermes_own_command(home: Home) -> None:
    (home.path / "config.yaml").write_text("s: &s [one]\nplugins:\n  enabled: *s\n")
    before = everything(home.path)
    done = home.run("install")
    assert done.status == 2
    assert "hermes plugins enable bdh-hermes-bridge --no-allow-tool-override" in done.err
    assert everything(home.path) == before


def test_a_managed_configuration_is_left_alone(home: Home) -> None:
    (home.path / ".managed").touch()
    before = everything(home.path)
    done = home.run("install")
    assert (done.status, "is managed by" in done.err) == (2, True)
    assert everything(home.path) == before


@pytest.mark.parametrize(
    ("distributions", "said"),
    [
        ([], "has no hermes-agent"),
        ([("hermes-agent", "0.17.0", "")], "too old"),
        ([("hermes-agent", "0.19.0", "")], "pip install --python {python} bdh-hermes-bridge"),
        (
            [
                ("hermes-agent", "0.19.0", ""),
                ("bdh-hermes-bridge", "1.0.0", "bdh-hermes-bridge = bdh_bridge"),
            ],
            "pip install --python {python} 'httpx'",
        ),
    ],
)
def test_an_environment_that_does_not_fit(
    home: Home,
    python_with: Callable[..., str],
    distributions: list[tuple[str, str, str]],
    said: str,
) -> None:
    python = python_with(*distributions)
    done = home.run("install", "--hermes-python", python)
    assert (done.status, said.format(python=python) in done.err) == (2, True), done.err


def test_what_to_type_fits_the_environment(tmp_path: Path) -> None:
    python = str(tmp_path / "bin" / "python")
    assert install_command(python, "a", "'b'") == f"{python} -m pip install a 'b'"
    (tmp_path / "pyvenv.cfg").touch()
    assert install_command(python, "a") == f"uv pip install --python {python} a"
    (tmp_path / "lib" / "python3.11" / "site-packages" / "pip").mkdir(parents=True)
    assert install_command(python, "a") == f"{python} -m pip install a"


def test_a_home_that_is_not_there(home: Home, tmp_path: Path) -> None:
    done = home.run("--home", str(tmp_path / "none"), "install")
    assert (done.status, "does not exist" in done.err) == (2, True)


def test_a_profile_is_a_home_of_its_own(home: Home) -> None:
    profile = home.path / "profiles" / "work"
    profile.mkdir(parents=True)
    assert home.run("--profile", "work", "install").status == 0
    assert "bdh-hermes-bridge" in (profile / "config.yaml").read_text()
    assert (home.path / "config.yaml").read_text() == CONFIG


def hermes(home: Home, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "hermes_cli.main", *arguments],
        env={**os.environ, "HERMES_HOME": str(home.path)},
        cwd=home.path,
        capture_output=True,
        text=True,
        timeout=90,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout


@pytest.mark.hermes
def test_hermes_itself_sees_it(home: Home) -> None:
    install(home)
    listed = hermes(home, "plugins", "list", "--plain", "--no-bundled")
    [line] = [line for line in listed.splitlines() if "bdh-hermes-bridge" in line]
    assert line.split()[0] == "enabled", line
    # … and gives it the same command line.
    assert json.loads(hermes(home, "bdh", "config", "--json"))


def test_from_an_environment_of_its_own_it_hands_over_to_hermes_python(
    home: Home, tmp_path: Path
) -> None:
    """`uv tool install bdh-hermes-bridge` beside Hermes: there is no YAML parser, no Hermes."""
    folder = tmp_path / "tool"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    root = Path(__file__).resolve().parents[2]
    own = [
        path
        for path in sys.path
        if path.endswith("site-packages") or Path(path).resolve().is_relative_to(root)
    ]
    (packages / "others.pth").write_text("\n".join(own) + "\n")
    (packages / "sitecustomize.py").write_text(
        "import sys\nsys.modules['hermes_cli'] = None\nsys.modules['yaml'] = None\n"
    )
    scripts = tmp_path / "bin"
    scripts.mkdir()
    (scripts / "hermes").write_text(f"#!{sys.executable}\n")
    (scripts / "hermes").chmod(0o755)
    for command, shown in (("install", "change"), ("uninstall", "undo")):
        done = subprocess.run(
            [
                str(folder / "bin" / "python"),
                "-m",
                "bdh_bridge.cli",
                "--home",
                str(home.path),
                command,
            ],
            env={"PATH": str(scripts), "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert (done.returncode, shown in done.stdout) == (0, True), done.stderr
    assert (home.path / "config.yaml").read_text() == CONFIG


# ── Taking over from the published plugins ──────────────────────────────────────────────────


def publish(home: Home, *, linked_to: Path | None = None) -> Path:
    """The published bridge as it is installed: a clone, or a link to one."""
    path = home.path / "plugins" / "bdh-hermes-bridge"
    real = linked_to or path
    real.mkdir(parents=True)
    (real / "plugin.yaml").write_text("name: bdh-hermes-bridge\nversion: 0.8.0\n")
    (real / "__init__.py").write_text("def register(ctx): ...\n")
    (real / "prompt_blacklist.txt").write_text("# theirs\nNightly run:\nre:^digest\\b\n")
    if linked_to is not None:
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(linked_to)
    return path


@pytest.mark.parametrize("linked", [False, True])
def test_taking_over_from_the_published_bridge(home: Home, tmp_path: Path, linked: bool) -> None:
    path = publish(home, linked_to=tmp_path / "projects" / "bridge" if linked else None)
    home.enable("bdh-hermes-bridge", "other-plugin")
    before = everything(tmp_path)
    refused = home.run("install")
    assert (refused.status, "--migrate" in refused.err) == (2, True)
    assert "moves to" in install(home, "--migrate", "--dry-run").out
    assert everything(tmp_path) == before

    install(home, "--migrate")
    assert not path.exists()
    moved = home.paths.directory / "migrated" / "bdh-hermes-bridge-0.8.0"
    assert (moved / "plugin.yaml").is_file()
    assert moved.is_symlink() == linked
    rules = [rule.source for rule in Blacklist(home.paths.blacklist).rules if rule.enabled]
    assert rules == ["Nightly run:", "re:^digest\\b"]
    taken = home.paths.blacklist.read_text().partition("published bridge\n")[2]
    assert taken == "\n# theirs\nNightly run:\nre:^digest\\b\n"
    assert "nothing was changed" in install(home, "--migrate").out
    assert not home.doctor().checks("rival")

    home.run("uninstall")
    assert everything(tmp_path) == before


def test_a_rule_of_theirs_that_can_not_be_used_is_named(home: Home) -> None:
    path = publish(home)
    (path / "prompt_blacklist.txt").write_text("fine\nre:(unclosed\n")
    assert "2 rules are taken over" in install(home, "--migrate", "--dry-run").out
    assert "1 can't be used here, doctor says why" in install(home, "--migrate").out
    assert home.doctor().checks("blacklist")[0][0] == "warning"


def test_rules_join_those_that_are_there_and_the_variable_follows(home: Home) -> None:
    publish(home)
    home.set(BDH_PROMPT_BLACKLIST_FILE="plugins/bdh-hermes-bridge/prompt_blacklist.txt")
    home.paths.directory.mkdir(mode=0o700)
    home.paths.blacklist.write_text("mine\nNightly run:\n")
    install(home, "--migrate")
    assert home.paths.blacklist.read_text().startswith("mine\nNightly run:\n\n# Taken over")
    loaded = home.loaded()
    from bdh_bridge.gates.blacklist import resolve_blacklist

    assert resolve_blacklist(loaded.settings, loaded.paths) == home.paths.blacklist
    assert home.run("blacklist", "test", "digest of today").status == 1


def test_the_published_borgee_plugin_has_to_be_uninstalled_first(
    home: Home, python_with: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    python = python_with(
        ("hermes-agent", "0.18.2", ""),
        ("borgee-hermes-plugin", "0.2.0", "borgee = borgee_hermes_plugin"),
    )
    from bdh_bridge.operator import hermes as finder
    from bdh_bridge.operator.install import migrate

    found = finder.find(home.path, python)
    with pytest.raises(plan.InstallError, match="pip uninstall borgee-hermes-plugin"):
        migrate.migrate(home.loaded(), found, plan.Plan())


def published_inbox(home: Home) -> Path:
    """An inbox with the published plugin's columns, one receipt in each state, log not merged."""
    path = inbox_path(home.path)
    path.parent.mkdir(parents=True)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=wal")
    connection.execute(
        "CREATE TABLE receipts (ingest_seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT,"
        " channel_id TEXT, channel_type TEXT, author_id TEXT, author_name TEXT, message_id TEXT,"
        " session_key TEXT, source_body TEXT, effective_body TEXT, reply_to_id TEXT,"
        " source_created_at INTEGER, dedupe_key TEXT UNIQUE, dispatch_class TEXT,"
        " forced_queue INTEGER, status TEXT, claim_token TEXT UNIQUE, attempt INTEGER,"
        " outcome TEXT, error TEXT, created_at REAL, updated_at REAL)"
    )
    connection.execute(
        "CREATE TABLE outbound_messages (message_id TEXT, channel_id TEXT, created_at REAL)"
    )
    connection.execute("INSERT INTO outbound_messages VALUES ('out-1', 'chan-1', 1.0)")
    states = ("pending", "processing", "in_doubt", "quarantined", "completed", "failed")
    rows = [("message", f"m-{state}", state, f"key {state}") for state in states]
    # The same message again after its author was renamed, which their key does not see …
    rows.append(("message", "m-completed", "pending", "key renamed"))
    rows.append(("edited", "m-completed", "completed", "edit 1"))
    for kind, message_id, state, key in rows:
        connection.execute(
            "INSERT INTO receipts (kind, channel_id, channel_type, author_id, author_name,"
            " message_id, session_key, source_body, effective_body, source_created_at, dedupe_key,"
            " dispatch_class, forced_queue, status, attempt) VALUES (?, 'chan-1', 'channel', 'u',"
            " 'Ada', ?, 'agent:main:borgee:channel:chan-1', ?, ?, 1700000000000, ?, 'ordinary', 0,"
            " ?, 0)",
            (kind, message_id, f"text {state}", f"text {state}", key, state),
        )
    connection.commit()
    # A process that is killed leaves the log behind.
    copy = path.with_name("copy")
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
    connection.close()
    for suffix in ("-wal", "-shm", ""):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    for suffix in ("", "-wal"):
        Path(f"{copy}{suffix}").rename(f"{path}{suffix}")
    return path


def test_the_published_borgee_inbox_is_taken_over(home: Home) -> None:
    path = published_inbox(home)
    done = install(home, "--migrate")
    assert "receipts are taken over" in done.out
    operator = Operator(home.path)
    assert operator.counts() == {
        Status.PENDING: 1,
        Status.QUARANTINED: 3,
        Status.COMPLETED: 1,
        Status.FAILED: 1,
        Status.IGNORED: 1,
    }
    [pending] = operator.receipts([Status.PENDING])
    assert (pending.source_body, pending.message_id) == ("text pending", "m-pending")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "m-quarantined" in home.run("borgee", "inbox", "list", "--json").out
    assert "nothing was changed" in install(home, "--migrate").out

    home.run("uninstall")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM receipts").fetchone()[0] == 8
        assert connection.execute("PRAGMA application_id").fetchone()[0] == 0


def test_an_inbox_that_was_used_since_stays(home: Home) -> None:
    path = published_inbox(home)
    install(home, "--migrate")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE receipts SET status = 'failed' WHERE status = 'pending'")
        connection.commit()
    done = home.run("uninstall")
    assert "kept, since it was changed" in done.out
    assert "is taken by something else" in done.out
    assert Operator(home.path).counts()[Status.FAILED] == 2


def test_not_while_the_gateway_runs(home: Home, tmp_path: Path) -> None:
    path = published_inbox(home)
    script = (
        "import sys, time; sys.argv = ['hermes', 'gateway', 'run']\n"
        "from gateway import status\n"
        "assert status.acquire_gateway_runtime_lock()\n"
        "status.write_pid_file()\n"
        "print('running', flush=True); time.sleep(60)\n"
    )
    before = path.read_bytes()
    process = subprocess.Popen(
        [sys.executable, "-c", script, "gateway", "run"],
        env={**os.environ, "HERMES_HOME": str(home.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        done = home.run("install", "--migrate")
        assert (done.status, "gateway is running" in done.err) == (2, True), done.out + done.err
        assert path.read_bytes() == before
    finally:
        process.kill()
        process.wait()


def test_a_disk_that_fills_up_on_the_way_leaves_the_files_whole(home: Home) -> None:
    config = home.path / "config.yaml"
    config.write_text(CONFIG + "# a long comment\n" * 200)
    before = everything(home.path)
    install_here = [sys.executable, "-m", "bdh_bridge.cli", "--home", str(home.path), "install"]
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 2; exec "$@"', "bash", *install_here],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, done.stdout
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert config.read_bytes() == before["config.yaml"][1]
    assert home.run("uninstall").status == 0
    assert everything(home.path) == before


def test_a_record_that_can_not_be_read_is_a_sentence(home: Home) -> None:
    install(home)
    record = home.paths.directory / "install" / "record.json"
    assert json.loads(record.read_text())["files"]
    record.write_text("{")
    for command in ("install", "uninstall"):
        done = home.run(
            command, *(["--set", "BDH_OTEL_CONTENT=off"] if command == "install" else [])
        )
        assert done.status == 2
        assert "record.json can't be read" in done.err
