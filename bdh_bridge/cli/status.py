"""``bdh-bridge status``: one screen on today."""

from __future__ import annotations

import argparse
import json

from bdh_bridge.cli import Commands, examples, settings_of
from bdh_bridge.cli.output import Progress, paint


def add(commands: Commands) -> None:
    status = commands.add_parser(
        "status",
        help="today's turns, providers, outbox and graph on one screen",
        **examples(("status", ""), ("status --json", "the same for scripts")),
    )
    status.add_argument("--json", action="store_true", help="print one JSON object")
    status.set_defaults(command=_status)


def _status(args: argparse.Namespace) -> int:
    from bdh_bridge.operator.lines import overview_lines
    from bdh_bridge.operator.overview import look

    loaded = settings_of(args, needs_home=True)
    with Progress() as progress:
        progress("graph", 1, 2)
        seen = look(loaded)
    if args.json:
        print(json.dumps(seen.as_json()))
        return 0
    for heading, text in overview_lines(seen):
        style = "bad" if heading == "problem" or (heading == "graph" and seen.graph_error) else ""
        shown = f"{heading:<12} {text}"
        print(paint(style, shown) if style else shown)
    return 0
