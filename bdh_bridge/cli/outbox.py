"""``bdh-bridge outbox``: what was learned and is on its way to the graph."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from bdh_bridge.cli import CommandError, Commands, settings_of

if TYPE_CHECKING:
    from bdh_bridge.outbox.review import Review, Selection
    from bdh_bridge.outbox.states import State, Write
    from bdh_bridge.outbox.store import Outbox
    from bdh_bridge.outbox.transitions import Transition
    from bdh_bridge.settings import Loaded

T = TypeVar("T")

_UNITS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_STATES = (
    "pending", "sending", "delivered", "unconfirmed", "failed", "in_doubt", "quarantined",
    "discarded",
)  # fmt: skip


def add(commands: Commands) -> None:
    outbox = commands.add_parser("outbox", help="see and steer what waits for the graph")
    actions = outbox.add_subparsers(title="actions", metavar="ACTION", required=True)

    listing = actions.add_parser("list", help="writes, oldest first")
    _add_filters(listing)
    listing.add_argument("-n", type=int, default=50, metavar="N", help="at most (default 50)")
    listing.set_defaults(command=_list)

    show = actions.add_parser("show", help="one write with its text")
    show.add_argument("id", help="its id, or the start of it")
    show.set_defaults(command=_show)

    stats = actions.add_parser("stats", help="how many are in which state")
    stats.set_defaults(command=_stats)

    deliver = actions.add_parser("deliver", help="deliver now what is waiting")
    deliver.set_defaults(command=_deliver)

    discard = actions.add_parser("discard", help="drop writes; they stay listed without text")
    requeue = actions.add_parser("requeue", help="deliver writes again")
    for action in (discard, requeue):
        action.add_argument("ids", nargs="*", metavar="ID", help="ids, or the starts of them")
        _add_filters(action)
    requeue.add_argument(
        "--may-learn-twice",
        action="store_true",
        help="confirm, for writes of which the graph may have learned already",
    )
    discard.set_defaults(command=_discard)
    requeue.set_defaults(command=_requeue)
    for action in (listing, show, stats, deliver, discard, requeue):
        action.add_argument("--json", action="store_true", help="print JSON, one object a line")


def _add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state", action="append", choices=_STATES, metavar="STATE", help=", ".join(_STATES)
    )
    parser.add_argument(
        "--older-than", type=_duration, metavar="AGE", help="such as 90s, 30m, 12h, 2d, 1w"
    )


def _list(args: argparse.Namespace) -> int:
    loaded = settings_of(args)
    if args.n < 1:
        raise CommandError("-n needs a number of at least 1")
    writes = _with_outbox(loaded, lambda outbox: _review(outbox).select(_selection(args, args.n)))
    if args.json:
        for write in writes or []:
            print(json.dumps(_as_json(write, loaded), ensure_ascii=True))
        return 0
    if not writes:
        print("no such writes" if args.state or args.older_than else "the outbox is empty")
        return 0
    now = time.time()
    for write in writes:
        print(_line(write, loaded, now))
    return 0


def _show(args: argparse.Namespace) -> int:
    from bdh_otel.escape import escape, escape_lines

    loaded = settings_of(args)
    write = _one(loaded, args.id)
    values = _as_json(write, loaded, text=True)
    if args.json:
        print(json.dumps(values, ensure_ascii=True))
        return 0
    for name, value in values.items():
        if name in ("query", "user_prompt") or value in (None, ""):
            continue
        if name.endswith("_at") or name == "settle_until":
            value = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value)) if value else ""
        print(f"{name:16} {escape(str(value))}")
    for name in ("query", "user_prompt"):
        if values[name]:
            print(f"\n{name}:\n{escape_lines(values[name])}")
    return 0


def _stats(args: argparse.Namespace) -> int:
    from bdh_bridge.outbox.review import Selection
    from bdh_bridge.outbox.states import State

    loaded = settings_of(args)

    def look(outbox: Outbox) -> tuple[Any, int]:
        pending = Selection(states=(State.PENDING,))
        held = sum(_is_held(write, loaded) for write in _review(outbox).select(pending))
        return outbox.stats(wait=5.0), held

    found = _with_outbox(loaded, look)
    if found is None:
        values: dict[str, Any] = {"by_state": {}, "open_rows": 0, "bytes": 0, "held": 0}
        values |= {"oldest_pending_age": None, "spooled": 0}
    else:
        stats, held = found
        values = {**asdict(stats), "held": held}
    if args.json:
        print(json.dumps(values))
        return 0
    for state in _STATES:
        if values["by_state"].get(state):
            print(f"{state:12} {values['by_state'][state]}")
    print(f"{'open':12} {values['open_rows']} of {loaded.settings.outbox_max_rows}")
    print(f"{'text kept':12} {values['bytes']} bytes")
    if values["spooled"]:
        print(f"{'spooled':12} {values['spooled']} (the worker takes them in)")
    if values["held"]:
        print(f"{'held':12} {values['held']} (their server is not the configured one)")
    if values["oldest_pending_age"] is not None:
        print(f"{'oldest waits':12} {_age(values['oldest_pending_age'])}")
    return 0


def _deliver(args: argparse.Namespace) -> int:
    """Deliver here, or let the worker that runs do it; ends when nothing can be done now."""
    from bdh_bridge.worker.once import deliver_now

    loaded = settings_of(args)
    before = _counts(loaded)
    finished = deliver_now(loaded, _progress if sys.stderr.isatty() else None)
    after = _counts(loaded)
    delivered = after.get("delivered", 0) - before.get("delivered", 0)
    waiting = {state: count for state, count in after.items() if state not in _SETTLED}
    if args.json:
        print(json.dumps({"delivered": delivered, "finished": finished, "by_state": after}))
    else:
        rest = ", ".join(f"{count} {state}" for state, count in waiting.items() if count)
        print(f"{delivered} delivered" + (f"; still there: {rest}" if rest else ""))
    return 0 if finished else 1


_SETTLED = ("delivered", "discarded")


def _discard(args: argparse.Namespace) -> int:
    from bdh_bridge.outbox.review import DISCARDABLE

    loaded = settings_of(args)
    writes = _chosen(loaded, args)
    _refuse_others(writes, DISCARDABLE, "can be discarded")
    moved = _with_outbox(loaded, lambda outbox: _review(outbox).discard(writes)) or []
    _report(loaded, args, moved, "discarded")
    return 0


def _requeue(args: argparse.Namespace) -> int:
    from bdh_bridge.outbox.review import REQUEUEABLE, RISKY
    from bdh_bridge.worker.launch import ensure_worker

    loaded = settings_of(args)
    writes = _chosen(loaded, args)
    _refuse_others(writes, REQUEUEABLE, "can be requeued")
    risky = sum(write.state in RISKY for write in writes)
    if risky and not args.may_learn_twice:
        raise CommandError(
            f"the graph may have learned from {risky} of these {len(writes)} already; "
            "to deliver them again all the same, add --may-learn-twice"
        )
    moved = _with_outbox(loaded, lambda outbox: _review(outbox).requeue(writes)) or []
    _report(loaded, args, moved, "requeued")
    if moved:
        ensure_worker(loaded)
    return 0


def _report(
    loaded: Loaded, args: argparse.Namespace, moved: Sequence[Transition], what: str
) -> None:
    from bdh_bridge.worker.trace import record_all

    record_all(loaded, moved)
    if args.json:
        for transition in moved:
            print(json.dumps(_as_json(transition.after, loaded), ensure_ascii=True))
    else:
        print(f"{len(moved)} {what}")


def _chosen(loaded: Loaded, args: argparse.Namespace) -> list[Write]:
    """The writes that the arguments name; never all of them by accident."""
    if args.ids and (args.state or args.older_than is not None):
        raise CommandError("name ids, or choose with --state and --older-than, but not both")
    if args.ids:
        return [_one(loaded, prefix) for prefix in dict.fromkeys(args.ids)]
    if not args.state:
        raise CommandError("name ids, or choose with --state (and --older-than)")
    selection = _selection(args, None)
    return _with_outbox(loaded, lambda outbox: _review(outbox).select(selection)) or []


def _refuse_others(writes: Sequence[Write], allowed: frozenset[State], what: str) -> None:
    wrong = next((write for write in writes if write.state not in allowed), None)
    if wrong is not None:
        states = ", ".join(sorted(allowed))
        raise CommandError(f"{wrong.id} is {wrong.state}; only {states} {what}")


def _one(loaded: Loaded, prefix: str) -> Write:
    found = _with_outbox(loaded, lambda outbox: _review(outbox).find(prefix)) or []
    if not found:
        raise CommandError(f"there is no write {prefix!r}")
    if len(found) > 1:
        shown = ", ".join(write.id[:13] for write in found)
        raise CommandError(f"{prefix!r} is the start of several ids: {shown}")
    return found[0]


def _selection(args: argparse.Namespace, limit: int | None) -> Selection:
    from bdh_bridge.outbox.review import Selection
    from bdh_bridge.outbox.states import State

    states = tuple(State(state) for state in args.state or ())
    return Selection(states=states, older_than=args.older_than, limit=limit)


def _counts(loaded: Loaded) -> dict[str, int]:
    stats = _with_outbox(loaded, lambda outbox: outbox.stats(wait=5.0))
    return {} if stats is None else {str(state): n for state, n in stats.by_state.items()}


def _with_outbox(loaded: Loaded, work: Callable[[Outbox], T]) -> T | None:
    """What ``work`` returns; None if there is no outbox yet."""
    from bdh_bridge.outbox.store import Outbox
    from bdh_otel.database import StoreError

    paths = loaded.paths
    outbox = Outbox(paths.outbox, spool=paths.outbox_spool)
    if not paths.outbox.exists() and not outbox.spool.usage()[0]:
        return None
    try:
        return work(outbox)
    except StoreError as error:
        raise CommandError(str(error)) from error
    finally:
        outbox.close()


def _review(outbox: Outbox) -> Review:
    from bdh_bridge.outbox.review import Review

    return Review(outbox)


def _as_json(write: Write, loaded: Loaded, *, text: bool = False) -> dict[str, Any]:
    """The fields of a write and whether it is held; its text only on request."""
    values = asdict(write)
    for name in ("claim_token", "claim_owner", "claimed_from", "next_at"):
        del values[name]
    if not text:
        del values["query"], values["user_prompt"]
    values["held"] = _is_held(write, loaded)
    return values


def _is_held(write: Write, loaded: Loaded) -> bool:
    return write.state == "pending" and write.destination != loaded.settings.api_url


def _line(write: Write, loaded: Loaded, now: float) -> str:
    from bdh_otel.escape import one_line

    state = "held" if _is_held(write, loaded) else str(write.state)
    parts = [
        write.id[:8],
        f"{state:11}",
        f"{_age(write.age(now)):>7}",
        f"{write.attempts:>3}x",
        one_line(write.vault_id or "(default)", 16),
        one_line(write.query, 60) if write.query else "",
    ]
    if write.error_type:
        parts.append(f"[{one_line(write.error_type, 30)}]")
    elif write.degraded:
        parts.append("[degraded]")
    return "  ".join(part for part in parts if part)


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _duration(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no age; write it like 90s, 30m, 12h or 2d")
    return float(match[1]) * _UNITS[match[2]]


def _progress(waiting: int) -> None:
    print(f"\r{waiting} waiting  ", end="" if waiting else "\r", file=sys.stderr, flush=True)
