"""Durable rows that go through states: the core of the bridge's outbox and of the Borgee inbox.

Both keep what must not be lost as rows of a table, and both change a row only if it still stands
where the mover believes it to stand (compare-and-set): in one of the named states, under the
mover's own claim, unchanged since it was read. Whoever comes too late changes nothing and is told
so. Rows at their end go in slices, so that nobody waits long for the lock.

The rest is each queue's own, because it differs. Several processes work on the outbox, so it asks
which owner of a claim still lives; the inbox has one owner by lock, so all claims of the past are
dead. A write that may have arrived can be asked about with its key; a message that may have run
never can. Writes wait for a server, messages for a session.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

#: Rows that one transaction removes.
SLICE = 500


class Sql(str):
    """A value of :meth:`StateTable.move` that SQLite computes from the row as it was."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class StateTable:
    """A table with a state, ``updated_at`` (Unix seconds) and, for claimed rows, ``claim_token``.

    Names of tables and columns go into statements as they are: they are the caller's constants,
    never data. Nothing here begins a transaction.
    """

    name: str
    key: str
    state: str

    def move(
        self,
        connection: sqlite3.Connection,
        key: int | str,
        origins: Collection[str],
        state: str,
        *,
        now: float,
        token: str | None = None,
        seen: float | None = None,
        **changes: Any,
    ) -> bool:
        """One row from any of ``origins`` to ``state``, with further ``changes`` of columns.

        ``token`` and ``seen`` are the claim and the ``updated_at`` that it must have. False if
        the row is not as expected; then nothing was changed.
        """
        columns = {self.state: state, "updated_at": now, **changes}
        literal = {name: value for name, value in columns.items() if isinstance(value, Sql)}
        settings = ", ".join(f"{name} = {literal.get(name, '?')}" for name in columns)
        guards = {self.key: key, "claim_token": token, "updated_at": seen}
        held = {name: value for name, value in guards.items() if value is not None}
        conditions = [f"{name} = ?" for name in held]
        conditions.append(f"{self.state} IN ({', '.join('?' * len(origins))})")
        cursor = connection.execute(
            f"UPDATE {self.name} SET {settings} WHERE {' AND '.join(conditions)}",  # noqa: S608
            (
                *(value for name, value in columns.items() if name not in literal),
                *held.values(),
                *origins,
            ),
        )
        return cursor.rowcount == 1

    def counts(self, connection: sqlite3.Connection) -> dict[str, int]:
        """The number of rows in every state that has any."""
        rows = connection.execute(
            f"SELECT {self.state}, count(*) FROM {self.name} GROUP BY {self.state}"  # noqa: S608
        )
        return {str(state): int(count) for state, count in rows}


def drop_slice(
    connection: sqlite3.Connection, table: str, key: str, condition: str, *values: float | str
) -> int:
    """Delete at most :data:`SLICE` rows for which ``condition`` holds; how many they were."""
    return connection.execute(
        f"DELETE FROM {table} WHERE {key} IN"  # noqa: S608 (our own names)
        f" (SELECT {key} FROM {table} WHERE {condition} LIMIT ?)",
        (*values, SLICE),
    ).rowcount


def new_token() -> str:
    """The token of a claim: no two are alike."""
    return uuid.uuid4().hex


def storable(text: str) -> str:
    """``text`` as SQLite and UTF-8 can hold it: without lone surrogates."""
    return text.encode("utf-8", "replace").decode()
