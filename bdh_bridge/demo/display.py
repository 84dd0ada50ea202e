"""What the demo shows while it runs: progress, what was said, the claims, the traces."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from typing import TextIO

from bdh_bridge.demo.report import Claim, Step
from bdh_otel.escape import escape

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class Display:
    """Writes to ``out``; colours and a moving progress line only where it is a terminal."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.terminal = self.out.isatty() and os.environ.get("TERM") != "dumb"
        self.colour = self.terminal and not os.environ.get("NO_COLOR")

    @property
    def width(self) -> int:
        return max(40, min(shutil.get_terminal_size((100, 24)).columns, 120))

    def line(self, text: str = "") -> None:
        try:
            print(text, file=self.out, flush=True)
        except BrokenPipeError:
            # `scripts/demo | head`: nobody reads on, but all that was started must be stopped.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.out.fileno())
            os.close(nowhere)

    @contextlib.contextmanager
    def progress(self, what: str) -> Iterator[None]:
        """While it lasts, show on a terminal that ``what`` goes on and for how long already."""
        if not self.terminal:
            yield
            return
        ended = threading.Event()
        spinner = threading.Thread(
            target=self._spin, args=(what, time.monotonic(), ended), daemon=True
        )
        spinner.start()
        try:
            yield
        finally:
            ended.set()
            spinner.join()
            self.out.write("\r\x1b[2K")

    @contextlib.contextmanager
    def working(self, what: str) -> Iterator[None]:
        """The same, and a line that stays: done or not, and after how many seconds."""
        began = time.monotonic()
        mark = self._paint("✗", "31")
        try:
            with self.progress(what):
                yield
            mark = self._paint("✓", "32")
        finally:
            self.line(f"{mark} {what} {self._dim(f'{time.monotonic() - began:.1f} s')}")

    def step_begins(self, number: int, total: int, step: Step) -> None:
        self.line()
        head = f"━━ {number}/{total}  {step.title} "
        self.line(self._paint(head.ljust(self.width, "━"), "1;36"))

    def step_ends(self, step: Step, tree: str) -> None:
        if step.prompt:
            self._said(step.speaker, step.prompt)
        if step.answer:
            self._said("hermes", step.answer)
        for command in step.commands:
            self.line()
            self.line(self.bold(f"  $ {command.line}"))
            for line in command.output.splitlines():
                self.line(self._dim(f"  {escape(line)}"))
        if tree:
            self.line()
            self.line(textwrap.indent(tree.rstrip("\n"), "  "))
        if tree or step.commands:
            self.line()
        for claim in step.claims:
            self._claim(claim)

    def _claim(self, claim: Claim) -> None:
        mark = self._paint("✓", "32") if claim.holds else self._paint("✗", "31")
        seen = escape(claim.seen)
        if len(claim.claim) + len(seen) + 7 <= self.width:
            self.line(f"  {mark} {claim.claim}: {self._dim(seen)}")
        else:
            self.line(f"  {mark} {claim.claim}:")
            self._wrapped(seen, "      ")

    def bold(self, text: str) -> str:
        return self._paint(text, "1")

    def _said(self, who: str, text: str) -> None:
        first = f"  {who:>6} › "
        for line in text.splitlines():
            self._wrapped(line, first, bold=who != "hermes")
            first = " " * len(first)

    def _wrapped(self, text: str, first: str, *, bold: bool = False) -> None:
        for raw in textwrap.wrap(
            escape(text), self.width, initial_indent=first, subsequent_indent=" " * len(first)
        ):
            self.line(self.bold(raw) if bold else self._dim(raw))

    def _spin(self, what: str, began: float, ended: threading.Event) -> None:
        for turn in range(1_000_000):
            seconds = time.monotonic() - began
            self.out.write(f"\r\x1b[2K{_SPINNER[turn % 10]} {what} {self._dim(f'{seconds:.1f} s')}")
            self.out.flush()
            if ended.wait(0.1):
                return

    def _dim(self, text: str) -> str:
        return self._paint(text, "2")

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text
