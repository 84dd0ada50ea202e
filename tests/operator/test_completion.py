"""Completion, in the real shells that are installed here."""

from __future__ import annotations

import shutil
import subprocess

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


@pytest.mark.parametrize(("shell", "make"), [("zsh", zsh), ("fish", fish)])
def test_other_shells_accept_their_scripts(shell: str, make: object) -> None:
    assert callable(make)
    script = make(list(levels(make_parser())))
    assert "quarantined" in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr
