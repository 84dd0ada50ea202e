"""Ends that no key asked for: the terminal is restored, and nothing stays behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tui.shapes import line
from tests.tui.test_tui_command import COMMAND, environment, run

PATIENCE = 90.0
RESTORED = (b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[?1000l")
"""The shell's own screen, its cursor, and a mouse that selects text again."""


class Terminal:
    """The application in a terminal, on a source with a private store below ``folder``."""

    def __init__(self, home: Path, folder: Path, *, session: bool) -> None:
        spans = folder / "spans.jsonl"
        spans.write_bytes(line("aa"))
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.master, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))

        def own_the_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [*COMMAND, "--source", str(spans)], stdin=inside, stdout=inside, stderr=inside,
            start_new_session=True, preexec_fn=own_the_terminal if session else None,
            env={**environment(home), "TERM": "xterm-256color", "TMPDIR": str(self.temporary)},
        )  # fmt: skip
        os.close(inside)
        self.told = b""

    def read_until(self, *wanted: bytes) -> None:
        deadline = time.monotonic() + PATIENCE
        while not all(one in self.told for one in wanted):
            assert time.monotonic() < deadline, self.told[-2_000:]
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    self.told += os.read(self.master, 65_536)
                except OSError:  # the other side is closed
                    break
        assert all(one in self.told for one in wanted), self.told[-2_000:]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.master)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)


@contextlib.contextmanager
def terminal(home: Path, folder: Path, *, session: bool = True) -> Iterator[Terminal]:
    opened = Terminal(home, folder, session=session)
    try:
        opened.read_until(b"following", b"read-only")
        yield opened
    finally:
        opened.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_order(
    empty_home: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with terminal(empty_home, tmp_path) as opened:
        assert list(opened.temporary.iterdir())
        opened.told = b""
        opened.process.send_signal(number)
        opened.read_until(*RESTORED)
        assert opened.process.wait(PATIENCE) == 128 + number
        assert not list(opened.temporary.iterdir())


@pytest.mark.parametrize("session", [True, False], ids=["hung up", "no signal comes"])
def test_a_terminal_that_is_closed_leaves_no_program_and_no_store(
    empty_home: Path, tmp_path: Path, session: bool
) -> None:
    with terminal(empty_home, tmp_path, session=session) as opened:
        os.close(opened.master)
        opened.process.wait(PATIENCE)
        assert not list(opened.temporary.iterdir())


def test_lines_end_with_their_reader_though_there_is_no_more_to_tell(
    empty_home: Path, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [*COMMAND, "--plain"], env={**environment(empty_home), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            for told in process.stdout:
                if told.startswith("Graph"):
                    break
            process.stdout.close()
            assert process.wait(PATIENCE) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_without_a_terminal_it_names_the_way_to_look(empty_home: Path) -> None:
    result = run(empty_home)
    assert (result.returncode, result.stdout) == (2, "")
    assert "--plain" in result.stderr
    assert "\x1b" not in result.stderr
