"""Corrections of the router's decisions by the person it decides for.

They hold the words of messages, so they stay in one owner-only file of this home, and so does
the head that is trained with them.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bdh_bridge.routing.local.conversation import HISTORY_MESSAGES, Conversation, conversation
from bdh_otel import attributes as attr
from bdh_otel import names
from bdh_otel.database import Schema, classify, connect, transaction
from bdh_otel.reader import SpanReader, StoredSpan

#: Characters of each earlier message that are kept, as many as the router looks at.
_HISTORY_CHARS = 300


@dataclass(frozen=True, slots=True)
class Correction:
    """``read`` and ``store`` are what would have been right; None where nothing is said of it."""

    turn_id: str
    message: str
    history: tuple[Mapping[str, str], ...]
    read: bool | None
    store: bool | None
    at: float

    @property
    def conversation(self) -> Conversation:
        return conversation(self.message, [*self.history, {"role": "user", "content": ""}])


def _create(connection: sqlite3.Connection) -> None:
    connection.execute(
        "CREATE TABLE corrections (turn_id TEXT PRIMARY KEY, message TEXT NOT NULL,"
        " history TEXT NOT NULL, read INTEGER, store INTEGER, at REAL NOT NULL) STRICT"
    )


#: Migrations are only ever appended.
SCHEMA = Schema("router feedback", 0x42446662, (_create,), synchronous="FULL")


class NoSuchTurn(Exception):
    """No turn to be corrected, as a sentence."""


def remember(path: Path, found: Correction) -> None:
    """Keep a correction; a later one of the same turn takes the place of what it speaks of.

    Raises: :class:`~bdh_otel.database.StoreError`.
    """
    with _Opened(path) as connection, transaction(connection):
        connection.execute(
            "INSERT INTO corrections VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (turn_id) DO UPDATE SET"
            " read = coalesce(excluded.read, read), store = coalesce(excluded.store, store),"
            " at = excluded.at",
            (
                valid(found.turn_id),
                valid(found.message),
                json.dumps([dict(item) for item in found.history]),
                found.read,
                found.store,
                found.at,
            ),
        )


def corrections(path: Path) -> list[Correction]:
    """All of them, oldest first. Raises: :class:`~bdh_otel.database.StoreError`."""
    if not path.exists():
        return []
    with _Opened(path) as connection:
        rows = connection.execute("SELECT * FROM corrections ORDER BY at, turn_id").fetchall()
    return [
        Correction(
            row["turn_id"],
            row["message"],
            _history(row["history"]),
            _flag(row["read"]),
            _flag(row["store"]),
            row["at"],
        )
        for row in rows
    ]


def forget(path: Path, turn_id: str) -> bool:
    """Drop one correction; False if there was none. Raises: StoreError."""
    if not path.exists():
        return False
    with _Opened(path) as connection:
        done = connection.execute("DELETE FROM corrections WHERE turn_id = ?", (valid(turn_id),))
        return done.rowcount > 0


def correction_of(
    reader: SpanReader, which: str, *, read: bool | None, store: bool | None
) -> Correction:
    """A correction of the turn ``which``: ``last``, the host's turn id, or the start of a trace's
    id. Its words, and those before it, are what the span store keeps of them.

    Raises: NoSuchTurn; StoreError; FileNotFoundError if there is no span store yet.
    """
    root = _root(reader, valid(which))
    message = str(root.attributes.get(attr.TURN_MESSAGE) or "")
    if not message.strip():
        raise NoSuchTurn("the span store kept no message of this turn (BDH_OTEL_CONTENT=off?)")
    turn_id = str(root.attributes.get(attr.TURN_ID) or root.trace_id)
    return Correction(turn_id, message, _before(reader, root), read, store, time.time())


def _root(reader: SpanReader, which: str) -> StoredSpan:
    if which == "last":
        turns = reader.turns(1)
        if not turns:
            raise NoSuchTurn("no turn is on record")
        return turns[0].root
    named = reader.select(
        "name = ? AND json_extract(attributes, ?) = ? ORDER BY start_ns DESC LIMIT 1",
        (names.TURN, f'$."{attr.TURN_ID}"', which),
    )
    if named:
        return named[0]
    traces = reader.find_traces(which, 2) if len(which) >= 4 else []
    if len(traces) != 1:
        raise NoSuchTurn(f"{'several traces start' if traces else 'no turn is called'} {which!r}")
    roots = [span for span in reader.trace(traces[0]) if span.name == names.TURN]
    if not roots:
        raise NoSuchTurn("that trace holds no turn")
    return roots[0]


def _before(reader: SpanReader, root: StoredSpan) -> tuple[Mapping[str, str], ...]:
    """The messages before the turn in its session, oldest first."""
    if not root.session:
        return ()
    found: list[Mapping[str, str]] = []
    for turn in reversed(reader.turns(HISTORY_MESSAGES, before=root, session=root.session)):
        for role, name in (("user", attr.TURN_MESSAGE), ("assistant", attr.TURN_ANSWER)):
            text = str(turn.root.attributes.get(name) or "")
            if text.strip():
                found.append({"role": role, "content": text[:_HISTORY_CHARS]})
    return tuple(found[-HISTORY_MESSAGES:])


def labelled(found: Sequence[Correction]) -> tuple[list[list[float]], list[list[float]]]:
    """Targets and weights for the fit, (corrections, 2) each; what was not said weighs nothing."""
    flags: list[list[Any]] = [[item.read, item.store] for item in found]
    targets = [[float(bool(flag)) for flag in pair] for pair in flags]
    weights = [[float(flag is not None) for flag in pair] for pair in flags]
    return targets, weights


def valid(text: str) -> str:
    """``text`` as SQLite takes it: half surrogates, which a shell's argument or a message may
    hold, become replacement characters."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _history(kept: str) -> tuple[Mapping[str, str], ...]:
    """A damaged one is none: the correction's own words count all the same."""
    try:
        found = json.loads(kept)
    except (ValueError, RecursionError):
        return ()
    items = found if isinstance(found, list) else ()
    return tuple(item for item in items if isinstance(item, Mapping))


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


class _Opened:
    """A connection for one statement or two."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = connect(path, SCHEMA)

    def __enter__(self) -> sqlite3.Connection:
        return self._connection

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._connection.close()
        if isinstance(error, sqlite3.Error):
            raise classify(self._path, error) from error
