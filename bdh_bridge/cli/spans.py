"""``bdh-bridge spans``: what the bridge decided, as trees on a terminal or as JSON lines.

With ``--json`` every line is one object with the fields of
:class:`bdh_otel.reader.StoredSpan` (``docs/telemetry.md``), ASCII only.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from bdh_bridge.cli import CommandError, Commands, settings_of, spans_out

if TYPE_CHECKING:
    from bdh_otel.reader import SpanReader, StoredSpan

_POLL = 0.2
#: Seconds after which spans are shown although no turn of theirs has ended.
_PATIENCE = 2.0


def add(commands: Commands) -> None:
    group = commands.add_parser("spans", help="show what was decided, turn by turn")
    actions = group.add_subparsers(title="actions", metavar="ACTION", required=True)

    tail = actions.add_parser("tail", help="the latest turns, oldest of them first")
    tail.add_argument("-n", type=_count, default=5, metavar="N", help="how many turns (default: 5)")
    tail.add_argument("-f", "--follow", action="store_true", help="go on with new ones as they end")
    tail.add_argument("--session", metavar="ID", help="only turns of this session")
    tail.add_argument("-a", "--all", action="store_true", help="a line for every gate that passed")
    tail.add_argument("--json", action="store_true", help="one JSON object a span and line")
    tail.set_defaults(command=_tail)

    trace = actions.add_parser("trace", help="one trace")
    trace.add_argument("id", help="the start of a trace's or span's id, or `last`")
    trace.add_argument("--json", action="store_true", help="one JSON object a span and line")
    trace.set_defaults(command=_trace)

    check = actions.add_parser("check", help="what the store holds, and whether it is intact")
    check.set_defaults(command=_check)

    spans_out.add(actions)


def _tail(args: argparse.Namespace) -> int:
    from bdh_otel.database import StoreError
    from bdh_otel.reader import SpanReader

    reader = SpanReader(settings_of(args).paths.spans)
    show = _Printer(reader, as_json=args.json, fold=not args.all)
    seen = 0
    try:
        try:
            seen = reader.last_seq()
            turns = reader.turns(args.n, session=args.session)
            # Another plugin's trace may hold several turns: it is shown once.
            for trace_id in dict.fromkeys(turn.root.trace_id for turn in reversed(turns)):
                show.trace(trace_id)
            if not turns and args.n and not args.follow:
                _say("No turns on record yet" + (" for this session." if args.session else "."))
            lost = reader.status().dropped
            if lost:
                _say(f"{lost:,} spans were lost while the store could not be written.")
        except FileNotFoundError:
            _say(f"No spans yet: {reader.path} appears with the first turn.")
        if args.follow:
            _follow(reader, show, seen, args.session)
    except StoreError as error:
        raise CommandError(str(error)) from error
    return 0


def _follow(reader: SpanReader, show: _Printer, seen: int, session: str | None) -> None:
    """Show every trace when its turn ends, and what comes later (a delivery) on its own."""
    first_seen: dict[str, float] = {}
    while True:
        try:
            if reader.last_seq() < seen:  # a new file, after the old one was moved away
                seen = 0
            fresh = reader.after(seen, session=session)
        except FileNotFoundError:
            fresh, seen = [], 0
        if fresh:
            seen = fresh[-1].seq
        show.fresh(fresh, first_seen)
        time.sleep(_POLL)


class _Printer:
    """Writes traces to stdout, each span once when following."""

    def __init__(self, reader: SpanReader, *, as_json: bool, fold: bool = False) -> None:
        from bdh_otel.tree import colours_wanted

        self._reader = reader
        self._json = as_json
        self._fold = fold
        self._colour = colours_wanted(sys.stdout)
        self._shown: dict[str, int] = {}
        """Trace → the highest sequence number of its spans that was shown."""

    def trace(self, trace_id: str) -> None:
        spans = self._reader.trace(trace_id)
        self._write(spans)
        self._shown[trace_id] = max((span.seq for span in spans), default=0)
        if len(self._shown) > 1_000:
            del self._shown[next(iter(self._shown))]

    def fresh(self, spans: list[StoredSpan], first_seen: dict[str, float]) -> None:
        """``spans`` are new in the store; ``first_seen`` is what still waits for its turn's end."""
        from bdh_otel import names

        spans = [span for span in spans if span.seq > self._shown.get(span.trace_id, 0)]
        if self._json:
            self._write(spans)
            return
        now = time.monotonic()
        late = [span for span in spans if span.trace_id in self._shown]
        if late:
            self._write(late, late=True)
        for span in spans:
            if span.trace_id not in self._shown:
                first_seen.setdefault(span.trace_id, now)
        ended = {span.trace_id for span in spans if span.name == names.TURN and span.end_ns}
        for trace_id, since in list(first_seen.items()):
            if trace_id in ended or (now - since > _PATIENCE and not self._turn_open(trace_id)):
                del first_seen[trace_id]
                self.trace(trace_id)

    def _turn_open(self, trace_id: str) -> bool:
        return any(span.end_ns is None for span in self._reader.trace(trace_id))

    def _write(self, spans: Iterable[StoredSpan], *, late: bool = False) -> None:
        from bdh_otel.tree import render
        from bdh_otel.wrap import width_of

        if self._json:
            for span in spans:
                print(json.dumps(span.as_json()))
        else:
            print(
                render(
                    spans,
                    colour=self._colour,
                    late=late,
                    fold=self._fold,
                    width=width_of(sys.stdout),
                )
            )
        sys.stdout.flush()


def _trace(args: argparse.Namespace) -> int:
    from bdh_otel.database import StoreError
    from bdh_otel.escape import one_line
    from bdh_otel.reader import SpanReader

    reader = SpanReader(settings_of(args).paths.spans)
    try:
        if args.id == "last":
            found = [turn.root.trace_id for turn in reader.turns(1)]
        else:
            found = reader.find_traces(args.id)
        if not found:
            raise CommandError(f"no trace or span starts with {one_line(args.id, 40)}")
        if len(found) > 1:
            listed = ", ".join(found[:5]) + (", …" if len(found) > 5 else "")
            raise CommandError(f"{one_line(args.id, 40)} is ambiguous: {listed}")
        _Printer(reader, as_json=args.json).trace(found[0])
    except FileNotFoundError as error:
        raise CommandError(f"no spans yet: {reader.path} appears with the first turn") from error
    except StoreError as error:
        raise CommandError(str(error)) from error
    return 0


def _check(args: argparse.Namespace) -> int:
    from bdh_otel.database import StoreError
    from bdh_otel.reader import SpanReader

    reader = SpanReader(settings_of(args).paths.spans)
    try:
        problems, status = reader.problems(), reader.status()
    except FileNotFoundError as error:
        raise CommandError(f"no spans yet: {reader.path} appears with the first turn") from error
    except StoreError as error:
        raise CommandError(str(error)) from error
    print(
        f"{reader.path}: {status.spans:,} spans, {status.open:,} of them open, "
        f"{status.dropped:,} lost, {status.bytes / 1e6:,.1f} MB"
    )
    for problem in problems:
        print(f"damage: {problem}")
    if not problems:
        print("no damage found")
    return 1 if problems else 0


def _say(text: str) -> None:
    from bdh_otel.escape import escape_lines

    print(escape_lines(text), file=sys.stderr)


def _count(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 10_000:
        raise argparse.ArgumentTypeError("must be from 0 to 10000")
    return value
