"""What a check says, and the order in which checks are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bdh_bridge.operator.hermes import Installation
    from bdh_bridge.settings import Loaded


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


#: Exit status of ``bdh-bridge doctor`` by the worst level.
STATUS = {Level.OK: 0, Level.WARNING: 1, Level.FAILED: 2}


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report. ``mend`` says what to do, empty where nothing is to be done.

    Neither holds a secret; what others wrote in them is still to be escaped.
    """

    name: str
    level: Level
    text: str
    mend: str = ""


def ok(name: str, text: str) -> Check:
    return Check(name, Level.OK, text)


def warning(name: str, text: str, mend: str = "") -> Check:
    return Check(name, Level.WARNING, text, mend)


def failed(name: str, text: str, mend: str = "") -> Check:
    return Check(name, Level.FAILED, text, mend)


@dataclass(frozen=True, slots=True)
class Subject:
    """What is examined. ``hermes`` is None where none was found, ``hermes_error`` says why.

    ``online``: providers in the cloud may be asked, too.
    """

    loaded: Loaded
    hermes: Installation | None
    hermes_error: str = ""
    online: bool = False


#: A named group of checks. Each may take seconds, so a screen can say which one runs.
Group = tuple[str, Callable[[Subject], Iterator[Check]]]


def groups() -> list[Group]:
    from bdh_bridge.operator.doctor import files, host, peers, queue, settings

    return [
        ("hermes", host.hermes),
        ("plugin", host.plugin),
        ("dependencies", host.dependencies),
        ("settings", settings.settings),
        ("blacklist", settings.blacklist),
        ("graph", peers.graph),
        ("local router", peers.local_router),
        ("providers", peers.providers),
        ("telemetry", peers.telemetry),
        ("stores", files.stores),
        ("disk", files.disk),
        ("outbox", queue.outbox),
        ("worker", queue.worker),
        ("clock", queue.clock),
    ]


def examine(subject: Subject, progress: Callable[[str], None] | None = None) -> Iterator[Check]:
    """Every check, in order. A check that fails itself is one more line, not the end."""
    for name, group in groups():
        if progress is not None:
            progress(name)
        try:
            yield from group(subject)
        except OSError as error:
            yield failed(
                name,
                f"{error.filename} can't be examined ({error.strerror})",
                "mend it, or run as its owner",
            )
        except Exception as error:
            yield failed(name, f"this check broke off ({type(error).__name__}: {error})")


def worst(checks: list[Check]) -> Level:
    return max((check.level for check in checks), key=lambda level: STATUS[level], default=Level.OK)
