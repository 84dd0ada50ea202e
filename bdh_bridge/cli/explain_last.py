"""``bdh-bridge explain last``: why the newest turn was read or stored, or not, in sentences.

What ``/bdh explain last`` tells in a chat, of the whole home; ``spans trace last`` has every span.
"""

from __future__ import annotations

import argparse
import json
from datetime import datetime

from bdh_bridge.cli import CommandError, settings_of
from bdh_bridge.cli.output import paint
from bdh_bridge.operator.plain import BAD, GOOD, SKIP

_COLOURS = {GOOD: "good", SKIP: "skip", BAD: "bad"}


def explain_last(args: argparse.Namespace) -> int:
    """Print the sentences, with ``args.json`` as one object. Raises: CommandError."""
    from bdh_bridge.operator.explain import explain
    from bdh_otel import attributes as attr
    from bdh_otel.database import StoreError
    from bdh_otel.escape import one_line
    from bdh_otel.reader import SpanReader

    reader = SpanReader(settings_of(args).paths.spans)
    try:
        turns = reader.turns(1)
        if not turns:
            raise CommandError("no turns on record yet")
        root = turns[0].root
        sentences = explain(reader.trace(root.trace_id))
    except FileNotFoundError as error:
        raise CommandError(f"no spans yet: {reader.path} appears with the first turn") from error
    except StoreError as error:
        raise CommandError(str(error)) from error
    finally:
        reader.close()
    if args.json:
        told = [{"mark": s.mark, "subject": s.subject, "text": s.text} for s in sentences]
        print(json.dumps({"trace": root.trace_id, "sentences": told}))
        return 0
    began = datetime.fromtimestamp(root.start_ns / 1e9)
    print(paint("dim", f"{began:%Y-%m-%d %H:%M:%S}  trace {root.trace_id[:8]}"))
    message = root.attributes.get(attr.TURN_MESSAGE)
    if message:
        print(f"“{one_line(str(message), 100)}”")
    for one in sentences:
        print(f"{paint(_COLOURS.get(one.style, 'dim'), one.mark)} {one.subject}: {one.text}")
    print(f"\nevery span: bdh-bridge spans trace {root.trace_id[:8]}")
    return 0
