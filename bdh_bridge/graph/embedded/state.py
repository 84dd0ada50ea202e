"""What the embedded graph remembers: one SQLite file, rows keyed by vault.

The vault's files hold the notes. Everything learned is here: synapses, evidence, answers to
idempotency keys, and the notes that a write created until their files exist. All of one
write's changes are one transaction, so that a crash leaves all of them or none.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from bdh_otel import database

#: Seconds for which the answer to an idempotency key is kept.
IDEMPOTENCY_WINDOW = 86_400


def _create(connection: sqlite3.Connection) -> None:
    connection.execute(
        """CREATE TABLE vaults (
            id INTEGER PRIMARY KEY,
            path TEXT NOT NULL UNIQUE,
            instance TEXT NOT NULL,
            queries INTEGER NOT NULL DEFAULT 0
        )"""
    )
    connection.execute(
        """CREATE TABLE vectors (
            vault INTEGER NOT NULL, digest BLOB NOT NULL, vector BLOB NOT NULL,
            PRIMARY KEY (vault, digest)
        )"""
    )
    connection.execute(
        """CREATE TABLE synapses (
            vault INTEGER NOT NULL, a TEXT NOT NULL, b TEXT NOT NULL,
            weight REAL NOT NULL, frequency REAL NOT NULL, last REAL NOT NULL,
            PRIMARY KEY (vault, a, b)
        ) WITHOUT ROWID"""
    )
    connection.execute("CREATE INDEX synapses_b ON synapses (vault, b)")
    connection.execute(
        """CREATE TABLE dormant (
            vault INTEGER NOT NULL, note TEXT NOT NULL,
            PRIMARY KEY (vault, note)
        )"""
    )
    connection.execute(
        """CREATE TABLE evidence (
            id INTEGER PRIMARY KEY,
            vault INTEGER NOT NULL, note TEXT NOT NULL,
            text TEXT NOT NULL, query TEXT NOT NULL, source TEXT NOT NULL, created REAL NOT NULL,
            UNIQUE (vault, note, text)
        )"""
    )
    connection.execute(
        """CREATE TABLE pending_files (
            vault INTEGER NOT NULL, note TEXT NOT NULL, content TEXT NOT NULL,
            PRIMARY KEY (vault, note)
        )"""
    )
    connection.execute(
        """CREATE TABLE answers (
            vault INTEGER NOT NULL, key TEXT NOT NULL,
            request BLOB NOT NULL, response TEXT NOT NULL, created REAL NOT NULL,
            PRIMARY KEY (vault, key)
        )"""
    )
    connection.execute("CREATE INDEX answers_created ON answers (vault, created)")


SCHEMA = database.Schema(
    name="embedded graph",
    application_id=0x42444847,  # "BDHG"
    migrations=(_create,),
    synchronous="FULL",  # an answered write is on the disk
)


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    request: bytes
    """SHA-256 of the request that the key came with first."""
    response: str


class GraphState:
    """The rows of one vault. Raises :class:`bdh_otel.database.StoreError` on opening."""

    def __init__(self, path: Path, vault: Path) -> None:
        self.path = path
        self.connection = database.connect(path, SCHEMA)
        resolved = str(vault.resolve())
        with self.transaction():
            self.connection.execute(
                "INSERT INTO vaults (path, instance) VALUES (?, ?) ON CONFLICT DO NOTHING",
                (resolved, str(uuid.uuid4())),
            )
        row = self.connection.execute(
            "SELECT id, instance FROM vaults WHERE path = ?", (resolved,)
        ).fetchone()
        self.vault = int(row["id"])
        self.instance = str(row["instance"])
        """Stays the same for as long as this state file knows this vault."""

    def close(self) -> None:
        self.connection.close()

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        return database.transaction(self.connection)

    @property
    def queries(self) -> int:
        row = self.connection.execute("SELECT queries FROM vaults WHERE id = ?", (self.vault,))
        return int(row.fetchone()[0])

    def count_query(self) -> None:
        self.connection.execute(
            "UPDATE vaults SET queries = queries + 1 WHERE id = ?", (self.vault,)
        )

    def vectors(self) -> Iterator[tuple[bytes, bytes]]:
        """(digest, float32 vector of 2048 bytes) of everything embedded so far."""
        yield from self.connection.execute(
            "SELECT digest, vector FROM vectors WHERE vault = ?", (self.vault,)
        )

    def save_vectors(self, vectors: Iterable[tuple[bytes, bytes]]) -> None:
        """Call inside a transaction."""
        self.connection.executemany(
            "INSERT OR REPLACE INTO vectors (vault, digest, vector) VALUES (?, ?, ?)",
            ((self.vault, digest, vector) for digest, vector in vectors),
        )

    def forget_vectors(self, digests: Iterable[bytes]) -> None:
        """Call inside a transaction."""
        self.connection.executemany(
            "DELETE FROM vectors WHERE vault = ? AND digest = ?",
            ((self.vault, digest) for digest in digests),
        )

    def evidence(self) -> dict[str, tuple[str, ...]]:
        """What was merged into each note, oldest first."""
        result: dict[str, list[str]] = {}
        for note, text in self.connection.execute(
            "SELECT note, text FROM evidence WHERE vault = ? ORDER BY id", (self.vault,)
        ):
            result.setdefault(note, []).append(text)
        return {note: tuple(texts) for note, texts in result.items()}

    def add_evidence(self, note: str, text: str, query: str, source: str, now: float) -> bool:
        """Call inside a transaction. False if the note has that very text already."""
        cursor = self.connection.execute(
            "INSERT INTO evidence (vault, note, text, query, source, created) "
            "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (self.vault, note, text, query, source, now),
        )
        return cursor.rowcount > 0

    def add_pending_file(self, note: str, content: str) -> None:
        """Call inside a transaction: the file will be written once it is committed."""
        self.connection.execute(
            "INSERT INTO pending_files (vault, note, content) VALUES (?, ?, ?)",
            (self.vault, note, content),
        )

    def pending_files(self) -> list[tuple[str, str]]:
        """(note id, content) of notes whose files may not exist yet."""
        rows = self.connection.execute(
            "SELECT note, content FROM pending_files WHERE vault = ? ORDER BY note", (self.vault,)
        )
        return [(str(note), str(content)) for note, content in rows]

    def file_written(self, note: str) -> None:
        self.connection.execute(
            "DELETE FROM pending_files WHERE vault = ? AND note = ?", (self.vault, note)
        )

    def wake(self, notes: Iterable[str]) -> None:
        self.connection.executemany(
            "DELETE FROM dormant WHERE vault = ? AND note = ?",
            ((self.vault, note) for note in notes),
        )

    def dormant(self) -> set[str]:
        rows = self.connection.execute("SELECT note FROM dormant WHERE vault = ?", (self.vault,))
        return {str(row[0]) for row in rows}

    def set_dormant(self, notes: Iterable[str]) -> None:
        """Call inside a transaction."""
        self.connection.execute("DELETE FROM dormant WHERE vault = ?", (self.vault,))
        self.connection.executemany(
            "INSERT INTO dormant (vault, note) VALUES (?, ?)",
            ((self.vault, note) for note in notes),
        )

    def answer(self, key: str, now: float) -> StoredAnswer | None:
        row = self.connection.execute(
            "SELECT request, response FROM answers WHERE vault = ? AND key = ? AND created > ?",
            (self.vault, key, now - IDEMPOTENCY_WINDOW),
        ).fetchone()
        return StoredAnswer(bytes(row["request"]), str(row["response"])) if row else None

    def keep_answer(self, key: str, answer: StoredAnswer, now: float) -> None:
        """Call inside the transaction of what the answer reports."""
        self.connection.execute(
            "DELETE FROM answers WHERE vault = ? AND created <= ?",
            (self.vault, now - IDEMPOTENCY_WINDOW),
        )
        self.connection.execute(
            "INSERT INTO answers (vault, key, request, response, created) VALUES (?, ?, ?, ?, ?)",
            (self.vault, key, answer.request, answer.response, now),
        )
