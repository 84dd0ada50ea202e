"""``bdh-bridge router``: who routes, how well, and corrections of what it decided."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bdh_bridge.cli import CommandError, Commands, examples, settings_of

if TYPE_CHECKING:
    from bdh_bridge.paths import BridgePaths
    from bdh_bridge.routing.local.decide import LocalRouter
    from bdh_bridge.routing.local.head import Head


def add(commands: Commands) -> None:
    group = commands.add_parser(
        "router",
        help="the local router: its head, its scores, your corrections",
        **examples(
            ("router status", "who decides, and with which head"),
            ("router feedback last --read no", "the last turn should not have been read"),
            ("router train --with-feedback", "learn from all corrections, for this home alone"),
        ),
    )
    actions = group.add_subparsers(title="actions", metavar="ACTION", required=True)

    status = actions.add_parser("status", help="who decides, and with which head")
    status.add_argument("--json", action="store_true", help="one JSON object")
    status.set_defaults(command=_status)

    evaluate = actions.add_parser("eval", help="how well labelled messages are decided")
    evaluate.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help='a line a message: {"message": "…", "read": true, "store": false}; also "history": '
        '[{"role": "user", "text": "…"}, …], "language", "kind"',
    )
    evaluate.add_argument("--shipped", action="store_true", help="with the shipped head")
    evaluate.add_argument("--errors", action="store_true", help="also name what went wrong")
    evaluate.add_argument("--json", action="store_true", help="one JSON object")
    evaluate.set_defaults(command=_eval)

    feedback = actions.add_parser("feedback", help="say what would have been right")
    feedback.add_argument(
        "turn", nargs="?", help="`last`, a turn's id, or a trace's; none: list all corrections"
    )
    for flag in ("read", "store"):
        feedback.add_argument(f"--{flag}", choices=("yes", "no"), help=f"should it {flag}?")
    feedback.add_argument("--forget", action="store_true", help="drop the turn's correction")
    feedback.set_defaults(command=_feedback)

    train = actions.add_parser("train", help="a head for this home")
    train.add_argument(
        "--with-feedback", action="store_true", help="move the shipped head to your corrections"
    )
    train.add_argument("--reset", action="store_true", help="go back to the shipped head")
    train.set_defaults(command=_train)


def _status(args: argparse.Namespace) -> int:
    from bdh_bridge.routing.local.feedback import corrections
    from bdh_otel.database import StoreError

    loaded = settings_of(args)
    paths = loaded.paths
    found: dict[str, Any] = {"router": loaded.settings.router_mode}
    head, problem = _head(paths)
    if problem:
        found["problem"] = problem
    if head is not None:
        found["head"] = head.version
        found["personal"] = "personal" in head.card
        found["thresholds"] = {flag: part.threshold for flag, part in head.flags.items()}
        found["card"] = head.card
    try:
        found["corrections"] = len(corrections(paths.feedback))
    except StoreError as error:
        found["corrections_problem"] = str(error)
    if args.json:
        print(json.dumps(found))
        return 0
    print(f"router       {found['router']}")
    if head is None:
        print(f"head         none: {problem}")
    else:
        print(f"head         {head.version}{' (yours)' if found['personal'] else ''}")
        if problem:
            print(f"             not yours: {problem}")
        thresholds = ", ".join(f"{flag} from {p:.2f}" for flag, p in found["thresholds"].items())
        print(f"thresholds   {thresholds}")
        data = _part(head.card, "data")
        scores = _part(_part(head.card, "scores"), "agreed")
        print(f"trained on   {data.get('messages')} messages of {data.get('writers')} writers")
        print(
            f"held out     {_percent(scores.get('joint'))} of both flags right, "
            f"{_percent(scores.get('false_read'))} false reads, "
            f"{_percent(scores.get('false_store'))} false stores"
        )
    print(f"corrections  {found.get('corrections', found.get('corrections_problem'))}")
    return 0


def _eval(args: argparse.Namespace) -> int:
    from bdh_bridge.routing.local.evaluate import mechanical_decisions, read_labelled

    paths = settings_of(args).paths
    try:
        cases = read_labelled(args.file)
    except OSError as error:
        raise CommandError(f"{args.file} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise CommandError(f"{args.file}: {error}") from error
    if not cases:
        raise CommandError(f"{args.file} holds no message")
    router = _router(paths, shipped=args.shipped)

    import numpy as np

    from bdh_bridge.routing.local.scores import by_group, scores

    wanted = np.array([[case.read, case.store] for case in cases], dtype=bool)
    local = _decided(router, cases)
    mechanical = mechanical_decisions([case.given for case in cases])
    wrong = [
        (case, _flags(case.read, case.store), _flags(*got))
        for case, got in zip(cases, local.tolist(), strict=True)
        if [case.read, case.store] != got
    ]
    found: dict[str, Any] = {
        "head": router.head.version,
        "local": scores(local, wanted),
        "mechanical": scores(mechanical, wanted),
        "by_language": by_group(local, wanted, [case.language for case in cases]),
        "by_kind": by_group(local, wanted, [case.kind for case in cases]),
        "errors": [{"id": case.id, "wanted": w, "got": g} for case, w, g in wrong],
    }
    if args.json:
        print(json.dumps(found))
        return 0
    rows = [("local", found["local"]), ("mechanical", found["mechanical"])]
    for group in ("language", "kind"):
        rows += [(name, part) for name, part in found[f"by_{group}"].items() if name]
    _print_scores(rows)
    if args.errors:
        from bdh_otel.escape import escape

        print()
        for case, right, said in wrong:
            text = escape(case.given.message[:90])
            print(f"{escape(case.id)}: wanted {right}, got {said}: {text}")
    return 0


def _feedback(args: argparse.Namespace) -> int:
    from bdh_bridge.routing.local import feedback as kept
    from bdh_otel.database import StoreError
    from bdh_otel.reader import SpanReader

    paths = settings_of(args).paths
    try:
        if args.turn is None:
            return _list(kept.corrections(paths.feedback))
        if args.forget:
            if not kept.forget(paths.feedback, args.turn):
                raise CommandError(f"no correction is called {args.turn!r}")
            print("forgotten")
            return 0
        if args.read is None and args.store is None:
            raise CommandError(
                "say --read yes|no, --store yes|no, or both (without a turn: lists what is kept)"
            )
        reader = SpanReader(paths.spans)
        try:
            found = kept.correction_of(
                reader, args.turn, read=_yes(args.read), store=_yes(args.store)
            )
        finally:
            reader.close()
        kept.remember(paths.feedback, found)
    except FileNotFoundError as error:
        raise CommandError("no turn is on record yet") from error
    except (kept.NoSuchTurn, StoreError) as error:
        raise CommandError(str(error)) from error
    print(f"kept: {_said(found)}; `bdh-bridge router train --with-feedback` learns from it")
    return 0


def _list(found: Sequence[Any]) -> int:
    from bdh_otel.escape import escape

    for item in found:
        print(f"{escape(item.turn_id)}  {_said(item)}  {escape(item.message[:70])}")
    if not found:
        print("no corrections")
    return 0


def _train(args: argparse.Namespace) -> int:
    from bdh_bridge.routing.local.feedback import corrections, labelled
    from bdh_otel.database import StoreError

    paths = settings_of(args).paths
    if args.reset:
        try:
            paths.personal_head.unlink(missing_ok=True)
        except OSError as error:
            raise CommandError(f"{paths.personal_head}: {error.strerror}") from error
        print("the shipped head decides from the next start of the agent on")
        return 0
    if not args.with_feedback:
        raise CommandError("say --with-feedback, or --reset")
    try:
        found = corrections(paths.feedback)
    except StoreError as error:
        raise CommandError(str(error)) from error
    if not found:
        raise CommandError("no corrections are kept: `bdh-bridge router feedback` makes them")
    encoder = _router(paths, shipped=True).encoder

    import numpy as np

    from bdh_bridge.routing.local import head as heads
    from bdh_bridge.routing.local.train import Samples, measure, personal

    targets, weights = labelled(found)
    samples = Samples(
        measure([item.conversation for item in found], encoder.encode),
        np.array(targets),
        np.array(weights),
        np.zeros(len(found), dtype=np.int64),
    )
    shipped = heads.load()
    made = personal(shipped, samples)
    try:  # for the owner alone: weights tell something of the words they were made from
        heads.save(made, paths.personal_head, mode=0o600)
    except OSError as error:
        raise CommandError(
            f"{paths.personal_head} can't be written: {error.strerror}; nothing was changed"
        ) from error
    except heads.HeadError as error:
        raise CommandError(f"no head came of these corrections ({error})") from error
    before, after = (_right(head, samples) for head in (shipped, made))
    flags = int(samples.weights.sum())
    print(
        f"{len(found)} correction{'' if len(found) == 1 else 's'}: of {flags} "
        f"flag{'' if flags == 1 else 's'} the shipped head has {before} right, yours {after}"
    )
    print(f"{paths.personal_head} decides from the next start of the agent on")
    return 0


def _right(head: Head, samples: Any) -> int:
    right = 0
    for at, flag in enumerate(("read", "store")):
        part = head.flags[flag]
        for number, features in enumerate(samples.features):
            said = part.probability(features) >= part.threshold
            known = samples.weights[number, at] > 0
            right += bool(known and said == (samples.targets[number, at] > 0.5))
    return right


def _head(paths: BridgePaths) -> tuple[Head | None, str]:
    """The head that decides, with why it isn't this home's own; or None and why there is none."""
    try:
        from bdh_bridge.routing.local import head as heads

        problem = ""
        if os.path.lexists(paths.personal_head):
            try:
                return heads.load(paths.personal_head), ""
            except heads.HeadError as error:
                problem = str(error)  # as the agent does: the shipped one, and a warning
        return heads.load(), problem
    except ImportError:
        return None, "the `local-router` extra is not installed"
    except heads.HeadError as error:
        return None, str(error)


def _router(paths: BridgePaths, *, shipped: bool) -> LocalRouter:
    from bdh_bridge.routing.local.loading import LocalRouterLoader

    loader = LocalRouterLoader(None if shipped else paths.personal_head)
    loader.load()
    router = loader.get()
    if router is None:
        raise CommandError(loader.problem)
    return router


def _decided(router: LocalRouter, cases: Sequence[Any]) -> Any:
    """All decisions, with progress for who waits before a terminal."""
    import numpy as np

    from bdh_bridge.routing.local.evaluate import local_decisions

    shows_progress, parts = sys.stderr.isatty(), []
    for start in range(0, len(cases), 200):
        parts.append(local_decisions(router, cases[start : start + 200]))
        if shows_progress:
            done = min(start + 200, len(cases))
            print(f"\r\x1b[K{done:,} of {len(cases):,}", end="", file=sys.stderr, flush=True)
    if shows_progress:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return np.concatenate(parts)


def _print_scores(rows: Sequence[tuple[str, Any]]) -> None:
    columns = ("messages", "joint", "read", "store", "false_read", "false_store")
    from bdh_otel.escape import one_line

    heads = ("messages", "both right", "read", "store", "false reads", "false stores")
    print(f"{'':14}" + "".join(f"{name:>13}" for name in heads))
    for name, found in rows:
        cells = [str(found["messages"]), *(_percent(found[key]) for key in columns[1:])]
        print(f"{one_line(name, 13):14}" + "".join(f"{cell:>13}" for cell in cells))


def _percent(share: Any) -> str:
    return f"{share:.1%}" if isinstance(share, int | float) else "-"


def _part(whole: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of a head's card, which is a file that anybody may have written."""
    found = whole.get(name)
    return found if isinstance(found, Mapping) else {}


def _yes(said: str | None) -> bool | None:
    return None if said is None else said == "yes"


def _said(item: Any) -> str:
    parts = [(flag, getattr(item, flag)) for flag in ("read", "store")]
    return ", ".join(f"{flag} {'yes' if yes else 'no'}" for flag, yes in parts if yes is not None)


def _flags(read: bool, store: bool) -> str:
    return "+".join(name for name, on in (("read", read), ("store", store)) if on) or "neither"
