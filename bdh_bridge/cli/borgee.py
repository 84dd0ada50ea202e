"""``bdh-bridge borgee``: set up the Borgee platform, see and settle its inbox."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bdh_bridge.cli import CommandError, Commands, settings_of

if TYPE_CHECKING:
    from hermes_borgee.operator import Operator
    from hermes_borgee.receipts import Receipt

_STATUSES = (
    "pending", "claimed", "processing", "completed", "failed", "in_doubt", "quarantined",
    "ignored",
)  # fmt: skip


def add(commands: Commands) -> None:
    borgee = commands.add_parser("borgee", help="the Borgee chat platform and its inbox")
    groups = borgee.add_subparsers(title="actions", metavar="ACTION", required=True)

    setup = groups.add_parser("setup", help="write the configuration; asks for the agent's key")
    setup.add_argument("--base-url", default="", help="the server's origin; asked for if missing")
    setup.add_argument(
        "--key-stdin", action="store_true", help="read the key from standard input, not a prompt"
    )
    setup.set_defaults(command=_setup)

    status = groups.add_parser("status", help="configuration, receipts by state, gaps")
    status.add_argument("--json", action="store_true", help="print JSON")
    status.set_defaults(command=_with_operator(_status))

    inbox = groups.add_parser("inbox", help="messages that were received")
    actions = inbox.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="what is open, and replies that did not arrive")
    listing.add_argument(
        "--status", action="append", choices=_STATUSES, metavar="STATUS", help=", ".join(_STATUSES)
    )
    listing.add_argument("--all", action="store_true", help="finished ones, too")
    listing.add_argument("-n", type=int, default=50, metavar="N", help="at most (default 50)")
    listing.add_argument("--json", action="store_true", help="print JSON, one object a line")
    listing.set_defaults(command=_with_operator(_list))
    show = actions.add_parser("show", help="one receipt with its text")
    show.add_argument("number", type=int)
    show.add_argument("--json", action="store_true", help="print JSON")
    show.set_defaults(command=_with_operator(_show))
    discard = actions.add_parser("discard", help="a quarantined message shall never run")
    requeue = actions.add_parser("requeue", help="a quarantined message shall run again")
    for action, parser in (("discard", discard), ("requeue", requeue)):
        parser.add_argument("number", type=int)
        parser.set_defaults(command=_with_operator(_settle), action=action, may_repeat=False)
    requeue.add_argument(
        "--may-repeat-effects",
        dest="may_repeat",
        action="store_true",
        help="confirm that tools, requests and replies may happen a second time",
    )


def _with_operator(
    command: Callable[[argparse.Namespace, Operator], int | None],
) -> Callable[[argparse.Namespace], int | None]:
    def run(args: argparse.Namespace) -> int | None:
        from bdh_otel.database import StoreError
        from hermes_borgee.operator import NoAnswer, NoInbox, Operator
        from hermes_borgee.remediation import Refused

        try:
            return command(args, Operator(settings_of(args).paths.hermes_home))
        except NoInbox as error:
            print(error)
            return 0
        except (Refused, NoAnswer, StoreError) as error:
            raise CommandError(str(error)) from error

    return run


def _setup(args: argparse.Namespace) -> int:
    from hermes_borgee.setup import SetupError, interactive

    home = settings_of(args).paths.hermes_home
    read_key = (lambda _: sys.stdin.readline()) if args.key_stdin else None
    if args.key_stdin and not args.base_url:
        raise CommandError("--key-stdin needs --base-url")
    try:
        interactive(home, base_url=args.base_url, read_key=read_key)
    except SetupError as error:
        raise CommandError(str(error)) from error
    except EOFError as error:
        print()  # ends the line of the question
        raise CommandError("there is nobody to ask: use --base-url and --key-stdin") from error
    print("Now start the gateway: hermes gateway run")
    return 0


def _status(args: argparse.Namespace, operator: Operator) -> int:
    from hermes_borgee import config
    from hermes_borgee.operator import NoInbox

    problems: tuple[str, ...] = ()
    try:
        config.load(operator.home)
    except config.ConfigError as error:
        problems = error.problems
    try:
        counts = {status.value: n for status, n in operator.counts().items()}
        gaps = [asdict(gap) for gap in operator.gaps()]
        health = operator.health()
    except NoInbox:
        counts, gaps, health = {}, [], None
    if args.json:
        connection = asdict(health) if health else None
        print(
            json.dumps(
                {"problems": problems, "connection": connection, "receipts": counts, "gaps": gaps}
            )
        )
        return 0
    print(f"inbox          {operator.path}")
    print("configuration  " + ("ok" if not problems else "not usable:"))
    for problem in problems:
        print(f"  - {_escape(problem)}")
    if problems and not any("borgee setup" in problem for problem in problems):
        print("               mend config.yaml and .env, or: bdh-bridge borgee setup")
    if health is not None:
        why = f": {_escape(health.reason)}" if health.reason else ""
        print(f"connection     {health.state} since {_time(health.since)}{why}")
    shown = ", ".join(f"{counts[status]} {status}" for status in _STATUSES if status in counts)
    print(f"receipts       {shown or 'none yet'}")
    for gap in gaps[-5:]:
        end = _time(gap["ended_at"]) if gap["ended_at"] else "now"
        print(f"not connected  {_time(gap['started_at'])} to {end}: {_escape(gap['reason'])}")
    if counts.get("quarantined"):
        print("Quarantined messages block their sessions: bdh-bridge borgee inbox list")
    return 0


def _list(args: argparse.Namespace, operator: Operator) -> int:
    from hermes_borgee.receipts import Status

    most = max(1, args.n)
    wanted = [Status(status) for status in args.status or ()]
    if wanted or args.all:
        receipts = operator.receipts(wanted, limit=most)
    else:
        receipts = operator.attention(most)
    barriers: dict[str, int] = {}
    for held in operator.receipts([Status.QUARANTINED], limit=10_000):
        barriers.setdefault(held.session_key, held.ingest_seq)
    for receipt in receipts:
        if args.json:
            print(json.dumps(asdict(receipt)))
            continue
        text = _one_line(receipt.effective_body or "(text removed)", 60)
        why = f" ({receipt.outcome})" if receipt.outcome else ""
        barrier = barriers.get(receipt.session_key, receipt.ingest_seq)
        if receipt.status is Status.PENDING and barrier < receipt.ingest_seq:
            why = f" (behind {barrier})"
        print(
            f"{receipt.ingest_seq:>6}  {_time(receipt.created_at)}  "
            f"{receipt.status.value + why:<28}  {_one_line(receipt.author_name, 16):<16}  {text}"
        )
    if not receipts and not args.json:
        print("no receipts" if args.all else "no such receipts; --all lists finished ones too")
    return 0


def _show(args: argparse.Namespace, operator: Operator) -> int:
    receipt = operator.receipt(args.number)
    if receipt is None:
        raise CommandError(f"there is no receipt {args.number}")
    if args.json:
        print(json.dumps(asdict(receipt)))
        return 0
    for name, value in _facts(receipt):
        if value:
            print(f"{name:<10}  {value}")
    print()
    from bdh_otel.escape import escape_lines

    print(escape_lines(receipt.source_body) or "(no text)")
    if receipt.status.value == "quarantined":
        print(
            f"\nIt is not known how far this got. Decide:\n"
            f"  bdh-bridge borgee inbox discard {receipt.ingest_seq}\n"
            f"  bdh-bridge borgee inbox requeue {receipt.ingest_seq} --may-repeat-effects"
        )
    if receipt.outcome == "undelivered":
        print(
            "\nThe turn ran and is not run again. Look in the channel whether the reply is there; "
            "if not, ask the agent there to repeat its last answer."
        )
    return 0


def _facts(receipt: Receipt) -> list[tuple[str, str]]:
    context = " ".join(f"{key}={value}" for key, value in receipt.context.items())
    return [
        ("receipt", str(receipt.ingest_seq)),
        ("status", receipt.status.value),
        ("outcome", receipt.outcome),
        ("error", _escape(receipt.error)),
        ("lane", receipt.dispatch_class.value + (" (/queue)" if receipt.forced_queue else "")),
        ("attempt", str(receipt.attempt)),
        ("received", _time(receipt.created_at)),
        ("changed", _time(receipt.updated_at)),
        ("author", _escape(f"{receipt.author_name} ({receipt.author_id})")),
        ("channel", _escape(f"{receipt.channel_id} ({receipt.channel_type})")),
        ("message", _escape(f"{receipt.message_id} ({receipt.kind})")),
        ("session", _escape(receipt.session_key)),
        ("context", _escape(context)),
        ("trace", receipt.traceparent.split("-")[1] if "-" in receipt.traceparent else ""),
    ]


def _settle(args: argparse.Namespace, operator: Operator) -> int:
    from hermes_borgee.remediation import Unconfirmed

    try:
        decision = operator.settle(args.number, args.action, confirmed=args.may_repeat)
    except Unconfirmed as error:
        raise CommandError(f"{error} with --may-repeat-effects") from error
    print(decision.answer + ("" if decision.by_gateway else " (no gateway is running)"))
    return 0


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _escape(text: Any) -> str:
    from bdh_otel.escape import escape

    return escape(str(text))


def _one_line(text: str, limit: int) -> str:
    from bdh_otel.escape import one_line

    return one_line(text, limit)
