"""A link on its own, and what it said: bodies, states, final failures."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from hermes_borgee import config
from hermes_borgee.failures import LinkFailure
from hermes_borgee.link import Link, LinkState, Timing

FAST = Timing(
    probe_every=0.1,
    probe_wait=0.2,
    retry_first=0.05,
    retry_most=0.2,
    disabled_retry=0.2,
    action=2.0,
    sdk_retry_first=0.05,
    sdk_retry_most=0.1,
)


@dataclasses.dataclass
class Watched:
    link: Link
    bodies: list[str]
    states: list[LinkState]
    final: list[LinkFailure]


def watched(home: Path, timing: Timing = FAST) -> Watched:
    bodies: list[str] = []
    states: list[LinkState] = []
    final: list[LinkFailure] = []

    async def deliver(delivery: Any) -> None:
        bodies.append(delivery.event.message.body)
        await delivery.checkpoint()

    async def changed(state: LinkState, failure: LinkFailure | None) -> None:
        states.append(state)

    async def gave_up(failure: LinkFailure) -> None:
        final.append(failure)

    async def stop(channel_id: str) -> dict[str, bool]:
        return {"aborted": channel_id == "running"}

    link = Link(
        config.load(home),
        on_delivery=deliver,
        on_state=changed,
        on_final=gave_up,
        on_stop_turn=stop,
        timing=timing,
    )
    return Watched(link, bodies, states, final)
