"""``bdh-bridge blacklist``: the prompts that are kept out of the graph."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bdh_bridge.cli import CommandError, Commands, examples, settings_of


def add(commands: Commands) -> None:
    blacklist = commands.add_parser(
        "blacklist",
        help="prompts that are neither enriched nor learned from",
        **examples(
            ('blacklist add "nightly backup report"', "keep prompts with this text out"),
            (r"blacklist add --regex '^(daily|weekly) digest\b'", "the same with an expression"),
            ('blacklist test "Nightly backup report: ok"', "would it be kept out? status 1 if so"),
        ),
    )
    actions = blacklist.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="the rules with their lines")
    listing.add_argument("--json", action="store_true", help="print JSON, one object a line")
    listing.set_defaults(command=_list)
    adding = actions.add_parser("add", help="add a rule; it holds from the next message on")
    adding.add_argument("text", help="text that a prompt holds, whatever its case")
    adding.add_argument("--regex", action="store_true", help="TEXT is a regular expression")
    adding.add_argument("--comment", default="", help="a comment above the rule")
    adding.set_defaults(command=_add)
    removing = actions.add_parser("remove", help="remove a rule")
    removing.add_argument("rule", help="its line (see list), or the rule as it is written")
    removing.set_defaults(command=_remove)
    testing = actions.add_parser("test", help="whether a prompt is kept out: status 1 if so")
    testing.add_argument("prompt")
    testing.set_defaults(command=_test)


def _path(args: argparse.Namespace) -> Path:
    from bdh_bridge.gates.blacklist import resolve_blacklist

    loaded = settings_of(args, needs_home=True)
    return resolve_blacklist(loaded.settings, loaded.paths)


def _list(args: argparse.Namespace) -> int:
    from bdh_bridge.gates.blacklist import Blacklist
    from bdh_otel.escape import escape, one_line

    path = _path(args)
    _readable(path)
    rules = Blacklist(path).rules
    for rule in rules:
        if args.json:
            values: dict[str, Any] = {"line": rule.line, "rule": rule.source, "kind": rule.kind}
            values |= {"enabled": rule.enabled, "error": rule.error, "comment": rule.comment}
            print(json.dumps(values))
            continue
        trouble = f"  (not used: {one_line(rule.error, 200)})" if rule.error else ""
        print(f"{rule.line:>4}  {one_line(rule.source, 120)}{trouble}")
    if not rules and not args.json:
        print(f"no rules ({escape(str(path))})")
    return 0


def _add(args: argparse.Namespace) -> int:
    from bdh_bridge.gates.blacklist_rules import REGEX, literal_line, parse, parse_rule
    from bdh_bridge.operator.blacklist import with_rule
    from bdh_otel.escape import escape

    try:
        line = f"{REGEX}{args.text.strip()}" if args.regex else literal_line(args.text)
        f"{line}{args.comment}".encode()
    except UnicodeEncodeError as error:
        raise CommandError("a rule is UTF-8 text, and this is not") from error
    except ValueError as error:
        raise CommandError(str(error)) from error
    if problem := parse_rule(line).error:
        raise CommandError(f"this rule can't be used: {problem}")
    path, added = _path(args), []

    def change(text: str) -> str:
        if any(rule.source == line and rule.enabled for rule in parse(text)):
            return text
        added.append(line)
        return with_rule(text, line, args.comment)

    _edit(path, change)
    print(f"added to {escape(str(path))}" if added else "it is there already")
    return 0


def _remove(args: argparse.Namespace) -> int:
    from bdh_bridge.gates.blacklist_edit import remove_rule
    from bdh_bridge.gates.blacklist_rules import parse
    from bdh_otel.escape import one_line

    removed: list[str] = []

    def change(text: str) -> str:
        rules = parse(text)
        found = [rule for rule in rules if args.rule in (rule.source, str(rule.line))]
        if not found:
            raise CommandError(
                f"there is no rule {one_line(args.rule, 60)}; see: bdh-bridge blacklist list"
            )
        removed[:] = [found[0].source]
        return remove_rule(text, found[0].line)

    _edit(_path(args), change)
    print(f"removed: {one_line(removed[0], 120)}")
    return 0


def _test(args: argparse.Namespace) -> int:
    from bdh_bridge.gates.blacklist import Blacklist
    from bdh_bridge.operator.plain import count
    from bdh_otel.escape import one_line

    path = _path(args)
    _readable(path)
    checked = Blacklist(path).check(args.prompt)
    for rule in checked.unfinished:
        print(f"line {rule.line} ran out of time and counts as no match")
    if checked.match is None:
        print(f"not kept out ({count(checked.rules, 'rule')} in use)")
        return 0
    rule = checked.match.rule
    print(f"kept out by line {rule.line}: {one_line(rule.source, 120)}")
    return 1


def _readable(path: Path) -> None:
    """The gate goes on with the rules it knows; here a file that can't be read is the answer.

    Raises: CommandError.
    """
    from bdh_bridge.gates.blacklist_file import read

    try:
        read(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CommandError(f"{path} can't be read ({reason}); mend its permissions") from error


def _edit(path: Path, change: Callable[[str], str]) -> None:
    from bdh_bridge.gates.blacklist_file import ChangedOnDisk, NotEditable, edit

    try:
        edit(path, change)
    except (NotEditable, ChangedOnDisk) as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"{path} can't be written ({error.strerror})") from error
