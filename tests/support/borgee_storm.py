"""Many messages through a real gateway whose connection breaks or whose process is killed, and
what became of each of them.

A message that is under way between server and inbox in such a moment is lost to Borgee's protocol
itself, which replays nothing. A connection is therefore only broken once the inbox holds all that
was sent; a process is killed at any moment, and what had not reached its disk is counted apart.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass

from tests.support.borgee import Gateway, Model
from tests.support.bpp_server import BppServer

#: How a server or what lies between ends a connection; None: without a word.
CLOSES = (None, 1001, 1011, 1012, 1002, 1008)
#: Seconds; a busy machine takes its time to start Hermes.
PATIENCE = 300.0
_NOTE = re.compile(r"note \d{5}")
FINAL = ("completed", "failed")


@dataclass(frozen=True, slots=True)
class Tally:
    """What became of the messages. ``doubtful`` were quarantined and shown to the operator."""

    sent: int
    sessions: int
    under_way: int
    """Sent but not yet on the gateway's disk when it was killed."""
    lost: int
    """On disk once, and neither run nor in the operator's hands."""
    run_twice: int
    disordered: int
    doubtful: int
    outcomes: dict[str, int]

    @property
    def whole(self) -> bool:
        return not (self.lost or self.run_twice or self.disordered)


class Storm:
    """Numbered messages to random channels, and the record of what was done to the gateway."""

    def __init__(
        self, gateway: Gateway, server: BppServer, model: Model, *, sessions: int, seed: int
    ) -> None:
        self.gateway = gateway
        self.server = server
        self.model = model
        self.dice = random.Random(seed)
        self.disconnects: Counter[str] = Counter()
        self.kills = 0
        self.channels: dict[str, str] = {}
        """The channel of every message that was sent, in the order of sending."""
        self.doubtful: set[str] = set()
        self._sessions = sessions
        self._missed = 0
        """Messages that a killed gateway had not stored, and never will."""

    def push(self) -> None:
        text = f"note {len(self.channels):05}"
        self.channels[text] = f"c{self.dice.randrange(self._sessions)}"
        self.server.push(text, channel_id=self.channels[text])

    def stored(self) -> int:
        rows = self.gateway.rows("SELECT count(*) AS n FROM receipts")
        return rows[0]["n"] if rows else 0

    def disconnect(self) -> None:
        """Break the connection and wait for the next one."""
        self.gateway.wait(lambda: self.stored() + self._missed == len(self.channels), PATIENCE)
        code = self.dice.choice(CLOSES)
        self.disconnects[str(code)] += 1
        before = self._greetings()
        self.server.drop(code)
        self._until_online(before)

    def kill(self) -> None:
        """SIGKILL, and start again."""
        self.kills += 1
        self.gateway.kill()
        self._missed = len(self.channels) - self.stored()
        before = self._greetings()
        self.gateway.start()
        self._until_online(before)

    def decide(self) -> None:
        """As the operator: see what is doubtful, and discard it in the running gateway."""
        for line in self._inbox("list", "--status", "quarantined", "--json").splitlines():
            receipt = json.loads(line)
            self.doubtful.add(receipt["source_body"])
            assert "no gateway" not in self._inbox("discard", str(receipt["ingest_seq"]))

    def finish(self) -> Tally:
        """Wait until nothing is open any more."""
        settled = f"SELECT count(*) AS n FROM receipts WHERE status IN {FINAL}"
        self.gateway.wait(
            lambda: self.gateway.rows(settled)[0]["n"] + self._missed == len(self.channels),
            PATIENCE * 4,
        )
        rows = self.gateway.rows("SELECT source_body, status, outcome FROM receipts")
        outcome = {row["source_body"]: row["outcome"] for row in rows}
        order: dict[str, list[str]] = {}
        runs: Counter[str] = Counter()
        for asked in list(self.model.asked):
            if found := _NOTE.search(asked):  # else a turn that Hermes made up, as its reviews
                runs[found[0]] += 1
                order.setdefault(self.channels[found[0]], []).append(found[0])
        return Tally(
            sent=len(self.channels),
            sessions=len(set(self.channels.values())),
            under_way=sum(text not in outcome for text in self.channels),
            lost=sum(not runs[text] and text not in self.doubtful for text in outcome),
            run_twice=sum(count > 1 for count in runs.values()),
            disordered=sum(texts != sorted(texts) for texts in order.values()),
            doubtful=len(self.doubtful),
            outcomes=dict(Counter(outcome.values())),
        )

    def _inbox(self, *arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "bdh_bridge.cli", "borgee", "inbox", *arguments],
            env=self.gateway.environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        ).stdout

    def _greetings(self) -> int:
        """How many connections have introduced themselves."""
        return sum(frame["type"] == "connect" for frame in list(self.server.frames))

    def _until_online(self, before: int) -> None:
        def online() -> bool:
            if self._greetings() <= before or not self.server._open:
                return False
            health = self.gateway.rows("SELECT state FROM health")
            return bool(health) and health[0]["state"] == "online"

        self.gateway.wait(online, PATIENCE)
