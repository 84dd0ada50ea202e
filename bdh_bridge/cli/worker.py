"""``bdh-bridge worker``: the process that delivers."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from typing import TYPE_CHECKING

from bdh_bridge.cli import CommandError, Commands, settings_of

if TYPE_CHECKING:
    from bdh_bridge.settings import Loaded
    from bdh_bridge.worker.lock import Holder

#: A worker that was asked to end may finish its request first.
STOP_WAIT = 40.0


def add(commands: Commands) -> None:
    worker = commands.add_parser("worker", help="see and steer the process that delivers")
    actions = worker.add_subparsers(title="actions", metavar="ACTION", required=True)
    status = actions.add_parser("status", help="whether it runs")
    status.add_argument("--json", action="store_true", help="print one JSON object")
    status.set_defaults(command=_status)
    stop = actions.add_parser("stop", help="end it after the request in flight")
    stop.set_defaults(command=_stop)
    run = actions.add_parser("run", help="work in the foreground until interrupted")
    run.add_argument(
        "--until-idle", action="store_true", help="end once nothing has been waiting for 30 seconds"
    )
    run.set_defaults(command=_run)


def _status(args: argparse.Namespace) -> int:
    loaded = settings_of(args)
    holder = _running(loaded)
    if args.json:
        values: dict[str, object] = {"running": holder is not None}
        if holder is not None:
            values |= {
                "pid": holder.pid,
                "since": holder.since,
                "version": holder.version,
                "mode": holder.mode,
            }
        print(json.dumps(values))
    elif holder is None:
        print("no worker runs; the next turn starts one if something is waiting")
    else:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.since))
        print(f"worker {holder.version} runs as a {holder.mode}, pid {holder.pid}, since {since}")
    return 0 if holder is not None else 1


def _stop(args: argparse.Namespace) -> int:
    from bdh_bridge.worker.lock import is_held

    loaded = settings_of(args)
    holder = _running(loaded)
    if holder is None:
        print("no worker runs")
        return 0
    if holder.mode == "thread":
        raise CommandError(
            f"the worker is a thread of process {holder.pid} and ends with it (BDH_WORKER=thread)"
        )
    pid = holder.pid
    if pid is None:
        raise CommandError("the worker runs on another machine, or its lock file can't be read")
    try:
        os.kill(pid, signal.SIGTERM)
    except PermissionError as error:
        raise CommandError(f"the worker (pid {pid}) belongs to another user") from error
    except ProcessLookupError:
        pass
    deadline = time.monotonic() + STOP_WAIT
    while is_held(loaded.paths.worker_lock):
        if time.monotonic() > deadline:
            raise CommandError(f"the worker (pid {pid}) did not end within {STOP_WAIT:.0f} seconds")
        time.sleep(0.02)
    print(f"worker {pid} has ended")
    return 0


def _run(args: argparse.Namespace) -> int:
    import logging

    from bdh_bridge import __version__
    from bdh_bridge.worker.lock import WorkerLock
    from bdh_bridge.worker.service import LINGER, Worker, stopped_by_signals
    from bdh_otel.database import make_private_directory

    loaded = settings_of(args)
    logging.getLogger("bdh_bridge").setLevel(logging.INFO)
    make_private_directory(loaded.paths.directory)
    lock = WorkerLock(loaded.paths.worker_lock)
    if not lock.acquire(wait=0.5, version=__version__, mode="command"):
        raise CommandError("another worker of this home is running; see: bdh-bridge worker status")
    linger = LINGER if args.until_idle else float("inf")
    worker = Worker(loaded, lock, mode="command", linger=linger)
    with stopped_by_signals(worker):
        worker.run()
    return 0


def _running(loaded: Loaded) -> Holder | None:
    from bdh_bridge.worker.lock import Holder, is_held, read_holder

    try:
        if not is_held(loaded.paths.worker_lock):
            return None
    except OSError as error:
        raise CommandError(f"the worker's lock can't be read: {error}") from error
    return read_holder(loaded.paths.worker_lock) or Holder("", time.time(), "unknown", "process")
