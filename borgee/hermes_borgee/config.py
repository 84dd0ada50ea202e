"""What the operator wrote about Borgee, checked.

The rules are strict on purpose: Hermes coerces what it reads (``"no"`` becomes true in places),
and several of its global settings decide whether two people's messages end up in one session.
Each wrong value is one sentence that names its key.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from hermes_borgee.constants import KEY_VARIABLE

_HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
_SECRET_KEYS = frozenset({"api_key", "apikey", "key", "token", "secret", "password"})
_KEYS = frozenset(
    {
        "enabled",
        "base_url",
        "allow_insecure_loopback",
        "max_concurrent_dispatches",
        "drain_timeout_seconds",
        "control_timeout_seconds",
        "allow_destructive_tools",
        "retention_days",
    }
)
#: Keys that Hermes itself reads in a platform's block; they are its business.
_HOST_KEYS = frozenset(
    {
        "channel_overrides",
        "channel_prompts",
        "allow_admin_from",
        "user_allowed_commands",
        "group_allow_admin_from",
        "group_user_allowed_commands",
        "gateway_restart_notification",
        "home_channel",
        "reply_prefix",
        "typing_indicator",
        "extra",
        "display",
    }
)


class ConfigError(ValueError):
    """The configuration can't be used. ``problems`` are sentences, one for each key."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class BorgeeConfig:
    """One profile's connection to one Borgee agent. Times are in seconds."""

    home: Path
    base_url: str
    """An origin: scheme, host and port, without a path."""
    api_key: SecretStr
    allow_insecure_loopback: bool = False
    max_concurrent_dispatches: int = 4
    """Ordinary turns that may run at once, over all sessions."""
    drain_timeout: float = 30.0
    control_timeout: float = 15.0
    allow_destructive_tools: bool = False
    retention_days: float = 30.0

    @property
    def inbox(self) -> Path:
        return inbox_path(self.home)


def hermes_home() -> Path:
    """The home of this Hermes process, by Hermes' own word."""
    from hermes_constants import get_hermes_home

    return Path(get_hermes_home())


def inbox_path(home: Path) -> Path:
    """``$HERMES_HOME/plugins/borgee/inbox.sqlite3``."""
    return home / "plugins" / "borgee" / "inbox.sqlite3"


def load(home: Path) -> BorgeeConfig:
    """Read ``config.yaml`` and the environment of one Hermes home.

    Raises: ConfigError.
    """
    from bdh_bridge.settings import load as load_settings

    return check(home, read_document(home), load_settings(home).environment)


def read_document(home: Path) -> Mapping[str, Any]:
    """The home's ``config.yaml`` as Hermes would parse it. Raises: ConfigError."""
    path = home / "config.yaml"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError([f"{path} does not exist; run: bdh-bridge borgee setup"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path} can't be read ({type(error).__name__})"]) from error
    return parse(text, path)


def parse(text: str, path: Path) -> Mapping[str, Any]:
    """The settings in a ``config.yaml``; ``path`` is named if it is none. Raises: ConfigError."""
    import yaml

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise ConfigError([f"{path}{where} is not valid YAML"]) from error
    except Exception as error:
        # A 31st of June, a number of 6,000 digits, lists in lists in lists: YAML, but no value.
        what = type(error).__name__  # its text repeats the value, which may be anything
        raise ConfigError([f"{path} holds a value that can't be read ({what})"]) from error
    if not isinstance(document, dict):
        raise ConfigError([f"{path} must hold a mapping of settings"])
    return document


def check(home: Path, document: Mapping[str, Any], environment: Mapping[str, str]) -> BorgeeConfig:
    """The configuration in ``document``. Raises: ConfigError with every problem found."""
    problems: list[str] = []
    block = document.get("borgee")
    if not isinstance(block, Mapping):
        raise ConfigError(["borgee: the block is missing or no mapping"])
    problems += _secrets_in_yaml(document, home)
    for key in sorted(str(key) for key in block):
        if key not in _KEYS | _HOST_KEYS | _SECRET_KEYS:
            problems.append(f"borgee.{key}: no such setting")
    if not _boolean(block, "enabled", False, problems):
        problems.append("borgee.enabled: must be true for the adapter to connect")
    insecure = _boolean(block, "allow_insecure_loopback", False, problems)
    base_url = _origin(block.get("base_url"), insecure, problems)
    values = BorgeeConfig(
        home=home,
        base_url=base_url,
        api_key=_api_key(environment, home, problems),
        allow_insecure_loopback=insecure,
        max_concurrent_dispatches=int(
            _number(block, "max_concurrent_dispatches", 4, 1, 64, problems, whole=True)
        ),
        drain_timeout=_number(block, "drain_timeout_seconds", 30, 0, 600, problems),
        control_timeout=_number(block, "control_timeout_seconds", 15, 1, 300, problems),
        allow_destructive_tools=_boolean(block, "allow_destructive_tools", False, problems),
        retention_days=_number(block, "retention_days", 30, 1, 3650, problems),
    )
    problems += _host_settings(document, environment)
    if problems:
        raise ConfigError(problems)
    return values


def is_loopback(host: str) -> bool:
    """Whether ``host`` can only be this machine. Private networks are not."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _origin(value: Any, insecure: bool, problems: list[str]) -> str:
    """The origin in one spelling, because the agent's lock is named after it."""
    problem, port = "", None
    try:
        parts = urlsplit(value if isinstance(value, str) else "")
        host, port = _host(parts.hostname or ""), parts.port
    except ValueError:
        parts, host = urlsplit(""), ""
    if not isinstance(value, str) or not value:
        problem = "is missing; set it to the server's origin, such as https://chat.example.com"
    elif any(not char.isprintable() or char.isspace() for char in value):
        problem = "holds a blank or a control character"
    elif parts.scheme not in ("http", "https") or not host or port == 0:
        problem = "must be an http:// or https:// origin"
    elif parts.username is not None or parts.password is not None:
        problem = f"must hold no credentials; the key goes into {KEY_VARIABLE}"
    elif parts.path not in ("", "/") or "?" in value or "#" in value:
        problem = "must be an origin without path, query or fragment"
    elif parts.scheme == "http" and not is_loopback(host):
        problem = "must be https:// (plain http:// is for this machine's loopback address only)"
    elif parts.scheme == "http" and not insecure:
        problem = "is plain http://, which needs borgee.allow_insecure_loopback: true"
    if problem:
        problems.append(f"borgee.base_url: {problem}")
        return ""
    usual = {"http": 80, "https": 443}[parts.scheme]
    literal = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{literal}" + ("" if port in (None, usual) else f":{port}")


def _host(name: str) -> str:
    """A host's name or address as it is looked up. Raises: ValueError for what is neither."""
    if ":" in name:
        return str(ipaddress.ip_address(name))
    found = name.lower() if name.isascii() else name.encode("idna").decode()
    found = found.removesuffix(".")
    if not _HOST_NAME.fullmatch(found):
        raise ValueError("no host name")
    return found


def _api_key(environment: Mapping[str, str], home: Path, problems: list[str]) -> SecretStr:
    key = environment.get(KEY_VARIABLE, "").strip()
    if not key:
        problems.append(f"{KEY_VARIABLE}: is not set; put the agent's key into {home / '.env'}")
    elif any(not 0x21 <= ord(char) <= 0x7E for char in key):
        problems.append(f"{KEY_VARIABLE}: holds a blank, a control or a non-ASCII character")
    return SecretStr(key)


def _secrets_in_yaml(document: Mapping[str, Any], home: Path) -> list[str]:
    """A key in YAML is refused even if the environment has one: it would be read by others."""
    gateway = document.get("gateway")
    places: list[tuple[str, Any]] = [("borgee", document.get("borgee"))]
    for name, parent in (
        ("platforms", document.get("platforms")),
        ("gateway.platforms", gateway.get("platforms") if isinstance(gateway, Mapping) else None),
    ):
        if isinstance(parent, Mapping):
            places.append((f"{name}.borgee", parent.get("borgee")))
    found: list[str] = []
    for name, block in places:
        if not isinstance(block, Mapping):
            continue
        inner = block.get("extra")
        for prefix, mapping in ((name, block), (f"{name}.extra", inner)):
            if isinstance(mapping, Mapping):
                found += [
                    f"{prefix}.{key}: a key does not belong in config.yaml; "
                    f"move it to {KEY_VARIABLE} in {home / '.env'}"
                    for key in mapping
                    if str(key).lower() in _SECRET_KEYS
                ]
    return found


def _host_settings(document: Mapping[str, Any], environment: Mapping[str, str]) -> list[str]:
    """Hermes' own settings that the adapter relies on."""
    problems: list[str] = []
    if document.get("group_sessions_per_user") is not False:
        problems.append(
            "group_sessions_per_user: must be false at the top level, so that the people of a "
            "channel share its session"
        )
    display = document.get("display")
    display = display if isinstance(display, Mapping) else {}
    if display.get("busy_input_mode") != "queue":
        problems.append("display.busy_input_mode: must be queue; the inbox does the queueing")
    streaming = document.get("streaming")
    if isinstance(streaming, Mapping):
        enabled = streaming.get("enabled")
        if enabled is not None and not isinstance(enabled, bool):
            problems.append("streaming.enabled: must be true or false")
    elif streaming is not None:
        problems.append("streaming: must be a mapping with the key enabled")
    platforms = display.get("platforms")
    if platforms is not None and not isinstance(platforms, Mapping):
        problems.append("display.platforms: must be a mapping of platforms")
    override = platforms.get("borgee") if isinstance(platforms, Mapping) else None
    if override is not None and not isinstance(override, Mapping):
        problems.append("display.platforms.borgee: must be a mapping with the key streaming")
    elif override is not None:
        chosen = override.get("streaming")
        if chosen is not None and not isinstance(chosen, bool):
            problems.append("display.platforms.borgee.streaming: must be true or false")
    gateway = document.get("gateway")
    multiplex = document.get("multiplex_profiles")
    if multiplex is None and isinstance(gateway, Mapping):
        multiplex = gateway.get("multiplex_profiles")
    variable = environment.get("GATEWAY_MULTIPLEX_PROFILES", "").strip().lower()
    if multiplex not in (None, False) or variable in _TRUE_WORDS:
        where = (
            "GATEWAY_MULTIPLEX_PROFILES"
            if variable in _TRUE_WORDS
            else "gateway.multiplex_profiles"
        )
        problems.append(f"{where}: must be off; one gateway serves one Borgee agent")
    return problems


def _boolean(block: Mapping[str, Any], key: str, default: bool, problems: list[str]) -> bool:
    value = block.get(key, default)
    if isinstance(value, bool):
        return value
    problems.append(f"borgee.{key}: must be true or false, without quotes")
    return default


def _number(
    block: Mapping[str, Any],
    key: str,
    default: float,
    low: float,
    high: float,
    problems: list[str],
    *,
    whole: bool = False,
) -> float:
    value = block.get(key, default)
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        problems.append(f"borgee.{key}: must be {kind} from {low:g} to {high:g}")
        return default
    return float(value)
