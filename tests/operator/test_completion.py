"""Completion, in the real shells that are installed here."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from bdh_bridge.cli import make_parser
from bdh_bridge.cli.completion import bash, fish, levels, zsh
from tests.operator.conftest import Home


def complete(*words: str) -> list[str]:
    """What bash offers for the last of ``words``."""
    script = bash(list(levels(make_parser())))
    listed = " ".join(f"'{word}'" for word in ("bdh-bridge", *words))
    asked = f"COMP_WORDS=({listed}); COMP_CWORD={len(words)}; _bdh_bridge; "
    asked += 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "--norc", "-uc", f"{script}\n{asked}"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("doc",), ["doctor"]),
        (("graph", "sta"), ["start", "status"]),
        (("--profile", "work", "outbox", "li"), ["list"]),
        (("outbox", "list", "--st"), ["--state"]),
        (("outbox", "list", "--state", "quar"), ["quarantined"]),
        (("completion", "f"), ["fish"]),
        (("doctor", "--on"), ["--online"]),
        (("nonsense", "sp"), ["spans"]),
        (("graph", "serve", "--back"), []),
        (("--profile", "outbox", "st"), ["status", "stats"]),
        (("graph", "serve", "--vault", ""), []),
    ],
)
def test_bash(words: tuple[str, ...], offered: list[str]) -> None:
    assert complete(*words) == offered


def test_every_command_is_offered(home: Home) -> None:
    offered = complete("")
    for level in levels(make_parser()):
        if len(level.path) == 1:
            assert level.path[0] in offered
    assert home.run("completion", "bash").out == bash(list(levels(make_parser())))


def written(tmp_path: Path, shell: str) -> Path:
    """The completion script of ``shell`` as a file; skips where there is no such shell."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = tmp_path / f"completion.{shell}"
    path.write_text({"bash": bash, "zsh": zsh, "fish": fish}[shell](list(levels(make_parser()))))
    return path


def fish_offers(line: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """What a real fish offers after ``bdh-bridge LINE``."""
    asked = f"source {written(tmp_path, 'fish')}; complete -C 'bdh-bridge {line}'"
    return subprocess.run(
        ["fish", "--no-config", "-c", asked],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)},
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_itself_accepts_its_script(shell: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [shell, "-n", str(written(tmp_path, shell))], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("sp", ["spans"]),
        ("outbox li", ["list"]),
        ("outbox list --st", ["--state"]),
        ("outbox list --state quar", ["quarantined"]),
        ("graph status --js", ["--json"]),
        ("completion z", ["zsh"]),
        # The value of an option is no command.
        ("--profile outbox sta", ["stats", "status"]),
        ("graph serve --back", []),
    ],
)
def test_fish(line: str, offered: list[str], tmp_path: Path) -> None:
    done = fish_offers(line, tmp_path)
    assert done.stderr == ""
    words = [one.partition("\t")[0] for one in done.stdout.splitlines()]
    assert sorted(word for word in words if not word.startswith("completion.")) == offered


def test_fish_offers_files_where_a_file_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "my-vault").mkdir()
    done = fish_offers("graph serve --vault my", tmp_path)
    assert done.stdout.startswith("my-vault/"), done.stderr


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("sp", "spans"),
        ("outbox li", "list"),
        ("outbox list --state quar", "quarantined"),
        ("--profile outbox doc", "doctor"),
        ("graph serve --vault my", "my-vault/"),
        # With its help, where several fit.
        ("outbox re", "requeue"),
        ("graph sta", "run the embedded graph in the background"),
    ],
)
def test_zsh_at_a_terminal(line: str, completed: str, tmp_path: Path) -> None:
    """A zsh in a terminal of its own, and the tab key."""
    script = written(tmp_path, "zsh")
    (tmp_path / "my-vault").mkdir()
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        environment = {"HOME": str(tmp_path), "TERM": "dumb", "PATH": os.environ["PATH"]}
        os.execve(str(shutil.which("zsh")), ["zsh", "-f", "-i"], environment)
    try:
        os.write(terminal, f"PS1='READY'\\> ; source {script}\n".encode())
        until(terminal, "READY>")
        os.write(terminal, f"bdh-bridge {line}\t".encode())
        until(terminal, completed)
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(terminal)


def until(terminal: int, wanted: str) -> None:
    """Read what is on the screen until it holds ``wanted``."""
    seen, deadline = b"", time.monotonic() + 60
    while wanted.encode() not in seen:
        assert time.monotonic() < deadline, seen.decode("utf-8", "replace")
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 65536)
