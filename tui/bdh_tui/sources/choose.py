"""``--source`` as text."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from bdh_bridge.paths import BridgePaths
from bdh_tui.sources import LocalSource, Source, SourceError

HELP = "local (default), otlp[:[HOST:]PORT], jaeger=URL, tempo=URL, or a FILE of OTLP JSON lines"
_OTLP = re.compile(r"otlp(?:[:=](?:(?P<host>[^:]+|\[[^\]]+\]):)?(?P<port>\d{1,5}))?")


def choose(text: str, paths: BridgePaths) -> Source:
    """The source, not started yet. Raises: SourceError for a text that names none."""
    if text == "local":
        return LocalSource(paths.spans, paths.hermes_home)
    if match := _OTLP.fullmatch(text):
        from bdh_tui.sources.otlp import DEFAULT_PORT, OtlpSource

        port = int(match["port"] or DEFAULT_PORT)
        if not 2 <= port <= 65_535:
            raise SourceError(f"{port} is no port for HTTP with one below it for gRPC")
        return OtlpSource((match["host"] or "127.0.0.1").strip("[]"), port)
    kind, equals, url = text.partition("=")
    if equals and kind in ("jaeger", "tempo"):
        if not _is_url(url):
            port = 16686 if kind == "jaeger" else 3200
            raise SourceError(f"{kind} needs a URL, such as {kind}=http://localhost:{port}")
        from bdh_tui.sources.polling import JaegerSource, TempoSource

        return JaegerSource(url) if kind == "jaeger" else TempoSource(url)
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:  # the home of a user that there isn't
        raise SourceError(f"{text!r}: {error}") from error
    if not path.is_file():
        raise SourceError(f"{text!r} is no source and no file; there are: {HELP}")
    from bdh_tui.sources.file import FileSource

    return FileSource(path)


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        reachable = bool(parts.hostname) and parts.port != 0
    except ValueError:  # of its brackets, or of the port
        return False
    return reachable and parts.scheme in ("http", "https") and not re.search(r"\s", text)
