"""The command line in bad surroundings: a sentence and a status, never a stack trace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

CLI = (sys.executable, "-m", "bdh_bridge.cli")
COMMANDS = (
    ("doctor",),
    ("status",),
    ("config",),
    ("explain", "why did we"),
    ("blacklist", "list"),
    ("blacklist", "test", "x"),
    ("outbox", "list"),
    ("spans", "tail"),
    ("spans", "trace", "last"),
    ("spans", "check"),
    ("spans", "metrics"),
    ("spans", "export"),
    ("worker", "status"),
    ("graph", "status"),
    ("install",),
    ("uninstall",),
)


def bridge(
    home: Path, *words: str, through: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """``through`` is shell text after the command: redirections."""
    variables = {**os.environ, "BDH_API_URL": "http://127.0.0.1:9", **environment}
    command: Sequence[str] = (*CLI, "--home", str(home), *words)
    if through:
        command = ("bash", "-c", f'"$@" {through}', "bash", *command)
    return subprocess.run(
        command, capture_output=True, text=True, env=variables, timeout=120, check=False
    )


def spoil_nothing_to_enter(home: Path) -> None:
    (home / "bdh-bridge").write_text("a file in the place of the folder")


def spoil_with_loops(home: Path) -> None:
    for name in ("config.yaml", ".env", "bdh-bridge"):
        (home / name).symlink_to(name)


def spoil_with_folders(home: Path) -> None:
    names = ("spans", "outbox", "state", "metrics")
    for name in ("../config.yaml", "../.env", *(f"{one}.sqlite3" for one in names)):
        (home / "bdh-bridge" / name).mkdir(parents=True)


@pytest.mark.parametrize(
    "spoil",
    [spoil_nothing_to_enter, spoil_with_loops, spoil_with_folders],
    ids=lambda f: f.__name__,
)
def test_no_command_shows_a_stack_trace(tmp_path: Path, spoil: object) -> None:
    spoil(tmp_path)  # type: ignore[operator]
    for words in COMMANDS:
        done = bridge(tmp_path, *words)
        assert "Traceback" not in done.stderr + done.stdout, (words, done.stderr)
        assert "defect" not in done.stderr + done.stdout, (words, done.stderr)
        assert done.returncode in (0, 1, 2), (words, done.stderr)


def test_install_names_what_it_can_not_read(tmp_path: Path) -> None:
    for name in ("config.yaml", ".env"):
        (tmp_path / name).mkdir()
        done = bridge(tmp_path, "install")
        assert (done.returncode, "(Is a directory); mend" in done.stderr) == (2, True), done.stderr
        (tmp_path / name).rmdir()


@pytest.mark.parametrize("text", ["x: 2020-13-45\n", "x: " + "[" * 3000 + "]" * 3000 + "\n"])
def test_yaml_that_its_parser_gives_up_on(tmp_path: Path, text: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(text)
    done = bridge(tmp_path, "install")
    assert (done.returncode, "parser gives up" in done.stderr) == (2, True), done.stderr
    assert config.read_text() == text
    assert "parser gives up" in bridge(tmp_path, "doctor").stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", [("config",), ("blacklist", "list"), ("completion", "bash")])
def test_standard_streams_that_are_closed_or_full(tmp_path: Path, words: tuple[str, ...]) -> None:
    for through, status in ((">&-", 0), ("2>&-", 0), (">/dev/full", 2), (">&- 2>&- <&-", 0)):
        done = bridge(tmp_path, *words, through=through)
        assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr
    assert "No space left" in bridge(tmp_path, *words, through=">/dev/full").stderr


def test_a_terminal_that_is_not_utf8(tmp_path: Path) -> None:
    done = bridge(tmp_path, "doctor", PYTHONIOENCODING="ascii")
    assert done.returncode == 2
    assert r"\u2192 run: hermes setup" in done.stdout


def test_escape_sequences_of_a_path_or_a_word_stay_visible(tmp_path: Path) -> None:
    home = tmp_path / "e\x1b[31mvil"
    home.mkdir()
    words = (("install",), *COMMANDS, ("blacklist", "add", "a\x1b[31mb"), ("spans", "push"))
    for one in (*words, ("--profile", "\x1b[31m", "status"), ("spans", "trace", "\x1b[31m")):
        done = bridge(home, *one)
        assert "\x1b" not in done.stdout + done.stderr, one


def test_words_that_are_no_text(tmp_path: Path) -> None:
    not_text = os.fsdecode(b"\xff\xfe")
    for words in (
        ("blacklist", "add", not_text),
        ("install", "--set", f"BDH_VAULT_ID={not_text}"),
        ("install", "--set", "BDH_VAULT_ID=a\nBDH_API_TOKEN=b"),
    ):
        done = bridge(tmp_path, *words)
        assert (done.returncode, "defect" in done.stderr) == (2, False), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_line_of_env_that_counts_for_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text('BDH_VAULT_ID="open\nBDH_ROUTER=local\n')
    (tmp_path / ".env").chmod(0o600)
    assert f"{tmp_path}/.env: no NAME=value in line 1" in bridge(tmp_path, "config").stderr
    assert f"{tmp_path}/.env: line 1 is no NAME=value" in bridge(tmp_path, "doctor").stdout


def test_what_can_not_be_read_is_not_called_empty(tmp_path: Path) -> None:
    spoil_with_folders(tmp_path)
    shown = bridge(tmp_path, "status").stdout
    assert shown.count("unknown: it can't be read") >= 2
    (tmp_path / "bdh-bridge" / "prompt_blacklist.txt").mkdir()
    done = bridge(tmp_path, "blacklist", "list")
    assert (done.returncode, "can't be read" in done.stderr) == (2, True)


def test_a_copied_home_undoes_its_own_files_alone(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    assert bridge(first, "install", "--graph", "http://127.0.0.1:9").returncode == 0
    shutil.copytree(first, second)
    config = (first / "config.yaml").read_bytes()
    assert bridge(second, "uninstall").returncode == 0
    assert (first / "config.yaml").read_bytes() == config
    assert list(second.iterdir()) == []


def test_installations_at_the_same_time_wait_for_each_other(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("x: 1\n")
    running = [
        subprocess.Popen(
            [*CLI, "--home", str(tmp_path), "install", "--graph", f"http://127.0.0.1:{port}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for port in (1001, 1002, 1003)
    ]
    for one in running:
        said, _ = one.communicate(timeout=120)
        assert one.returncode == 0, said
    assert (tmp_path / "config.yaml").read_text().count("bdh-hermes-bridge") == 1
    assert bridge(tmp_path, "uninstall").returncode == 0
    assert (tmp_path / "config.yaml").read_text() == "x: 1\n"
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_installs_belongs_to_the_owner_of_the_home(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("x: 1\n")
    for path in (tmp_path, tmp_path / "config.yaml"):
        os.chown(path, 65534, 65534)
    assert bridge(tmp_path, "install", "--graph", "http://127.0.0.1:9").returncode == 0
    assert {path.stat().st_uid for path in (tmp_path, *tmp_path.rglob("*"))} == {65534}


def test_an_interrupt_while_it_is_still_being_loaded_is_quiet(tmp_path: Path) -> None:
    """Most of a short command's time is imports: that is when people press Ctrl-C."""
    script = (
        "import builtins, sys\n"
        "import bdh_bridge.cli as cli\n"
        "plain = builtins.__import__\n"
        "def interrupted(name, *rest, **more):\n"
        "    if name.startswith('pydantic'):\n"
        "        raise KeyboardInterrupt\n"
        "    return plain(name, *rest, **more)\n"
        "builtins.__import__ = interrupted\n"
        f"sys.exit(cli.main(['--home', {str(tmp_path)!r}, 'config']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (130, "")
