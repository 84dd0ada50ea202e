"""``bdh-bridge config``: the settings in effect, and where each came from."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from bdh_bridge.cli import Commands, examples, settings_of
from bdh_bridge.cli.output import paint


def add(commands: Commands) -> None:
    config = commands.add_parser(
        "config",
        help="the settings in effect and where they come from",
        description="Every setting, its value, and its origin. Secrets are only said to be set.",
        **examples(
            ("config", ""),
            ("config --changed", "only what is not the default"),
            ("--profile work config --json", "another profile, for scripts"),
        ),
    )
    config.add_argument("--changed", action="store_true", help="only what .env or shell has set")
    config.add_argument("--json", action="store_true", help="print one JSON array")
    config.set_defaults(command=_config)


def _config(args: argparse.Namespace) -> int:
    from bdh_bridge.operator.effective import effective
    from bdh_otel.escape import one_line

    settings = effective(settings_of(args, needs_home=True))
    if args.changed:
        settings = [setting for setting in settings if setting.origin != "default"]
    if args.json:
        print(json.dumps([asdict(setting) for setting in settings]))
        return 0
    width = max((len(setting.name) for setting in settings), default=0)
    for setting in settings:
        line = f"{setting.name:<{width}}  {setting.origin:<11}  {one_line(setting.text, 200)}"
        print(paint("dim", line) if setting.origin == "default" else line)
    if not settings:
        print("every setting has its default")
    return 0
