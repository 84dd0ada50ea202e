"""The adapter in a process that kills itself (SIGKILL) at a chosen point of a message's way.

``python -m tests.support.borgee_child HOME POINT``: what its handler ran is appended to
``HOME/ran``, one line a run, written through to the disk before the run goes on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hermes_borgee import ledger
from tests.support.borgee_adapter import Bench

#: Where the process may die, in the order of a message's way.
POINTS = ("committed", "claimed", "begun", "running", "returned")
VICTIM = "victim"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def note(home: Path, text: str) -> None:
    with (home / "ran").open("a") as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())


def dies_after(operation: Callable[..., Any], is_victim: Callable[..., bool]) -> Any:
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = await operation(*args, **kwargs)
        if is_victim(result, *args):
            die()
        return result

    return wrapped


async def main(home: Path, point: str) -> None:
    bench = Bench(home)
    assert ledger  # the whole package is loaded before anything can die

    def answer(event: Any) -> str:
        note(home, event.text)
        if point == "running" and event.text == VICTIM:
            die()
        return f"Answer to: {event.text}"

    bench.answer = answer
    assert await bench.start()
    desk, work = bench.adapter._desk, bench.adapter._scheduler._work  # type: ignore[union-attr]
    assert desk is not None
    if point == "committed":
        desk.commit = dies_after(  # type: ignore[method-assign]
            desk.commit, lambda _, receipt: receipt.source_body == VICTIM
        )
    elif point == "claimed":
        work._claim = dies_after(  # type: ignore[attr-defined]
            work._claim,  # type: ignore[attr-defined]
            lambda receipt, _: receipt.source_body == VICTIM,
        )
    elif point == "begun":
        desk.begin = dies_after(  # type: ignore[method-assign]
            desk.begin, lambda _, receipt: receipt.source_body == VICTIM
        )
    elif point == "returned":
        finish = desk.finish

        async def before_finish(receipt: Any, *rest: Any) -> bool:
            if receipt.source_body == VICTIM:
                die()
            return await finish(receipt, *rest)

        desk.finish = before_finish  # type: ignore[method-assign]
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
