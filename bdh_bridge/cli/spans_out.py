"""``bdh-bridge spans push``, ``export`` and ``metrics``: what leaves the stores, by hand."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from bdh_bridge.cli import CommandError, settings_of

if TYPE_CHECKING:
    from bdh_bridge.settings import Loaded
    from bdh_otel.metrics import Series

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def add(actions: Any) -> None:
    push = actions.add_parser("push", help="send waiting spans and metrics to the endpoints now")
    push.set_defaults(command=_push)

    export = actions.add_parser("export", help="write spans as OTLP JSON lines")
    export.add_argument("--format", choices=["otlp-json"], default="otlp-json")
    export.add_argument(
        "--since",
        type=_moment,
        default=0.0,
        metavar="WHEN",
        help="only spans that started since: 30m, 2h, 7d, or a date such as 2026-11-30T12:00",
    )
    export.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="into a new file instead of the terminal"
    )
    export.set_defaults(command=_export)

    metrics = actions.add_parser("metrics", help="what the spans add up to")
    metrics.add_argument("--json", action="store_true", help="one JSON object a series and line")
    metrics.set_defaults(command=_metrics)


def _push(args: argparse.Namespace) -> int:
    from bdh_bridge.worker.housekeeping import metric_exporter, span_exporter

    loaded = settings_of(args)
    exporter, metrics = span_exporter(loaded), metric_exporter(loaded)
    if loaded.settings.otel_sdk_disabled:
        raise CommandError("OTEL_SDK_DISABLED is set: nothing is exported")
    if not exporter.enabled and not metrics.enabled:
        raise CommandError(
            "no endpoint: set OTEL_EXPORTER_OTLP_ENDPOINT, e.g. http://localhost:4318"
        )
    sent = failed = 0
    force = True  # once: an endpoint that says no is not asked again and again
    try:
        while True:
            result = exporter.run_once(time.monotonic() + 15.0, force=force)
            force = False
            sent, failed = sent + result.sent, failed + result.failed
            if result.busy:
                raise CommandError("another process is sending these spans at this moment")
            going = result.sent or result.failed or result.unfinished
            if not going or not (result.waiting or result.unfinished):
                break
            print(f"{sent:,} spans sent, {result.waiting:,} to go", flush=True)
        if metrics.enabled:
            _push_metrics(loaded, metrics)
    finally:
        exporter.close()
        metrics.close()
    if exporter.enabled:
        shown = ", ".join(endpoint.shown for endpoint in exporter.endpoints)
        where = "" if result.waiting or result.retry_at else f" to {shown}"
        print(f"{sent:,} spans sent{where}" + (f", {failed:,} refused" if failed else ""))
    if result.waiting:
        _say(f"{result.waiting:,} spans wait; they are sent when the endpoint accepts them.")
    if result.waiting or result.retry_at is not None:
        return 1
    return 0


def _push_metrics(loaded: Loaded, metrics: Any) -> None:
    """A receiver that takes no metrics is no failure: Jaeger is one."""
    from bdh_bridge.metrics import measure
    from bdh_otel.database import StoreError
    from bdh_otel.metrics import MetricStore

    if not loaded.paths.spans.exists():
        return
    try:
        with contextlib.closing(MetricStore(loaded.paths.metrics)) as store:
            measure(loaded, store)
            metrics.run_once(store, time.monotonic() + 15.0, force=True)
    except StoreError as error:
        raise CommandError(str(error)) from error
    for shown in metrics.failing():
        _say(f"{shown} took no metrics.")


def _export(args: argparse.Namespace) -> int:
    from bdh_bridge.worker.housekeeping import exports_content
    from bdh_otel.database import StoreError
    from bdh_otel.endpoints import resource_attributes
    from bdh_otel.otlp import Encoder
    from bdh_otel.otlp_json import lines
    from bdh_otel.reader import SpanReader

    loaded = settings_of(args)
    encoder = Encoder(
        content=exports_content(loaded), extra=resource_attributes(loaded.environment)
    )
    written = 0
    try:
        with (
            contextlib.closing(SpanReader(loaded.paths.spans)) as reader,
            _target(args.output) as target,
        ):
            for spans, line in lines(reader, encoder, since_ns=int(args.since * 1e9)):
                target.write(f"{line}\n")
                written += spans
    except FileNotFoundError as error:
        raise CommandError(
            f"no spans yet: {loaded.paths.spans} appears with the first turn"
        ) from error
    except StoreError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        place = f"{args.output}: " if args.output else ""
        raise CommandError(f"{place}{error.strerror}") from error
    _say(f"{written:,} spans written")
    return 0


@contextlib.contextmanager
def _target(path: Path | None) -> Iterator[TextIO]:
    """The file is new and the owner's alone."""
    if path is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        yield file


def _metrics(args: argparse.Namespace) -> int:
    from bdh_bridge.metrics import snapshot
    from bdh_otel.database import StoreError

    loaded = settings_of(args)
    if not loaded.paths.directory.exists():
        raise CommandError(f"nothing has been measured yet in {loaded.paths.directory}")
    try:
        series = snapshot(loaded).series
    except StoreError as error:
        raise CommandError(str(error)) from error
    for one in series:
        print(json.dumps(_as_json(one)) if args.json else _as_text(one))
    return 0


def _as_json(one: Series) -> dict[str, Any]:
    """``value`` is a histogram's sum; ``count`` and ``buckets`` are there for histograms alone."""
    found: dict[str, Any] = {
        "name": one.instrument.name,
        "kind": one.instrument.kind,
        "unit": one.instrument.unit,
        "attributes": dict(one.attributes),
        "value": one.value,
    }
    if one.buckets:
        bounds = [*one.instrument.bounds, None]
        found["count"] = one.count
        found["buckets"] = [list(pair) for pair in zip(bounds, one.buckets, strict=True)]
    return found


def _as_text(one: Series) -> str:
    from bdh_otel.escape import one_line

    labels = ", ".join(
        f"{name}={one_line(str(value), 80)}" for name, value in one.attributes.items()
    )
    name = f"{one.instrument.name}{{{labels}}}" if labels else one.instrument.name
    if one.buckets:
        mean = one.value / one.count if one.count else 0.0
        return f"{name}  count {one.count:,}  mean {mean:.3g}  max {one.high or 0.0:.3g}"
    return f"{name}  {one.value:,.6g}"


def _moment(text: str) -> float:
    """A Unix time from ``2h`` (ago) or a date; a date without zone is local time."""
    ago = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if ago:
        return time.time() - float(ago[1]) * _UNITS[ago[2]]
    try:
        return datetime.datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(
            "must be like 30m, 2h, 7d, or a date such as 2026-11-30T12:00"
        ) from None


def _say(text: str) -> None:
    from bdh_otel.escape import escape_lines

    print(escape_lines(text), file=sys.stderr)
