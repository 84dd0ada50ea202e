"""The outbox's tables. ``synchronous=FULL``: an accepted write survives a power cut."""

from __future__ import annotations

import sqlite3
from typing import Any

from bdh_bridge.outbox.states import State, Write
from bdh_otel.database import Schema
from bdh_otel.state_table import StateTable


def _first(connection: sqlite3.Connection) -> None:
    """Writes, lanes and running totals.

    ``open`` marks rows that are still the worker's business. The totals are kept by triggers so
    that the bound check of an insert reads one row, whoever changed the table.
    """
    states = ", ".join(f"'{state}'" for state in State)
    statements = (
        f"""CREATE TABLE writes (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            state TEXT NOT NULL CHECK (state IN ({states})),
            destination TEXT NOT NULL,
            vault_id TEXT NOT NULL,
            source TEXT NOT NULL,
            query TEXT NOT NULL,
            user_prompt TEXT NOT NULL,
            body_bytes INTEGER NOT NULL,
            traceparent TEXT NOT NULL,
            session_id TEXT NOT NULL,
            turn_id TEXT NOT NULL,
            platform TEXT NOT NULL,
            model TEXT NOT NULL,
            created_at REAL NOT NULL,
            accepted_at REAL NOT NULL,
            updated_at REAL NOT NULL,
            attempts INTEGER NOT NULL DEFAULT 0,
            next_at REAL NOT NULL DEFAULT 0,
            sent_at REAL,
            server_instance TEXT,
            settle_until REAL,
            http_status INTEGER,
            error_type TEXT,
            error_detail TEXT,
            degraded INTEGER NOT NULL DEFAULT 0,
            new_concepts INTEGER NOT NULL DEFAULT 0,
            hebbian_updates INTEGER NOT NULL DEFAULT 0,
            claim_token TEXT,
            claim_owner TEXT,
            claimed_from TEXT,
            open INTEGER GENERATED ALWAYS AS (
                state IN ('pending', 'sending', 'in_doubt') OR settle_until IS NOT NULL
            ) VIRTUAL
        ) STRICT""",
        "CREATE INDEX writes_by_lane ON writes (destination, vault_id, state, seq)",
        "CREATE INDEX writes_open ON writes (destination, open) WHERE open = 1",
        "CREATE INDEX writes_by_state ON writes (state, updated_at)",
        """CREATE TABLE lanes (
            destination TEXT NOT NULL,
            vault_id TEXT NOT NULL,
            failures INTEGER NOT NULL DEFAULT 0,
            not_before REAL NOT NULL DEFAULT 0,
            honours_keys INTEGER NOT NULL DEFAULT 0,
            PRIMARY KEY (destination, vault_id)
        ) STRICT, WITHOUT ROWID""",
        "CREATE TABLE totals (open_rows INTEGER NOT NULL, body_bytes INTEGER NOT NULL) STRICT",
        "INSERT INTO totals VALUES (0, 0)",
        """CREATE TRIGGER count_insert AFTER INSERT ON writes BEGIN
            UPDATE totals SET open_rows = open_rows + new.open,
                              body_bytes = body_bytes + new.body_bytes;
        END""",
        """CREATE TRIGGER count_delete AFTER DELETE ON writes BEGIN
            UPDATE totals SET open_rows = open_rows - old.open,
                              body_bytes = body_bytes - old.body_bytes;
        END""",
        """CREATE TRIGGER count_update AFTER UPDATE ON writes
        WHEN new.open <> old.open OR new.body_bytes <> old.body_bytes BEGIN
            UPDATE totals SET open_rows = open_rows + new.open - old.open,
                              body_bytes = body_bytes + new.body_bytes - old.body_bytes;
        END""",
    )
    for statement in statements:
        connection.execute(statement)


SCHEMA = Schema("outbox", 0x42444858, (_first,), synchronous="FULL")
WRITES = StateTable("writes", key="id", state="state")

_COLUMNS = tuple(Write.__dataclass_fields__)
#: Reads rows for :func:`to_write`; a WHERE may follow.
SELECT = f"SELECT {', '.join(_COLUMNS)} FROM writes"  # noqa: S608 (our own column names)


def to_write(row: sqlite3.Row) -> Write:
    values: dict[str, Any] = {name: row[name] for name in _COLUMNS}
    values["state"] = State(values["state"])
    values["degraded"] = bool(values["degraded"])
    if values["claimed_from"] is not None:
        values["claimed_from"] = State(values["claimed_from"])
    return Write(**values)


def find_write(connection: sqlite3.Connection, write_id: str) -> Write | None:
    row = connection.execute(f"{SELECT} WHERE id = ?", (write_id,)).fetchone()
    return None if row is None else to_write(row)


def get_write(connection: sqlite3.Connection, write_id: str) -> Write:
    """Raises: KeyError."""
    write = find_write(connection, write_id)
    if write is None:
        raise KeyError(write_id)
    return write
