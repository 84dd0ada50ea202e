"""The name under which a process holds the lock and claims writes."""

from __future__ import annotations

import json
from dataclasses import asdict

from bdh_otel.process import Process, is_alive, this_process


def owner_name() -> str:
    """This process: where its id is valid, the id, and its start, as JSON."""
    return json.dumps(asdict(this_process()))


def parse_owner(name: str) -> Process | None:
    """The process that ``name`` stands for; None if it is no owner's name."""
    try:
        return Process(**json.loads(name))
    except (ValueError, TypeError):
        return None


def owner_lives(name: str) -> bool:
    """Whether that process may still be at work. One on another machine, of which nothing is
    known, may be; one without a readable name can't."""
    process = parse_owner(name)
    return process is not None and is_alive(process) is not False
