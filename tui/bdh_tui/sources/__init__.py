"""Where spans come from.

Every source ends in a span store on this machine: the bridge's own, or a private one that a feed
(OTLP, Jaeger, Tempo, a file) fills. So everything behind it asks one kind of store.
"""

from __future__ import annotations

from pathlib import Path


class Source:
    """``label`` is for the status bar. A read-only source gives spans and nothing to steer."""

    label = "local"
    read_only = False
    unreadable = 0
    """Spans that came in and could not be understood."""

    def __init__(self, store: Path) -> None:
        self.store = store

    def start(self) -> None:
        """Begin to feed the store, where that is this process's work. Raises: SourceError."""

    def stop(self) -> None:
        """End what :meth:`start` began; may be called twice."""

    @property
    def trouble(self) -> str:
        """What keeps the feed from working, as a sentence; empty if nothing does."""
        return ""


class SourceError(Exception):
    """The source can't be used: one sentence for the command line."""


class LocalSource(Source):
    """The span store of a Hermes home."""

    def __init__(self, store: Path, home: Path) -> None:
        super().__init__(store)
        self.label = f"local {_shortened(home)}"
        self._home = home

    @property
    def trouble(self) -> str:
        return "" if self._home.is_dir() else f"there is no Hermes home at {self._home}"


def _shortened(path: Path) -> str:
    try:
        return f"~/{path.relative_to(Path.home())}"
    except ValueError:
        return str(path)
