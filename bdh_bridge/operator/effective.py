"""Settings as they are in effect: value, origin, and secrets that never leave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from bdh_bridge.settings import Loaded, Origin, Settings, variable

SET, UNSET = "(set)", "(not set)"


@dataclass(frozen=True, slots=True)
class Effective:
    """One setting. ``value`` is a plain JSON value; a secret is only said to be set or not."""

    name: str
    value: bool | int | float | str
    origin: Origin
    secret: bool
    meaning: str

    @property
    def text(self) -> str:
        """The value as it would be written in ``.env``."""
        if isinstance(self.value, bool):
            return str(self.value).lower()
        return f"{self.value:g}" if isinstance(self.value, float) else str(self.value)


def effective(loaded: Loaded) -> list[Effective]:
    """Every setting, in the order of the documentation."""
    found = []
    for name, field in Settings.model_fields.items():
        value = getattr(loaded.settings, name)
        secret = isinstance(value, SecretStr)
        found.append(
            Effective(
                variable(name),
                _shown(variable(name), value),
                loaded.origins[variable(name)],
                secret,
                field.description or "",
            )
        )
    return found


def _shown(name: str, value: Any) -> bool | int | float | str:
    if isinstance(value, SecretStr):
        return SET if value.get_secret_value() else UNSET
    if isinstance(value, frozenset | set | tuple | list):
        return ",".join(sorted(str(one) for one in value))
    if isinstance(value, bool | int | float):
        return value
    if value is None:
        return ""  # automatic
    text = str(value)
    return ",".join(map(without_credentials, text.split(","))) if _holds_urls(name) else text


def _holds_urls(name: str) -> bool:
    return any(part in name for part in ("URL", "ENDPOINT"))


def without_credentials(url: str) -> str:
    """``url`` without what may be secret: user, password, query and fragment."""
    if "@" not in url and "?" not in url and "#" not in url:
        return url
    try:
        parts = urlsplit(url.strip())
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "(an unusable URL)"
    return f"{parts.scheme}://{host}{port}{parts.path}" if parts.scheme else "(an unusable URL)"
