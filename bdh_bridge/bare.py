"""``hermes bdh`` where what the bridge needs is not installed: it says what to type, no more.

Only the standard library is used here.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any


def register(ctx: Any, sentence: str) -> None:
    """Make every ``hermes bdh …`` print ``sentence`` and end with status 2. May raise."""
    if not hasattr(ctx, "register_cli_command"):
        return

    def say(args: argparse.Namespace) -> None:
        print(f"error: {sentence}", file=sys.stderr)
        sys.exit(2)

    def take_anything(parser: argparse.ArgumentParser) -> None:
        parser.description = sentence.replace("%", "%%")
        parser.add_argument("--home", help=argparse.SUPPRESS)
        parser.add_argument("--profile", help=argparse.SUPPRESS)
        parser.add_argument("command_line", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)

    ctx.register_cli_command("bdh", "The BDH bridge: something is missing", take_anything, say)
