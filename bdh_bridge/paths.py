"""Where the bridge keeps its files: one owner-only folder in every Hermes home."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class BridgePaths:
    """The files of one Hermes home. Nothing here touches the disk."""

    hermes_home: Path

    @property
    def directory(self) -> Path:
        """``$HERMES_HOME/bdh-bridge``, mode 0700."""
        return self.hermes_home / "bdh-bridge"

    @property
    def spans(self) -> Path:
        return self.directory / "spans.sqlite3"

    @property
    def metrics(self) -> Path:
        """Totals that the worker keeps for its reports."""
        return self.directory / "metrics.sqlite3"

    @property
    def outbox(self) -> Path:
        return self.directory / "outbox.sqlite3"

    @property
    def outbox_spool(self) -> Path:
        """Folder of writes that could not be inserted in time; the worker takes them in."""
        return self.directory / "outbox-spool"

    @property
    def state(self) -> Path:
        return self.directory / "state.sqlite3"

    @property
    def sessions(self) -> Path:
        """Transcripts of sessions that are still to be summarised."""
        return self.directory / "sessions.sqlite3"

    @property
    def feedback(self) -> Path:
        """Corrections of the router's decisions, with the words that they are about."""
        return self.directory / "feedback.sqlite3"

    @property
    def personal_head(self) -> Path:
        """The local router's head as trained with this home's corrections."""
        return self.directory / "router-head.json"

    @property
    def worker_lock(self) -> Path:
        return self.directory / "worker.lock"

    @property
    def blacklist(self) -> Path:
        return self.directory / "prompt_blacklist.txt"

    @property
    def vault(self) -> Path:
        """The embedded graph's Markdown notes, unless it is given another folder."""
        return self.directory / "vault"

    @property
    def graph_state(self) -> Path:
        """What the embedded graph learned."""
        return self.directory / "graph.sqlite3"

    @property
    def env_file(self) -> Path:
        return self.hermes_home / ".env"


def find_hermes_home(profile: str | None = None, home: Path | None = None) -> Path:
    """``home``, or Hermes' own default: ``HERMES_HOME`` or else ``~/.hermes``; a profile is a
    folder below it.

    Raises: ValueError if ``profile`` is no profile name.
    """
    if home is None:
        configured = os.environ.get("HERMES_HOME", "").strip()
        home = Path(configured).expanduser() if configured else Path.home() / ".hermes"
    if profile is None:
        return home
    if not _PROFILE_NAME.fullmatch(profile):
        raise ValueError(f"{profile!r} is not a profile name (letters, digits, '.', '_', '-')")
    # HERMES_HOME may itself be a profile: its siblings live beside it.
    root = home.parent.parent if home.parent.name == "profiles" else home
    return root if profile == "default" else root / "profiles" / profile
