"""``bdh-bridge`` and ``hermes bdh``: one parser definition for both.

Every command group is a module of this package with ``add(commands)``, which adds its
sub-parsers and sets ``command``, a function of the parsed arguments that returns the exit status
(Hermes keeps ``func`` for itself).
Command modules import what is heavy inside their functions.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bdh_bridge import __version__
from bdh_bridge.cli.streams import EscapingFormatter, complain, hush, prepare, told

# Loaded within main(), which knows what to do when it is interrupted.
if TYPE_CHECKING:
    from bdh_bridge.settings import Loaded

#: Command groups, in the order in which ``--help`` lists them.
GROUPS = (
    "install",
    "doctor",
    "status",
    "config",
    "query",
    "blacklist",
    "explain",
    "router",
    "spans",
    "outbox",
    "worker",
    "graph",
    "borgee",
    "completion",
)


class CommandError(Exception):
    """A mistake of the user or of the surroundings: one sentence, no traceback, exit status 2."""


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Give ``parser`` the options and commands; used by the console script and by Hermes."""
    parser.add_argument("--home", type=Path, help="Hermes home (default: HERMES_HOME or ~/.hermes)")
    parser.add_argument("--profile", help="Hermes profile below that home")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for group in GROUPS:
        importlib.import_module(f"bdh_bridge.cli.{group}").add(commands)
    _help_where_bare(parser)


def _help_where_bare(parser: argparse.ArgumentParser) -> None:
    """Without its command a parser says what there is: status 2, as argparse has it."""

    def show(args: argparse.Namespace) -> int:
        parser.print_help(sys.stderr)
        return 2

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            action.required = False
            parser.set_defaults(command=show)
            for child in action.choices.values():
                _help_where_bare(child)


def run(args: argparse.Namespace) -> int:
    """Run the chosen command; turns what can go wrong into a sentence and a status."""
    try:
        status = int(args.command(args) or 0)
        sys.stdout.flush()
        return status
    except CommandError as error:
        complain(str(error))
    except BrokenPipeError:
        # `bdh-bridge spans tail | head`: the reader has seen enough.
        hush()
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        complain(told(error))
        try:
            sys.stdout.flush()
        except (OSError, ValueError):  # it is the output that fails
            hush()
    return 2


def run_and_exit(args: argparse.Namespace) -> None:
    """For Hermes, which drops a handler's result: the status becomes the process's own."""
    if status := run(args):
        sys.exit(status)


def load_quietly(args: argparse.Namespace) -> Loaded:
    """The settings of the home that the arguments name."""
    from bdh_bridge.paths import find_hermes_home
    from bdh_bridge.settings import load

    try:
        return load(find_hermes_home(args.profile, args.home))
    except ValueError as error:
        raise CommandError(str(error)) from error


def settings_of(
    args: argparse.Namespace, *, needs_home: bool = False, makes_home: bool = False
) -> Loaded:
    """The same; warnings go to stderr.

    Raises: CommandError for a home that was named and isn't there; with ``needs_home`` for any,
    with ``makes_home`` for none.
    """
    loaded = load_quietly(args)
    home = loaded.paths.hermes_home
    if not (home.is_dir() or makes_home) and (needs_home or args.home or args.profile):
        raise CommandError(
            f"there is no Hermes home {home}: start hermes once, or name one: --home DIR"
        )
    for warning in loaded.warnings:
        complain(warning, "warning")
    from bdh_bridge.operator.install.env_file import unreadable_lines

    if lines := unreadable_lines(loaded.paths.env_file):
        numbers = ", ".join(map(str, lines[:5])) + (", …" if len(lines) > 5 else "")
        complain(f"{loaded.paths.env_file}: no NAME=value in line {numbers}", "warning")
    return loaded


def examples(*pairs: tuple[str, str]) -> dict[str, Any]:
    """Keyword arguments for ``add_parser``: commands with what they are for, shown by --help."""
    lines = ["examples:"]
    for command, meaning in pairs:
        lines.append(f"  bdh-bridge {command}".replace("%", "%%"))
        if meaning:
            lines.append(f"      {meaning}".replace("%", "%%"))
    return {
        "epilog": "\n".join(lines),
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }


def make_parser() -> argparse.ArgumentParser:
    """The parser of the console script, with every command."""
    parser = argparse.ArgumentParser(
        prog="bdh-bridge",
        description="See and steer the bridge between Hermes and the BDH graph.",
        **examples(
            ("install --graph embedded", "enable it in your Hermes, with the built-in graph"),
            ("doctor", "is everything well?"),
            ("spans tail --follow", "watch what is decided, and why"),
        ),
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    add_commands(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    try:
        prepare()
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(EscapingFormatter())
        logging.basicConfig(level=logging.WARNING, handlers=[handler])
        # Its sentence on each broken line names no file; settings_of() says it once.
        logging.getLogger("dotenv").setLevel(logging.ERROR)
        args = make_parser().parse_args(argv)
    except KeyboardInterrupt:
        return 130
    return run(args)


Commands = Any  # argparse's sub-parsers action has no public type
