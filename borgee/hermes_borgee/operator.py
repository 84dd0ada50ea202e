"""What an operator sees and decides, from a process that is not the gateway.

A running gateway keeps its own view of its sessions, so a decision is asked of it through the
inbox's request table. Only while nobody owns the home is it carried out here.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bdh_otel import database
from hermes_borgee import config as configuration
from hermes_borgee import inbox, ledger
from hermes_borgee.config import inbox_path
from hermes_borgee.receipts import FINAL, Receipt, Status
from hermes_borgee.remediation import Refused, check_action

#: What of Hermes' gateway settings decides where its sessions are.
_STORE_KEYS = ("sessions_dir", "write_sessions_json")
#: Seconds that a running gateway gets to answer.
ANSWER_WAIT = 15.0
#: The largest number that SQLite takes; what is typed may be larger.
_MAX_INTEGER = 2**63 - 1


class NoInbox(Exception):
    """There is nothing to look at yet."""


class NoAnswer(Exception):
    """The gateway owns the inbox and did not answer in time."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What came of a decision. ``by_gateway``: the running gateway carried it out."""

    answer: str
    by_gateway: bool


class Operator:
    """One home's inbox. Raises: NoInbox, database.StoreError."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.path = inbox_path(home)

    def receipts(self, statuses: Iterable[Status] = (), limit: int = 50) -> list[Receipt]:
        with self._read() as connection:
            return inbox.select(connection, statuses, limit=min(limit, _MAX_INTEGER))

    def attention(self, limit: int = 50) -> list[Receipt]:
        """What is open, and the replies of the last days that did not arrive for certain."""
        open_ones = [status for status in Status if status not in FINAL]
        since = time.time() - ledger.BODY_DAYS * ledger.DAY
        limit = min(limit, _MAX_INTEGER)
        with self._read() as connection:
            found = inbox.select(connection, open_ones, limit=limit)
            found += inbox.undelivered(connection, since, limit)
        return sorted(found, key=lambda receipt: receipt.ingest_seq)[-limit:]

    def receipt(self, ingest_seq: int) -> Receipt | None:
        with self._read() as connection:
            return inbox.get(connection, ingest_seq) if ingest_seq <= _MAX_INTEGER else None

    def counts(self) -> dict[Status, int]:
        with self._read() as connection:
            return inbox.counts(connection)

    def health(self) -> ledger.Health | None:
        with self._read() as connection:
            return ledger.health(connection)

    def gaps(self) -> list[ledger.Gap]:
        with self._read() as connection:
            return ledger.gaps(connection)

    def settle(
        self, ingest_seq: int, action: str, *, confirmed: bool = False, wait: float | None = None
    ) -> Decision:
        """Discard or requeue. Raises: Refused, NoAnswer, NoInbox, database.StoreError."""
        receipt = self.receipt(ingest_seq)
        check_action(receipt.status if receipt else None, action, confirmed=confirmed)
        assert receipt is not None
        owner = self._own()
        if owner is None:
            return self._ask(ingest_seq, action, confirmed, ANSWER_WAIT if wait is None else wait)
        try:
            return self._settle_here(receipt, action)
        finally:
            owner.release()

    @contextlib.contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = database.connect(self.path, inbox.SCHEMA, read_only=True)
        except FileNotFoundError:
            raise NoInbox(
                f"{self.path} does not exist yet: the gateway makes it when it first connects"
            ) from None
        with contextlib.closing(connection):
            yield connection

    def _own(self) -> Any:
        """Both locks, or None if a gateway has one of them (or Hermes is not installed here)."""
        if importlib.util.find_spec("gateway") is None:
            return None
        # Hermes finds its files by this variable, and only at import in places.
        os.environ["HERMES_HOME"] = str(self.home)
        from hermes_borgee.ownership import Contention, Ownership

        url = key = ""
        with contextlib.suppress(configuration.ConfigError):
            settings = configuration.load(self.home)
            url, key = settings.base_url, settings.api_key.get_secret_value()
        owner = Ownership(self.home, url, key)
        try:
            owner.acquire()
        except Contention:
            return None
        return owner

    def _settle_here(self, receipt: Receipt, action: str) -> Decision:
        from hermes_borgee.host import reset_session

        store = _session_store(self.home)
        existed = bool(receipt.session_key) and reset_session(store, receipt.session_key)
        operation = inbox.discard if action == "discard" else inbox.requeue
        with contextlib.closing(database.connect(self.path, inbox.SCHEMA)) as connection:
            if not operation(connection, receipt.ingest_seq):
                raise Refused("it was settled meanwhile")
        done = "discarded" if action == "discard" else "runs again when the gateway starts"
        session = "its session was reset" if existed else "it had no session"
        return Decision(f"receipt {receipt.ingest_seq} {done}; {session}", by_gateway=False)

    def _ask(self, ingest_seq: int, action: str, confirmed: bool, wait: float) -> Decision:
        with contextlib.closing(database.connect(self.path, inbox.SCHEMA)) as connection:
            request_id = ledger.add_request(connection, ingest_seq, action, confirmed=confirmed)
            deadline = time.monotonic() + wait
            try:
                while True:
                    request = ledger.get_request(connection, request_id)
                    if request is None or request.state != "waiting":
                        break
                    late = time.monotonic() > deadline
                    if late and ledger.withdraw_request(connection, request_id):
                        raise NoAnswer(
                            f"the gateway did not answer within {wait:g} s; nothing was changed"
                        )
                    time.sleep(0.1)
            except KeyboardInterrupt:
                # Who goes away does not want it any more.
                ledger.withdraw_request(connection, request_id)
                raise
        answer = request.answer if request else "it was settled meanwhile"
        if request is None or request.state == "refused":
            raise Refused(answer)
        return Decision(answer, by_gateway=True)


def _session_store(home: Path) -> Any:
    """Hermes' sessions of a home. Its full configuration would load every platform first."""
    from gateway.config import GatewayConfig
    from gateway.session import SessionStore

    chosen: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        written = json.loads((home / "gateway.json").read_text(encoding="utf-8"))
        chosen = {key: written[key] for key in _STORE_KEYS if key in written}
    gateway = GatewayConfig.from_dict(chosen)
    return SessionStore(gateway.sessions_dir, gateway)
