"""The Borgee inbox under load: figures, and a soak with random disconnects.

    python benchmarks/borgee_soak.py [--messages N] [--sessions N] [--backlog N] [--json FILE]
    python benchmarks/borgee_soak.py --gateway [--messages N] [--sessions N] [--kills N]

The adapter, its inbox, Hermes' base class and session store are the real ones, against a real
WebSocket server on loopback; the turn is a handler that sleeps a few milliseconds. A disconnect
is made only when everything that was sent has been received: what is on its way at that moment is
lost in Borgee's protocol itself, which replays nothing.

With ``--gateway`` the turns are Hermes' own: ``hermes gateway run`` in a process of its own, with
a model server on loopback. ``--kills`` then kills that process at random moments, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from machine import machine_state

# The server and the bench are those of the tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

Figures = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=1_000)
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--backlog", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--gateway", action="store_true", help="the soak alone, in a real gateway")
    parser.add_argument("--kills", type=int, default=0, help="with --gateway: kill it so often")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    figures: Figures = {"machine": machine_state()}
    if args.gateway:
        with tempfile.TemporaryDirectory() as folder:
            figures["gateway"], whole = real_gateway(Path(folder), args)
        print(json.dumps(figures["gateway"], indent=2))
        write(figures, args.json)
        return 0 if whole else 1
    for name, part in (("throughput", throughput), ("soak", soak), ("backlog", backlog)):
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            os.environ.update(
                HERMES_HOME=folder, HERMES_GATEWAY_LOCK_DIR=str(home / "locks"), BDH_OTEL_STRICT="1"
            )
            figures[name] = asyncio.run(part(home, args))
        print(f"{name}:")
        for key, value in figures[name].items():
            print(f"  {key:<28} {value}")
    write(figures, args.json)
    failed = (
        figures["soak"]["lost"] or figures["soak"]["run_twice"] or figures["soak"]["disordered"]
    )
    return 1 if failed else 0


def real_gateway(folder: Path, args: argparse.Namespace) -> tuple[Figures, bool]:
    """Every message once, in its session's order, through Hermes' own gateway and its turns."""
    from tests.support.borgee import Gateway, Model, make_home
    from tests.support.borgee_storm import PATIENCE, Storm
    from tests.support.bpp_server import BppServer

    model = Model()
    with BppServer() as server:
        home = make_home(folder / "home", server.url, model_url=model.url)
        # No graph is there: the bridge's hooks run, and find nothing.
        gateway = Gateway(home, BDH_API_URL="http://127.0.0.1:9", BDH_WORKER="off")
        storm = Storm(gateway, server, model, sessions=args.sessions, seed=args.seed)
        try:
            gateway.start()
            gateway.wait(lambda: "borgee connected" in gateway.log().lower(), PATIENCE)
            began = time.perf_counter()
            kill_at = set(storm.dice.sample(range(1, args.messages), args.kills))
            for number in range(args.messages):
                storm.push()
                if number in kill_at:
                    time.sleep(storm.dice.random() * 2)
                    storm.kill()
                    storm.decide()
                elif storm.dice.random() < 0.02:
                    storm.disconnect()
            tally = storm.finish()
            seconds = time.perf_counter() - began
        finally:
            gateway.close()
            model.close()
    figures = {
        **asdict(tally),
        "disconnects": dict(storm.disconnects),
        "kills": storm.kills,
        "seconds": round(seconds, 1),
        "turns_per_second": round(tally.sent / seconds, 1),
    }
    return figures, tally.whole


async def throughput(home: Path, args: argparse.Namespace) -> Figures:
    """Receipts a second, and the way from the server's send to the handler on an idle adapter."""
    from tests.support.borgee import make_home, until
    from tests.support.borgee_adapter import running
    from tests.support.bpp_server import BppServer

    with BppServer() as server:
        make_home(home, server.url)
        async with running(home) as bench:
            latencies: list[float] = []

            def arrived(event: Any) -> None:
                latencies.append(time.perf_counter() - float(event.text))

            bench.answer = arrived
            for number in range(200):
                await asyncio.to_thread(
                    server.push, f"{time.perf_counter()}", channel_id=f"c{number % 10}"
                )
                wanted = number + 1
                await until(lambda: len(latencies) == wanted)  # noqa: B023
                await asyncio.sleep(0.01)
            bench.runner._draining = True  # from here on intake alone is measured
            began = time.perf_counter()
            total = 400
            for number in range(total):
                await asyncio.to_thread(server.push, "x", channel_id=f"c{number % 10}")
            await received(bench, 200 + total)
            seconds = time.perf_counter() - began
    milliseconds = sorted(value * 1_000 for value in latencies)
    return {
        "receipts_per_second": round(total / seconds),
        "send_to_handler_p50_ms": round(statistics.median(milliseconds), 1),
        "send_to_handler_p99_ms": round(milliseconds[int(len(milliseconds) * 0.99) - 1], 1),
    }


async def soak(home: Path, args: argparse.Namespace) -> Figures:
    """Every message once, in its session's order, through random disconnects."""
    from tests.support.borgee import make_home, until
    from tests.support.borgee_adapter import running
    from tests.support.bpp_server import BppServer

    dice = random.Random(args.seed)
    order: dict[str, list[int]] = {}
    disconnects: Counter[str] = Counter()
    with BppServer() as server:
        make_home(home, server.url)
        async with running(home) as bench:
            handle = bench._handle

            async def turn(event: Any) -> str | None:
                order.setdefault(event.source.chat_id, []).append(int(event.text))
                await asyncio.sleep(dice.random() * 0.01)
                return await handle(event)

            bench.adapter.set_message_handler(turn)
            began = time.perf_counter()
            for number in range(args.messages):
                channel = f"c{dice.randrange(args.sessions)}"
                await asyncio.to_thread(server.push, str(number), channel_id=channel)
                if dice.random() < 0.02:
                    await received(bench, number + 1)
                    code = dice.choice([None, 1001, 1011, 1012, 1002, 1008])
                    disconnects[str(code)] += 1
                    before = server.connections
                    await asyncio.to_thread(server.drop, code)
                    await until(lambda: server.connections > before, 60)  # noqa: B023
                    await until(lambda: bench.adapter.is_connected and server._open, 60)
            while True:
                receipts = await all_receipts(bench)
                done = sum(r.status.value in ("completed", "failed") for r in receipts)
                if done == args.messages:
                    break
                await asyncio.sleep(0.05)
            seconds = time.perf_counter() - began
    runs = Counter(number for numbers in order.values() for number in numbers)
    outcomes = Counter(receipt.outcome for receipt in receipts)
    return {
        "messages": args.messages,
        "sessions": args.sessions,
        "disconnects": dict(disconnects),
        "seconds": round(seconds, 1),
        "lost": sum(runs[number] == 0 for number in range(args.messages)),
        "run_twice": sum(count > 1 for count in runs.values()),
        "disordered": sum(numbers != sorted(numbers) for numbers in order.values()),
        "outcomes": dict(outcomes),
    }


async def backlog(home: Path, args: argparse.Namespace) -> Figures:
    """Memory and speed with a deep backlog."""
    from bdh_otel import database
    from hermes_borgee import inbox
    from hermes_borgee.config import inbox_path
    from tests.support.borgee import make_home
    from tests.support.borgee_adapter import Bench
    from tests.support.bpp_server import BppServer

    with BppServer() as server:
        make_home(home, server.url)
        body = "A message of some length. " * 20
        connection = database.connect(inbox_path(home), inbox.SCHEMA)
        with database.transaction(connection):
            connection.executemany(
                "INSERT INTO receipts (kind, channel_id, channel_type, author_id, author_name,"
                " message_id, session_key, source_body, effective_body, reply_to_id,"
                " source_created_at, context, dedupe_key, dispatch_class, forced_queue, status,"
                " outcome, error, traceparent, created_at, updated_at) VALUES ('message', ?,"
                " 'channel', 'u', 'Ada', ?, ?, ?, ?, '', 0, '{}', ?, 'ordinary', 0, 'pending', '',"
                " '', '', ?, ?)",
                [
                    (
                        f"c{n % 1000}",
                        f"m{n}",
                        f"agent:main:borgee:channel:c{n % 1000}",
                        body,
                        body,
                        f"b{n}",
                        time.time(),
                        time.time(),
                    )
                    for n in range(args.backlog)
                ],
            )
        connection.close()
        bench = Bench(home)
        bench.answer = lambda _: None
        before = resident()
        bench.runner._draining = True
        began = time.perf_counter()
        assert await bench.start()
        started = time.perf_counter() - began
        held = resident() - before
        bench.runner._draining = False
        began = time.perf_counter()
        await asyncio.sleep(5)
        ran = len(bench.seen)
        seconds = time.perf_counter() - began
        peak = resident() - before
        await bench.stop()
    return {
        "backlog": args.backlog,
        "start_seconds": round(started, 2),
        "memory_for_backlog_mib": round(held / 2**20, 1),
        "memory_while_running_mib": round(peak / 2**20, 1),
        "turns_per_second": round(ran / seconds),
    }


async def all_receipts(bench: Any) -> list[Any]:
    from hermes_borgee import inbox

    receipts: list[Any] = await bench.adapter._desk.actor.run(inbox.select, limit=1_000_000)
    return receipts


async def received(bench: Any, count: int) -> None:
    """Wait until the inbox holds ``count`` receipts."""
    query = "SELECT count(*) FROM receipts"
    stored = 0
    while stored < count:
        stored = await bench.adapter._desk.actor.run(lambda db: db.execute(query).fetchone()[0])


def write(figures: Figures, path: Path | None) -> None:
    if path:
        path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def resident() -> int:
    """Bytes of this process that are in memory."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


if __name__ == "__main__":
    raise SystemExit(main())
