"""Draw one trace of a span store as SVG, for the documentation.

python scripts/trace_picture.py SPANS.sqlite3 TRACE_ID_PREFIX docs/images/trace.svg
"""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from bdh_otel.reader import SpanReader
from bdh_otel.tree import render

WIDTH = 112


def main() -> None:
    store, prefix, target = sys.argv[1:4]
    with contextlib.closing(SpanReader(Path(store))) as reader:
        (trace_id,) = reader.find_traces(prefix)
        tree = render(reader.trace(trace_id), colour=True, fold=True, width=WIDTH)
    with Path("/dev/null").open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True)
        for line in tree.splitlines():
            console.print(Text.from_ansi(line), no_wrap=True, overflow="ellipsis")
        svg = console.export_svg(title="bdh-bridge spans trace", theme=MONOKAI)
    # The picture must not send its readers to a font server.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas")
    Path(target).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
