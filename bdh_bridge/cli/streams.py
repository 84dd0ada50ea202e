"""Standard streams that may be closed, full, broken or not UTF-8, and sentences for a person."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sqlite3
import sys
import traceback
from pathlib import Path

from bdh_otel.escape import escape_lines


def prepare() -> None:
    """Give every closed stream the null device, so that neither a print fails nor a store is
    opened where the next print goes; what an encoding can't hold is shown by its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, this one
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def hush() -> None:
    """Nobody reads standard output any more: what is left of it goes nowhere, without a word."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def complain(sentence: str, kind: str = "error") -> None:
    """To standard error; what files and peers put into the sentence is made visible."""
    with contextlib.suppress(OSError, ValueError):
        print(f"{kind}: {escape_lines(sentence)}", file=sys.stderr)


def told(error: BaseException) -> str:
    """An error as a clause for a person. What is not of the system or of a store is a defect,
    and is told by its place: a message could quote what was said."""
    if isinstance(error, OSError):
        reason = error.strerror or str(error) or type(error).__name__
        advice = "; run this as its owner" if isinstance(error, PermissionError) else ""
        return f"{error.filename}: {reason}{advice}" if error.filename else reason
    from bdh_otel.database import StoreError

    if isinstance(error, StoreError | sqlite3.Error):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}; this is a defect, please report it"


class EscapingFormatter(logging.Formatter):
    """Log records for a terminal: no escape sequences of others, and no stack traces."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_lines(record.getMessage())
