"""What a worker inherits: the variables that it uses, and nothing else of its host."""

from __future__ import annotations

from collections.abc import Mapping

_NAMES = frozenset(
    {
        "PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "HERMES_HOME",
        "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
        "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
        "http_proxy", "https_proxy", "all_proxy", "no_proxy",
        "OLLAMA_API_KEY", "OPENROUTER_API_KEY",
        # To ask systemd for a scope of its own.
        "INVOCATION_ID", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS",
    }
)  # fmt: skip
_PREFIXES = ("LC_", "BDH_", "OTEL_")


def minimal_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if name in _NAMES or name.startswith(_PREFIXES)
    }
