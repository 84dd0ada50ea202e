"""``bdh-bridge-tui``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bdh_bridge import __version__
from bdh_bridge.settings import Loaded, load
from bdh_tui.sources import LocalSource, Source, SourceError


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        loaded = load(arguments.home, profile=arguments.profile)
        source = _source(arguments.source, loaded)
    except (ValueError, SourceError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from bdh_tui.app import BridgeApp

    app = BridgeApp(loaded, source, arguments.screen)
    app.run()
    return app.return_code or 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bdh-bridge-tui",
        description="Watch and steer the bridge between Hermes and the graph.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("--home", type=Path, help="Hermes home (default: HERMES_HOME or ~/.hermes)")
    parser.add_argument("--profile", help="Hermes profile below that home")
    parser.add_argument("--source", default="local", help="where spans come from")
    parser.add_argument("--screen", default="live", help="the screen to begin with")
    return parser


def _source(text: str, loaded: Loaded) -> Source:
    return LocalSource(loaded.paths.spans, loaded.paths.hermes_home)


if __name__ == "__main__":
    sys.exit(main())
