"""What was written in each session, kept for a day so that a finished one can be summarised.

The agent adds a turn when its write was accepted and marks sessions that ended; it never raises
and waits 250 ms at most. The worker reads, and decides once for each session. A session leaves
nothing but its id behind when it is decided; an undecided one is forgotten 24 hours after its
last written turn. Times are Unix seconds; one that lies in the future by more than its own bound
is what a jump of the clock left behind, and counts as past.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bdh_bridge.outbox.handle import Handle
from bdh_bridge.routing.text import clip_middle
from bdh_otel.database import CorruptFile, Schema, transaction
from bdh_otel.state_table import storable

log = logging.getLogger(__name__)

Trigger = Literal["finalize", "reset", "quiet"]

#: Seconds: how long a transcript is kept, how long a decided session is remembered, and the
#: silence after which a session counts as ended.
KEEP, REMEMBER, QUIET = 24 * 3_600.0, 30 * 86_400.0, 3_600.0
#: Newest turns kept of a session, sessions kept, characters kept of a message and of an answer.
MAX_TURNS, MAX_SESSIONS = 60, 1_000
MESSAGE_CHARS, ANSWER_CHARS = 2_000, 4_000
#: Seconds that the agent and the worker may wait for a lock.
AGENT_WAIT, WORKER_WAIT = 0.25, 5.0


@dataclass(frozen=True, slots=True)
class Session:
    """A session that waits to be decided. ``write_id`` is the id of the write that will hold its
    summary, whoever makes it; ``attempts`` is how often that failed."""

    id: str
    write_id: str
    platform: str
    destination: str
    vault_id: str
    turns: int
    trigger: Trigger
    attempts: int


@dataclass(frozen=True, slots=True)
class WrittenTurn:
    message: str
    answer: str
    traceparent: str


def _create(connection: sqlite3.Connection) -> None:
    connection.execute(
        """CREATE TABLE sessions (
            id TEXT PRIMARY KEY, write_id TEXT NOT NULL, platform TEXT NOT NULL,
            destination TEXT NOT NULL, vault_id TEXT NOT NULL,
            turns INTEGER NOT NULL DEFAULT 0, last_at REAL NOT NULL, ended_by TEXT,
            attempts INTEGER NOT NULL DEFAULT 0, next_at REAL NOT NULL DEFAULT 0, outcome TEXT
        ) STRICT, WITHOUT ROWID"""
    )
    connection.execute("CREATE INDEX sessions_by_age ON sessions (last_at)")
    connection.execute(
        """CREATE TABLE turns (
            seq INTEGER PRIMARY KEY AUTOINCREMENT, write_id TEXT NOT NULL UNIQUE,
            session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
            message TEXT NOT NULL, answer TEXT NOT NULL, traceparent TEXT NOT NULL
        ) STRICT"""
    )
    connection.execute("CREATE INDEX turns_of_session ON turns (session_id, seq)")


#: Migrations are only ever appended.
SCHEMA = Schema("transcripts", 0x42447472, (_create,), synchronous="FULL")

_PAST_KEEP = "last_at NOT BETWEEN :now - :keep AND :now + :keep"
_DUE = f"""outcome IS NULL AND NOT ({_PAST_KEEP})
    AND next_at NOT BETWEEN :now + 0.001 AND :now + :keep
    AND (ended_by IS NOT NULL
         OR turns >= :least AND last_at NOT BETWEEN :now - :quiet AND :now + :quiet)"""
_WAITING = f"""outcome IS NULL AND NOT ({_PAST_KEEP})
    AND (ended_by IS NOT NULL OR turns >= :least)"""


class Transcripts:
    """The transcripts of one Hermes home. Thread-safe; opens its file at first use."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._handle = Handle(path, SCHEMA, content="Turns")
        self._clock = clock
        self._warned = False

    # The agent

    def add(
        self,
        turn: WrittenTurn,
        *,
        session_id: str,
        write_id: str,
        platform: str,
        destination: str,
        vault_id: str,
    ) -> bool:
        """Keep a turn whose write was accepted; False if it could not be kept. Never raises.

        A session that goes on has not ended; one that was decided takes no more turns.
        """
        if not session_id:
            return False
        texts = (
            clip_middle(storable(turn.message), MESSAGE_CHARS),
            clip_middle(storable(turn.answer), ANSWER_CHARS),
            turn.traceparent,
        )

        def insert(connection: sqlite3.Connection) -> bool:
            outcome = connection.execute(
                "SELECT outcome FROM sessions WHERE id = ?", (session_id,)
            ).fetchone()
            if outcome is not None and outcome[0] is not None:
                return False
            connection.execute(
                """INSERT INTO sessions (id, write_id, platform, destination, vault_id, last_at)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                   ON CONFLICT (id) DO UPDATE SET platform = ?3, destination = ?4, vault_id = ?5,
                       last_at = ?6, ended_by = NULL""",
                (session_id, str(uuid.uuid4()), platform, destination, vault_id, self._clock()),
            )
            added = connection.execute(
                """INSERT OR IGNORE INTO turns (write_id, session_id, message, answer, traceparent)
                   VALUES (?, ?, ?, ?, ?)""",
                (write_id, session_id, *texts),
            ).rowcount
            connection.execute(
                "UPDATE sessions SET turns = turns + ? WHERE id = ?", (added, session_id)
            )
            _keep_bounds(connection, session_id)
            return True

        return self._attempt(insert)

    def mark_ended(self, session_id: str, trigger: Literal["finalize", "reset"]) -> bool:
        """Note that a session ended; True if the worker has something to decide. Never raises."""

        def mark(connection: sqlite3.Connection) -> bool:
            changed = connection.execute(
                "UPDATE sessions SET ended_by = ? WHERE id = ? AND outcome IS NULL",
                (trigger, session_id),
            ).rowcount
            return changed > 0

        return self._path.exists() and self._attempt(mark)

    # The worker

    def waiting(self, least: int, *, wait: float = WORKER_WAIT) -> bool:
        """Whether any session of at least ``least`` turns, or that ended, is undecided. ``wait``
        is in seconds. Raises: a :class:`~bdh_otel.database.StoreError`."""
        if not self._path.exists():
            return False
        with self._open(wait) as connection:
            found = connection.execute(
                f"SELECT 1 FROM sessions WHERE {_WAITING} LIMIT 1",  # noqa: S608 (our own text)
                {"least": least, "now": self._clock(), "keep": KEEP},
            )
            return found.fetchone() is not None

    def next_due(self, least: int) -> Session | None:
        """The session to decide now: ended, or quiet for an hour with ``least`` written turns.
        Raises: a :class:`~bdh_otel.database.StoreError`."""
        if not self._path.exists():
            return None
        values = {"now": self._clock(), "least": least, "quiet": QUIET, "keep": KEEP}
        with self._open(WORKER_WAIT) as connection:
            row = connection.execute(
                f"SELECT * FROM sessions WHERE {_DUE} ORDER BY next_at, last_at LIMIT 1",  # noqa: S608
                values,
            ).fetchone()
        if row is None:
            return None
        return Session(
            row["id"], row["write_id"], row["platform"], row["destination"], row["vault_id"],
            row["turns"], row["ended_by"] or "quiet", row["attempts"],
        )  # fmt: skip

    def turns_of(self, session_id: str) -> list[WrittenTurn]:
        """Oldest first. Raises: a :class:`~bdh_otel.database.StoreError`."""
        with self._open(WORKER_WAIT) as connection:
            rows = connection.execute(
                "SELECT message, answer, traceparent FROM turns WHERE session_id = ? ORDER BY seq",
                (session_id,),
            ).fetchall()
        return [WrittenTurn(*row) for row in rows]

    def decide(self, session_id: str, outcome: str) -> None:
        """Once and for all: the texts go, the id stays. Raises: as above."""
        with self._open(WORKER_WAIT) as connection, transaction(connection):
            connection.execute(
                "UPDATE sessions SET outcome = ? WHERE id = ?", (outcome, session_id)
            )
            connection.execute("DELETE FROM turns WHERE session_id = ?", (session_id,))

    def reopen(self, session_id: str) -> None:
        """It ended with too little said: it may be resumed, and end again. Raises: as above."""
        with self._open(WORKER_WAIT) as connection:
            connection.execute("UPDATE sessions SET ended_by = NULL WHERE id = ?", (session_id,))

    def postpone(self, session_id: str, seconds: float, *, failed: bool) -> None:
        """Not again for so long; ``failed`` counts it as an attempt. Raises: as above."""
        with self._open(WORKER_WAIT) as connection:
            connection.execute(
                "UPDATE sessions SET next_at = ?, attempts = attempts + ? WHERE id = ?",
                (self._clock() + seconds, int(failed), session_id),
            )

    def prune(self) -> None:
        """Forget what is past its time. Raises: as above."""
        if not self._path.exists():
            return
        values = {"now": self._clock(), "keep": KEEP, "remember": REMEMBER}
        with self._open(WORKER_WAIT) as connection, transaction(connection):
            connection.execute(
                f"""DELETE FROM sessions WHERE outcome IS NULL AND {_PAST_KEEP}
                    OR last_at NOT BETWEEN :now - :remember AND :now + :remember""",  # noqa: S608
                values,
            )

    def put_aside(self, error: CorruptFile) -> None:
        """Start anew after damage. Raises: OSError, or a
        :class:`~bdh_otel.database.StoreUnavailable`."""
        self._handle.replace_corrupt(error)

    def close(self) -> None:
        self._handle.close()

    # The file

    @contextlib.contextmanager
    def _open(self, wait: float) -> Iterator[sqlite3.Connection]:
        with self._handle.use(wait) as connection:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
            yield connection

    def _attempt(self, work: Callable[[sqlite3.Connection], bool]) -> bool:
        """For the agent: any trouble is one warning until it has passed."""
        try:
            with self._open(AGENT_WAIT) as connection, transaction(connection):
                done = work(connection)
        except Exception as error:
            if not self._warned:
                log.warning("[bdh-bridge] a session's transcript is not kept: %s", error)
            self._warned = True
            return False
        self._warned = False
        return done


def _keep_bounds(connection: sqlite3.Connection, session_id: str) -> None:
    connection.execute(
        """DELETE FROM turns WHERE session_id = ?1 AND seq <= (
               SELECT seq FROM turns WHERE session_id = ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2)""",
        (session_id, MAX_TURNS),
    )
    connection.execute(
        """DELETE FROM sessions WHERE id IN (
               SELECT id FROM sessions WHERE outcome IS NULL
               ORDER BY last_at DESC LIMIT -1 OFFSET ?)""",
        (MAX_SESSIONS,),
    )
