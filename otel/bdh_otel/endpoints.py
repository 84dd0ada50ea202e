"""Where telemetry is sent: the standard ``OTEL_*`` variables, and ``BDH_OTEL_ENDPOINTS``.

The standard variables name one backend. ``BDH_OTEL_ENDPOINTS`` names any number beside it, each
with a name of its own if it needs settings of its own::

    BDH_OTEL_ENDPOINTS="http://127.0.0.1:4318 vendor=grpcs://otlp.example.com:4317"
    BDH_OTEL_ENDPOINT_VENDOR_HEADERS="api-key=…"

What opens one backend's door (headers, a client's certificate) is never sent to another.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote, urlsplit

log = logging.getLogger(__name__)

Protocol = Literal["http/protobuf", "grpc"]
Signal = Literal["traces", "metrics"]

_COMPRESSIONS = ("none", "gzip", "deflate")
_NAMED = re.compile(r"(?:([A-Za-z][A-Za-z0-9_]*)=)?((https?|grpcs?)://\S+)", re.IGNORECASE)
_STANDARD = "OTEL_EXPORTER_OTLP_"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One backend for one signal. ``timeout`` is in seconds; files are paths of PEM files or
    empty; ``name`` is the operator's, or empty."""

    url: str = field(repr=False)
    protocol: Protocol = "http/protobuf"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 10.0
    compression: Literal["none", "gzip", "deflate"] = "none"
    certificate: str = ""
    client_certificate: str = ""
    client_key: str = ""
    insecure: bool = False
    signal: Signal = "traces"
    name: str = ""

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

    @property
    def label(self) -> str:
        """Names the backend in metrics: the operator's name for it, or host and port."""
        return self.name or urlsplit(self.url).netloc.rpartition("@")[2]


def endpoints(environment: Mapping[str, str], signal: Signal = "traces") -> list[Endpoint]:
    """The endpoints that ``environment`` configures for ``signal``; none if nothing is set.

    A value that is not usable is warned of, without being repeated, and left out.
    """
    if not _wanted(environment.get(f"OTEL_{signal.upper()}_EXPORTER", "")):
        return []
    found: dict[str, Endpoint] = {}
    for endpoint in (*_standard_endpoint(environment, signal), *_listed(environment, signal)):
        found.setdefault(endpoint.key, endpoint)
    return list(found.values())


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


def _standard_endpoint(environment: Mapping[str, str], signal: Signal) -> list[Endpoint]:
    settings = _Settings(environment, signal)
    protocol = settings.choice("PROTOCOL", ("http/protobuf", "grpc"), "http/protobuf")
    own = environment.get(f"{_STANDARD}{signal.upper()}_ENDPOINT", "").strip()
    base = environment.get(f"{_STANDARD}ENDPOINT", "").strip()
    if not own and not base:
        return []
    if protocol == "grpc":
        url = own or base
        if "://" not in url:
            insecure = settings.get("INSECURE").lower() == "true"
            url = f"{'http' if insecure else 'https'}://{url}"
    else:
        url = own or _signal_url(base, signal)
    if not _usable(url):
        log.warning("[bdh-bridge] the OTLP endpoint is not an http:// or https:// URL: no export")
        return []
    return [_endpoint(url, protocol, signal, settings)]


def _listed(environment: Mapping[str, str], signal: Signal) -> list[Endpoint]:
    """The endpoints of ``BDH_OTEL_ENDPOINTS``: separated by blanks or commas."""
    found = []
    for number, entry in enumerate(
        re.split(r"[\s,]+", environment.get("BDH_OTEL_ENDPOINTS", "").strip(" \t\r\n,")), start=1
    ):
        match = _NAMED.fullmatch(entry)
        scheme, _, rest = (match[2] if match else "").partition("://")
        url = f"{'https' if scheme.lower() in ('https', 'grpcs') else 'http'}://{rest}"
        if match is None or not _usable(url):
            if entry:
                log.warning("[bdh-bridge] BDH_OTEL_ENDPOINTS: entry %d is no URL; ignored", number)
            continue
        name = match[1] or ""
        settings = _Settings(environment, signal, name, listed=True)
        if name and not _wanted(settings.get("SIGNALS"), signal):
            continue
        if scheme.lower().startswith("grpc"):
            found.append(_endpoint(url, "grpc", signal, settings, name))
        else:
            found.append(
                _endpoint(_signal_url(url, signal), "http/protobuf", signal, settings, name)
            )
    return found


def _endpoint(
    url: str, protocol: str, signal: Signal, settings: _Settings, name: str = ""
) -> Endpoint:
    return Endpoint(
        url,
        protocol,  # type: ignore[arg-type]
        _pairs(settings.get("HEADERS")),
        settings.seconds(),
        settings.choice("COMPRESSION", _COMPRESSIONS, "none"),  # type: ignore[arg-type]
        settings.get("CERTIFICATE"),
        settings.get("CLIENT_CERTIFICATE"),
        settings.get("CLIENT_KEY"),
        insecure=urlsplit(url).scheme == "http",
        signal=signal,
        name=name,
    )


class _Settings:
    """The variables of one endpoint. A listed one has its own (``BDH_OTEL_ENDPOINT_{NAME}_…``)
    and takes over from the standard ones only what gives nothing away."""

    _SHARED = ("TIMEOUT", "COMPRESSION", "CERTIFICATE")

    def __init__(
        self,
        environment: Mapping[str, str],
        signal: Signal,
        name: str = "",
        *,
        listed: bool = False,
    ) -> None:
        self._environment = environment
        self._standard = (f"{_STANDARD}{signal.upper()}_", _STANDARD)
        self._own: tuple[str, ...] = (f"BDH_OTEL_ENDPOINT_{name.upper()}_",) if name else ()
        self._listed = listed

    def get(self, setting: str) -> str:
        return self._find(setting)[1]

    def choice(self, setting: str, allowed: tuple[str, ...], default: str) -> str:
        name, value = self._find(setting)
        value = value.lower() or default
        if value in allowed:
            return value
        log.warning(
            "[bdh-bridge] %s: %.40r is not one of %s; using %s",
            name,
            value,
            ", ".join(allowed),
            default,
        )
        return default

    def seconds(self) -> float:
        """The timeout. The specification counts milliseconds and Python's SDK seconds; no request
        is given a quarter of an hour, so the number itself tells which."""
        name, value = self._find("TIMEOUT")
        try:
            seconds = float(value or 10)
        except ValueError:
            seconds = math.nan
        if math.isfinite(seconds) and seconds > 0:
            return seconds / 1_000 if seconds >= 1_000 else seconds
        log.warning("[bdh-bridge] %s: %.40r is no number of seconds", name, value)
        return 10.0

    def _find(self, setting: str) -> tuple[str, str]:
        shared = not self._listed or setting in self._SHARED
        prefixes = (*self._own, *self._standard) if shared else self._own
        for prefix in prefixes:
            value = self._environment.get(f"{prefix}{setting}", "").strip()
            if value:
                return f"{prefix}{setting}", value
        return f"{_STANDARD}{setting}", ""


def _wanted(value: str, signal: str = "otlp") -> bool:
    """Whether a list such as ``OTEL_TRACES_EXPORTER``, empty by default, names what is meant."""
    listed = {part.strip().lower() for part in value.split(",") if part.strip()}
    return not listed or signal in listed


def _usable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _signal_url(base: str, signal: Signal) -> str:
    """The base URL with the signal's path; a query stays where it is. A listed URL may name the
    path of a signal already."""
    address, mark, query = base.partition("?")
    address = re.sub(r"/v1/(traces|metrics)$", "", address.rstrip("/"))
    return f"{address}/v1/{signal}{mark}{query}"


def _pairs(value: str, *, lower: bool = True) -> dict[str, str]:
    """``key=value,key=value`` with percent-encoded values (W3C baggage, as the variables are)."""
    pairs: dict[str, str] = {}
    for part in value.split(","):
        name, equals, text = part.partition("=")
        name = name.strip().lower() if lower else name.strip()
        if equals and name:
            pairs[name] = unquote(text.strip())
    return pairs
