"""Where spans are sent, read from the standard ``OTEL_*`` variables."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote, urlsplit

log = logging.getLogger(__name__)

Protocol = Literal["http/protobuf", "grpc"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One backend. ``timeout`` is in seconds; files are paths of PEM files or empty."""

    url: str = field(repr=False)
    protocol: Protocol = "http/protobuf"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 10.0
    compression: Literal["none", "gzip", "deflate"] = "none"
    certificate: str = ""
    client_certificate: str = ""
    client_key: str = ""
    insecure: bool = False

    @property
    def shown(self) -> str:
        """The URL for logs: without credentials and query."""
        parts = urlsplit(self.url)
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"

    @property
    def key(self) -> str:
        """Names the cursor. Tells URLs apart whose difference may not be written down."""
        digest = hashlib.sha256(self.url.encode()).hexdigest()[:8]
        return f"{self.protocol} {self.shown} {digest}"


def endpoints(environment: Mapping[str, str]) -> list[Endpoint]:
    """The endpoints that ``environment`` configures; none if nothing is set.

    A value that is not usable is warned of once, without being repeated, and left out.
    """
    protocol = _choice(environment, "PROTOCOL", ("http/protobuf", "grpc"), "http/protobuf")
    own = environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").strip()
    base = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
    if not own and not base:
        return []
    if protocol == "grpc":
        url = own or base
        if "://" not in url:
            url = f"{'http' if _flag(environment, 'INSECURE') else 'https'}://{url}"
    else:
        url = own or _signal_url(base)
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        log.warning("[bdh-bridge] the OTLP endpoint is not an http:// or https:// URL: no export")
        return []
    return [
        Endpoint(
            url,
            protocol,  # type: ignore[arg-type]
            _pairs(_standard(environment, "HEADERS")),
            _seconds(_standard(environment, "TIMEOUT")),
            _choice(environment, "COMPRESSION", ("none", "gzip", "deflate"), "none"),  # type: ignore[arg-type]
            _standard(environment, "CERTIFICATE"),
            _standard(environment, "CLIENT_CERTIFICATE"),
            _standard(environment, "CLIENT_KEY"),
            insecure=parts.scheme == "http",
        )
    ]


def resource_attributes(environment: Mapping[str, str]) -> dict[str, str]:
    """``OTEL_RESOURCE_ATTRIBUTES`` and ``OTEL_SERVICE_NAME``, which wins."""
    own = _pairs(environment.get("OTEL_RESOURCE_ATTRIBUTES", ""), lower=False)
    name = environment.get("OTEL_SERVICE_NAME", "").strip()
    return {**own, "service.name": name} if name else own


def disabled(environment: Mapping[str, str]) -> bool:
    """``OTEL_SDK_DISABLED``: stops the export; the store goes on."""
    return environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def capture_content(environment: Mapping[str, str]) -> bool:
    """``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT``: ``true``, or a mode with spans."""
    value = environment.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "")
    return value.strip().lower() in ("true", "span_only", "span_and_event")


class Sampler:
    """``OTEL_TRACES_SAMPLER``, applied to what is exported.

    Whether a trace is kept follows from its id alone, so that all its spans share one fate,
    whichever process made them and whenever they are exported.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        name = environment.get("OTEL_TRACES_SAMPLER", "").strip().lower() or "parentbased_always_on"
        self._follow_parent = name.startswith("parentbased_")
        ratio = {"always_on": 1.0, "always_off": 0.0}.get(name.removeprefix("parentbased_"))
        if ratio is None and name.endswith("traceidratio"):
            ratio = _ratio(environment.get("OTEL_TRACES_SAMPLER_ARG", ""))
        elif ratio is None:
            log.warning("[bdh-bridge] OTEL_TRACES_SAMPLER: unknown sampler, everything is exported")
            ratio = 1.0
        # As the SDK's TraceIdRatioBased: the lower 64 bits against the ratio's share of them.
        self._bound = round(ratio * (1 << 64))

    def keeps(self, trace_id: str, flags: int) -> bool:
        """``flags`` are those of the trace's first span: a plugin's own trace may be unsampled."""
        if self._follow_parent and not flags & 1:
            return False
        return int(trace_id[16:], 16) < self._bound


def _signal_url(base: str) -> str:
    """The base URL with the signal's path; a query stays where it is."""
    address, mark, query = base.partition("?")
    return f"{address.rstrip('/')}/v1/traces{mark}{query}"


def _standard(environment: Mapping[str, str], name: str) -> str:
    """The variable for traces, or else the one for all signals."""
    return (
        environment.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}", "").strip()
        or environment.get(f"OTEL_EXPORTER_OTLP_{name}", "").strip()
    )


def _choice(
    environment: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str
) -> str:
    value = _standard(environment, name).lower() or default
    if value in allowed:
        return value
    log.warning(
        "[bdh-bridge] OTEL_EXPORTER_OTLP_%s: %.40r is not one of %s; using %s",
        name,
        value,
        ", ".join(allowed),
        default,
    )
    return default


def _flag(environment: Mapping[str, str], name: str) -> bool:
    return _standard(environment, name).lower() == "true"


def _seconds(value: str) -> float:
    try:
        seconds = float(value or 10)
    except ValueError:
        seconds = math.nan
    if math.isfinite(seconds) and seconds > 0:
        return seconds
    log.warning("[bdh-bridge] OTEL_EXPORTER_OTLP_TIMEOUT: %.40r is no number of seconds", value)
    return 10.0


def _ratio(value: str) -> float:
    try:
        ratio = float(value or 1)
    except ValueError:
        ratio = math.nan
    if 0 <= ratio <= 1:
        return ratio
    log.warning("[bdh-bridge] OTEL_TRACES_SAMPLER_ARG: %.40r is not from 0 to 1; using 1", value)
    return 1.0


def _pairs(value: str, *, lower: bool = True) -> dict[str, str]:
    """``key=value,key=value`` with percent-encoded values (W3C baggage, as the variables are)."""
    pairs: dict[str, str] = {}
    for part in value.split(","):
        name, equals, text = part.partition("=")
        name = name.strip().lower() if lower else name.strip()
        if equals and name:
            pairs[name] = unquote(text.strip())
    return pairs
