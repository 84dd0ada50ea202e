"""``bdh-bridge graph start|stop|status|boot``: the embedded graph in the background."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bdh_bridge.cli import CommandError, examples, settings_of
from bdh_bridge.cli.output import Progress


def add_actions(actions: Any, port: Callable[[str], int]) -> None:
    """Add the actions to those of ``graph``; ``port`` parses a port."""
    start = actions.add_parser(
        "start",
        help="run the embedded graph in the background",
        description="Serve a folder of Markdown notes in the background until stopped.",
        **examples(
            ("graph start --vault ~/notes", "these notes; port as in BDH_API_URL"),
            ("graph start", "the same notes again"),
        ),
    )
    start.set_defaults(command=_guarded(_start))
    boot = actions.add_parser(
        "boot",
        help="print what starts it at boot (systemd or launchd)",
        **examples(("graph boot --vault ~/notes", "")),
    )
    boot.set_defaults(command=_guarded(_boot))
    for action in (start, boot):
        action.add_argument(
            "--vault",
            type=Path,
            metavar="DIR",
            help="notes (default: those of the last start, or bdh-bridge/vault in the home)",
        )
        action.add_argument("--port", type=port, help="default: that of BDH_API_URL, or 8643")
    stop = actions.add_parser("stop", help="end the graph that runs in the background")
    stop.set_defaults(command=_guarded(_stop))
    status = actions.add_parser("status", help="whether it runs")
    status.add_argument("--json", action="store_true", help="print one JSON object")
    status.set_defaults(command=_guarded(_status))


def _guarded(command: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    def run(args: argparse.Namespace) -> int:
        from bdh_bridge.operator.background import BackgroundError

        try:
            return command(args)
        except BackgroundError as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(f"{error.filename or ''}: {error.strerror or error}") from error

    return run


def _start(args: argparse.Namespace) -> int:
    from bdh_bridge.operator import background

    loaded = settings_of(args, makes_home=True)
    server = background.running(loaded)
    if server is not None and server.url:
        if args.vault is not None and server.vault and str(args.vault.resolve()) != server.vault:
            raise CommandError(
                f"it runs already, with {server.vault}; first: bdh-bridge graph stop"
            )
        print(f"it runs already: {_shown(server)}")
        return 0
    vault = args.vault or background.last_vault(loaded)
    if vault is not None and not vault.is_dir():
        raise CommandError(f"{vault} is not a folder; create it, or name another: --vault DIR")
    port = background.port_of(loaded) if args.port is None else args.port
    with Progress() as progress:

        def shown(line: str) -> None:
            progress(line or "starting the graph", 1, 2)

        try:
            server = background.start(loaded, vault, port, shown)
        except KeyboardInterrupt:
            progress.clear()
            print("It goes on in the background; see: bdh-bridge graph status")
            raise
    print(_shown(server))
    if loaded.settings.api_url.replace("localhost", "127.0.0.1") != server.url:
        print(f"Hermes reads {loaded.settings.api_url}; to use this one: BDH_API_URL={server.url}")
    print("To start it at boot: bdh-bridge graph boot")
    return 0


def _stop(args: argparse.Namespace) -> int:
    from bdh_bridge.operator import background

    pid = background.stop(settings_of(args))
    print("no graph runs in the background" if pid is None else f"the graph ({pid}) has ended")
    return 0


def _status(args: argparse.Namespace) -> int:
    from bdh_bridge.operator import background

    loaded = settings_of(args)
    server = background.running(loaded)
    if args.json:
        values: dict[str, object] = {"running": server is not None}
        if server is not None:
            values |= {"pid": server.pid, "since": server.since}
            values |= {"url": server.url, "notes": server.notes, "vault": server.vault}
        print(json.dumps(values))
    elif server is None:
        print("no graph runs in the background; start it: bdh-bridge graph start")
    else:
        print(_shown(server))
        print(f"log: {background.log_path(loaded)}")
    return 0 if server is not None else 1


def _boot(args: argparse.Namespace) -> int:
    from bdh_bridge.operator import background

    loaded = settings_of(args)
    port = background.port_of(loaded) if args.port is None else args.port
    vault = args.vault or background.last_vault(loaded)
    path, text, enable = background.boot_unit(loaded, vault, port)
    print(f"# Save this as {path}, then run: {enable}\n{text}", end="")
    return 0


def _shown(server: Any) -> str:
    from bdh_otel.escape import one_line

    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(server.since))
    if not server.url:
        return f"still reading its notes, pid {server.pid}, since {since}"
    vault = f" in {one_line(server.vault, 300)}" if server.vault else ""
    notes = f"{server.notes:,} notes{vault} at its start"
    return f"{server.url} ({notes}), pid {server.pid}, since {since}"
