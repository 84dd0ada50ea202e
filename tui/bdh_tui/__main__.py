"""``bdh-bridge-tui``: see ``--help``."""

from __future__ import annotations

import _thread
import argparse
import gc
import io
import os
import re
import sys
from pathlib import Path

from bdh_bridge import __version__
from bdh_bridge.settings import Loaded, load
from bdh_tui import leaving
from bdh_tui.sources import Source, SourceError
from bdh_tui.sources.choose import HELP, choose
from bdh_tui.text import plain

SCREENS = ("live", "turn", "decisions", "providers", "graph", "blacklist", "outbox", "borgee")


def main(argv: list[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else argv
    arguments = _parser().parse_args(given)
    try:
        if arguments.serve is not None:
            return _serve(given, arguments)
        loaded = load(arguments.home, profile=arguments.profile)
        source = choose(arguments.source, loaded.paths)
        if not arguments.plain and arguments.screenshot is None and not _has_terminal():
            source.stop()
            raise SourceError("this is no terminal; --plain tells the turns as lines of text")
        source.start()
    except (ValueError, SourceError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if arguments.plain:
        return _plain(loaded, source, arguments.n)
    # The reading threads decode much; the screen must not wait 5 ms for each turn of theirs.
    sys.setswitchinterval(0.001)
    gc.disable()  # importing makes no garbage
    from bdh_tui.app import BridgeApp

    app = BridgeApp(loaded, source, arguments.screen)
    # Thousands of small objects a second come and go: the collector needn't look through all that
    # was imported each time.
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()
    if arguments.screenshot is not None:
        from bdh_tui import picture

        try:
            picture.take(app, arguments.screenshot, arguments.size, tuple(arguments.keys))
        except OSError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        return app.return_code or 0
    app.run()
    return app.return_code or 0


def _plain(loaded: Loaded, source: Source, latest: int) -> int:
    from bdh_tui import ticker

    for warning in loaded.warnings:
        print(f"warning: {plain(warning, 300)}", file=sys.stderr)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a pipe's encoding may lack the marks
    leaving.interrupted_by_sigterm()
    # A reader that went away would else be noticed with the next turn only.
    pipe = leaving.Lifeline(1, _thread.interrupt_main, source.stop)
    pipe.start()
    try:
        ticker.run(loaded, source, lambda text: print(text, flush=True), latest=latest)
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    finally:
        pipe.stop()
    try:
        sys.stdout.flush()
    except OSError:  # what is left of a line has no reader, at the end of the program either
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bdh-bridge-tui",
        description="Watch and steer the bridge between Hermes and the graph.",
        allow_abbrev=False,  # --serve is looked for by its name
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("--home", type=Path, help="Hermes home (default: HERMES_HOME or ~/.hermes)")
    parser.add_argument("--profile", help="Hermes profile below that home")
    parser.add_argument("--source", default="local", metavar="SOURCE", help=HELP)
    parser.add_argument(
        "--screen", default="live", choices=SCREENS, help="the screen to begin with"
    )
    parser.add_argument("--plain", action="store_true", help="lines of text instead of a screen")
    parser.add_argument(
        "-n",
        type=_amount,
        default=10,
        metavar="N",
        help="turns that --plain begins with (default: 10)",
    )
    parser.add_argument(
        "--screenshot", type=Path, metavar="FILE", help="write one screen as SVG, and end"
    )
    parser.add_argument(
        "--size", type=_size, default=(120, 40), metavar="WxH", help="its cells (default: 120x40)"
    )
    parser.add_argument(
        "--keys", type=str.split, default=[], metavar="KEYS", help="keys to press before it"
    )
    parser.add_argument(
        "--serve",
        type=int,
        nargs="?",
        const=8000,
        metavar="PORT",
        help="offer it in a browser on this machine (needs the extra 'serve'; default port: 8000)",
    )
    return parser


def _amount(text: str) -> int:
    if not text.isdecimal() or len(text) > 6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of turns")
    return int(text)


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{2,3})x(\d{2,3})", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 120x40")
    return int(match[1]), int(match[2])


def _has_terminal() -> bool:
    """Textual draws on stderr and reads from stdin; in a browser, its server stands for both."""
    return "TEXTUAL_DRIVER" in os.environ or (sys.stdin.isatty() and sys.stderr.isatty())


def _serve(given: list[str], arguments: argparse.Namespace) -> int:
    """What is wrong is said here: a page would only stay empty."""
    try:
        from bdh_tui.serve import serve
    except ImportError as error:
        raise SourceError("--serve needs: pip install 'bdh-hermes-bridge[serve]'") from error
    choose(arguments.source, load(arguments.home, profile=arguments.profile).paths).stop()
    serve(given, arguments.serve)
    return 0


if __name__ == "__main__":
    sys.exit(main())
