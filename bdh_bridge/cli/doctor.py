"""``bdh-bridge doctor``: what is wrong, and the mend."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from bdh_bridge.cli import Commands, examples, load_quietly
from bdh_bridge.cli.output import Progress, paint


def add(commands: Commands) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="what is wrong, and how to mend it",
        description="Examine the installation. Exit status: 0 all well, 1 warnings, 2 failures.",
        **examples(
            ("doctor", "everything that can be known without leaving this machine's network"),
            ("doctor --online", "also ask each model provider one short question"),
            ("doctor --json | jq '.checks[] | select(.level != \"ok\")'", "for scripts"),
        ),
    )
    doctor.add_argument("--online", action="store_true", help="ask the model providers as well")
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    doctor.add_argument(
        "--hermes-python", default="", metavar="PATH", help="the Python of Hermes' environment"
    )
    doctor.set_defaults(command=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    from bdh_bridge.operator import hermes
    from bdh_bridge.operator.doctor import STATUS, Check, Subject, examine, worst
    from bdh_bridge.operator.doctor.checks import groups

    loaded = load_quietly(args)  # the checks name what is wrong with the settings
    found, error = None, ""
    checks: list[Check] = []
    names = [name for name, _ in groups()]
    with Progress() as progress:
        progress("hermes", 0, len(names))
        try:
            found = hermes.find(loaded.paths.hermes_home, args.hermes_python)
        except hermes.HermesNotFoundError as problem:
            error = str(problem)
        subject = Subject(loaded, found, error, args.online)
        for check in examine(subject, lambda name: progress(name, names.index(name), len(names))):
            checks.append(check)
            if not args.json:
                progress.clear()
                _print(check)
    level = worst(checks)
    if args.json:
        print(json.dumps({"level": level, "checks": [asdict(check) for check in checks]}))
    return STATUS[level]


def _print(check: object) -> None:
    from bdh_bridge.operator.doctor import Check, Level
    from bdh_otel.escape import one_line

    assert isinstance(check, Check)
    style = {Level.OK: "good", Level.WARNING: "skip", Level.FAILED: "bad"}[check.level]
    mend = f"  → {one_line(check.mend, 400)}" if check.mend else ""
    print(
        f"{paint(style, f'{check.level:<8}')} {check.name:<14} {one_line(check.text, 400)}{mend}",
        flush=True,
    )
