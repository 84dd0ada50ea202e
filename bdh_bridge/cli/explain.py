"""``bdh-bridge explain``: what the bridge would do with a message, and why.

A dry run (:mod:`bdh_bridge.dry_run`): nothing is written or learned.

Input of ``--jsonl``, one JSON object a line (:func:`read_questions`); a JSON string is a message
alone:

=============================================  ===================================================
``message`` (or ``user_message``, ``query``)   the user's message: text, or a list of content blocks
``id``                                         given back with the result; default: the line number
``history`` (or ``conversation_history``)      the messages before it: ``{"role", "content"}``, …
``platform``, ``sender``, ``session``          default: the command's options
=============================================  ===================================================

Other keys are ignored. ``--history FILE`` holds such a list, or an object with one under
``history`` or ``messages``, or one message a line.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bdh_bridge.cli import CommandError, Commands, settings_of
from bdh_bridge.cli.explain_last import explain_last

if TYPE_CHECKING:
    from bdh_bridge.dry_run import DryRun, Explanation, Question
    from bdh_otel.reader import StoredSpan

#: Bytes of one line, and of a history file.
MAX_LINE = 4 * 1024 * 1024
MAX_HISTORY = 64 * 1024 * 1024

_MESSAGE = ("message", "user_message", "query")
_HISTORY = ("history", "conversation_history")


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "explain",
        help="what the bridge would do with a message, and why",
        description="A dry run of every gate and of the routing: nothing is written or learned. "
        "Of a single message also the graph is asked (learn: false), and the context is shown.",
        epilog='A line of --jsonl: {"id": 7, "message": "…", "history": [{"role": "user", '
        '"content": "…"}], "platform": "cli", "sender": "…"}; only "message" is needed. '
        "--history holds such a list, or one message a line.",
    )
    parser.add_argument("message", nargs="?", help="the message; `last`: why the last turn went so")
    parser.add_argument(
        "--history", type=Path, metavar="FILE", help="the conversation before it, as JSON"
    )
    parser.add_argument("--jsonl", metavar="FILE", help="many messages, one a line; `-`: stdin")
    parser.add_argument("--platform", default="cli", metavar="P", help="as if from there")
    parser.add_argument("--sender", default="", metavar="S", help="as if from this sender")
    parser.add_argument(
        "--session", default="explain", metavar="ID", help="as if in this session (pauses, jobs)"
    )
    graph = parser.add_mutually_exclusive_group()
    graph.add_argument("--graph", action="store_true", help="ask the graph for --jsonl, too")
    graph.add_argument("--no-graph", action="store_true", help="don't ask the graph")
    parser.add_argument("--json", action="store_true", help="print one JSON object, ASCII only")
    parser.set_defaults(command=_explain)


def _explain(args: argparse.Namespace) -> int:
    if (args.message is None) == (args.jsonl is None):
        raise CommandError("give one of: a message, last, --jsonl FILE")
    if args.message == "last" and args.history is None:  # as a message it would say nothing
        return explain_last(args)
    if args.jsonl is not None and args.history is not None:
        raise CommandError("--history goes with a single message; in --jsonl each line has its own")
    ask_graph = args.graph if args.jsonl is not None else not args.no_graph
    dry_run = _dry_run(args, ask_graph=ask_graph)
    try:
        return _many(args, dry_run) if args.jsonl is not None else _one(args, dry_run)
    finally:
        dry_run.close()


def _dry_run(args: argparse.Namespace, *, ask_graph: bool) -> DryRun:
    from bdh_bridge.dry_run import DryRun
    from bdh_bridge.host import job_prompt_of, nous_credentials_of

    loaded = settings_of(args)
    home = loaded.paths.hermes_home
    return DryRun(
        loaded,
        ask_graph=ask_graph,
        job_prompt=job_prompt_of(home),
        nous_credentials=nous_credentials_of(home),
    )


def _one(args: argparse.Namespace, dry_run: DryRun) -> int:
    from bdh_bridge.dry_run import Question

    history = _read_history(args.history) if args.history else []
    found = dry_run.explain(
        Question(args.message, history, args.platform, args.sender, args.session)
    )
    if args.json:
        print(json.dumps(as_json(found)))
    else:
        _print(found)
    return 0


def _many(args: argparse.Namespace, dry_run: DryRun) -> int:
    bad = done = 0
    shows_progress = sys.stderr.isatty() and not sys.stdout.isatty()
    with _opened(args.jsonl) as stream:
        for number, item in read_questions(stream, args.platform, args.sender, args.session):
            if isinstance(item, str):
                bad += 1
                print(f"line {number}: {item}", file=sys.stderr)
                continue
            identifier, question = item
            print(json.dumps({"id": identifier, **as_json(dry_run.explain(question))}), flush=True)
            done += 1
            if shows_progress:
                print(f"\r\x1b[K{done} explained", end="", file=sys.stderr, flush=True)
    if shows_progress and done:
        print(file=sys.stderr)
    return 1 if bad else 0


# What is printed


def as_json(found: Explanation) -> dict[str, Any]:
    """The result as one object; the decisions and spans in the order in which they were made."""
    from bdh_otel import attributes as attr
    from bdh_otel import names

    return {
        "should_retrieve": found.should_retrieve,
        "store_candidate": found.store_candidate,
        "router": found.router or None,
        "read_reason": found.read_reason,
        "write_reason": found.write_reason,
        "queries": list(found.queries),
        "write_query": found.write_query or None,
        "read_outcome": found.read_outcome or None,
        "context": found.context or None,
        "decisions": [
            _fields(
                span,
                gate=attr.GATE_NAME,
                path=attr.GATE_PATH,
                decision=attr.GATE_DECISION,
                reason=attr.GATE_REASON,
                rule=attr.GATE_RULE,
                line=attr.GATE_RULE_LINE,
                value=attr.GATE_VALUE,
                threshold=attr.GATE_THRESHOLD,
                unit=attr.GATE_UNIT,
            )
            for span in map(_without_made_up_length, found.spans)
            if span.gate
        ],
        "route": next(
            (
                _fields(
                    span,
                    reason=attr.ROUTE_REASON,
                    read_probability=attr.ROUTE_RETRIEVE_PROBABILITY,
                    read_threshold=attr.ROUTE_RETRIEVE_THRESHOLD,
                    store_probability=attr.ROUTE_STORE_PROBABILITY,
                    store_threshold=attr.ROUTE_STORE_THRESHOLD,
                    grey_zone=attr.ROUTE_GREY_ZONE,
                    features=attr.ROUTE_FEATURES,
                )
                for span in found.spans
                if span.name == names.ROUTE
            ),
            None,
        ),
        "rewrite": next(
            (
                _fields(
                    span,
                    should_retrieve=attr.REWRITE_SHOULD_RETRIEVE,
                    store_candidate=attr.REWRITE_STORE_CANDIDATE,
                    confidence=attr.REWRITE_CONFIDENCE,
                    knowledge_types=attr.REWRITE_KNOWLEDGE_TYPES,
                    variants=attr.REWRITE_VARIANTS,
                    fallback=attr.REWRITE_FALLBACK,
                )
                for span in found.spans
                if span.name == names.REWRITE
            ),
            None,
        ),
        "hops": [
            {
                **_fields(
                    span,
                    provider=attr.PROVIDER_NAME,
                    model=attr.REQUEST_MODEL,
                    outcome=attr.HOP_OUTCOME,
                    status=attr.HTTP_STATUS_CODE,
                    detail=attr.HOP_ERROR,
                ),
                "seconds": round((span.duration_ns or 0) / 1e9, 3),
            }
            for span in found.spans
            if span.type == "chat"
        ],
        "retrievals": [
            _fields(
                span,
                query=attr.RETRIEVAL_QUERY,
                outcome=attr.RETRIEVAL_OUTCOME,
                error=attr.RETRIEVAL_ERROR,
                notes=attr.RETRIEVAL_NOTES,
                hybrid_top=attr.RETRIEVAL_HYBRID_TOP,
                vector_top=attr.RETRIEVAL_VECTOR_TOP,
                bm25_top=attr.RETRIEVAL_BM25_TOP,
                matched_terms=attr.RETRIEVAL_MATCHED_TERMS,
                query_terms=attr.RETRIEVAL_QUERY_TERMS,
            )
            for span in found.spans
            if span.type == "retrieval"
        ],
    }


def _fields(span: StoredSpan, **names_of: str) -> dict[str, Any]:
    return {
        field: span.attributes[name] for field, name in names_of.items() if name in span.attributes
    }


def _print(found: Explanation) -> None:
    from bdh_bridge.gates.answer import MINIMUM_CHARACTERS
    from bdh_bridge.operator.wording import short
    from bdh_otel.escape import escape, escape_lines
    from bdh_otel.tree import colours_wanted, render
    from bdh_otel.wrap import width_of

    print(f"read   {_verdict(found.should_retrieve, found.read_reason)}")
    for query in found.queries:
        print(f"       asks the graph: {escape(query)}")
    if found.read_outcome:
        print(f"       outcome: {short(found.read_outcome)}")
    routed = not found.store_candidate or found.router in ("rewrite", "local")
    why = found.write_reason if routed else "every gate allows it"
    print(f"store  {_verdict(found.store_candidate, why)}")
    if found.store_candidate:
        print(f"       as: {escape(found.write_query)}")
        print(
            f"       if the answer to come is final and has {MINIMUM_CHARACTERS} characters or more"
        )
    print(f"route  {found.router or 'none: a gate came first'}")
    print()
    print(
        render(
            [_without_made_up_length(span) for span in found.spans],
            colour=colours_wanted(sys.stdout),
            width=width_of(sys.stdout),
        ),
        end="",
    )
    if found.context:
        print(f"\nContext for the model ({len(found.context):,} characters):\n")
        print(escape_lines(found.context))


def _without_made_up_length(span: StoredSpan) -> StoredSpan:
    """There is no answer yet: its gate was shown one that just passes, of which nothing is told."""
    from bdh_bridge.gates import answer
    from bdh_otel import attributes as attr

    if span.gate != answer.NAME:
        return span
    made_up = (attr.GATE_VALUE, attr.GATE_THRESHOLD, attr.GATE_UNIT)
    kept = {name: value for name, value in span.attributes.items() if name not in made_up}
    return replace(span, attributes={**kept, attr.GATE_REASON: "assumed"})


def _verdict(yes: bool, reason: str) -> str:
    return f"{'yes' if yes else 'no'} ({reason.replace('_', ' ')})"


# What is read


def read_questions(
    lines: Iterable[bytes], platform: str, sender: str, session: str
) -> Iterator[tuple[int, tuple[Any, Question] | str]]:
    """Line numbers from 1, each with an id and its question, or with a sentence on what is wrong.

    Blank lines are left out. The last three are the defaults.
    """
    from bdh_bridge.dry_run import Question

    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            given = _parse(line)
            if isinstance(given, str):
                given = {"message": given}
            if not isinstance(given, dict):
                raise ValueError("a JSON object or string is wanted")
            message = _message(given)
            history: Any = next((given[key] for key in _HISTORY if given.get(key) is not None), [])
            question = Question(
                message,
                _checked_history(history),
                _text(given, "platform") or platform,
                _text(given, "sender") or sender,
                _text(given, "session") or session,
            )
        except ValueError as error:
            yield number, str(error)
            continue
        yield number, (given.get("id", number), question)


def _parse(line: bytes) -> Any:
    if len(line) > MAX_LINE:
        raise ValueError(f"over {MAX_LINE:,} bytes")
    try:
        return json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except (json.JSONDecodeError, RecursionError) as error:
        reason = f": {error.msg}" if isinstance(error, json.JSONDecodeError) else ""
        raise ValueError(f"not JSON{reason}") from None


def _message(given: dict[str, Any]) -> Any:
    for key in _MESSAGE:
        message = given.get(key)
        if isinstance(message, str | list):
            return message
        if message is not None:
            raise ValueError(f'"{key}" must be text or a list of content blocks')
    raise ValueError('"message" is missing')


def _text(given: dict[str, Any], key: str) -> str:
    value = given.get(key)
    if value is None or isinstance(value, str):
        return value or ""
    raise ValueError(f'"{key}" must be text')


def _checked_history(history: Any) -> list[dict[str, Any]]:
    if not isinstance(history, list):
        raise ValueError('the history must be a list of {"role", "content"}')
    for index, item in enumerate(history, start=1):
        if not isinstance(item, dict) or not isinstance(item.get("role"), str):
            raise ValueError(f'message {index} of the history is no {{"role", "content"}}')
    return history


def _read_history(path: Path) -> list[dict[str, Any]]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CommandError(f"{path} can't be read: {error.strerror}") from error
    if len(data) > MAX_HISTORY:
        raise CommandError(f"{path} is over {MAX_HISTORY:,} bytes")
    try:
        history = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is not UTF-8") from error
    except (ValueError, RecursionError):
        history = _history_lines(path, data)
    if isinstance(history, dict) and "role" not in history:
        history = next((history[key] for key in (*_HISTORY, "messages") if key in history), history)
    try:
        return _checked_history([history] if isinstance(history, dict) else history)
    except ValueError as error:
        raise CommandError(f"{path}: {error}") from error


def _history_lines(path: Path, data: bytes) -> list[Any]:
    messages = []
    for number, line in enumerate(data.splitlines(), start=1):
        if line.strip():
            try:
                messages.append(_parse(line))
            except ValueError as error:
                raise CommandError(f"{path}, line {number}: {error}") from error
    return messages


def _opened(name: str) -> IO[bytes]:
    if name == "-":
        return sys.stdin.buffer
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise CommandError(f"{name} can't be read: {error.strerror}") from error
