"""Writing the configuration: only what the adapter needs, everything else left as it is.

``config.yaml`` keeps its comments and order, ``.env`` its other lines; both are replaced in one
step, so a crash leaves the old or the new file. The key never passes through an argument.
"""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bdh_otel.files import replacing
from hermes_borgee.config import ConfigError, check, is_loopback, parse
from hermes_borgee.constants import KEY_VARIABLE

PLUGIN = "borgee"
_PLAIN = re.compile(r"[A-Za-z0-9_./:@,+-]*")


class SetupError(Exception):
    """Setup can't go on. ``str()`` says why and what to do."""


def write(home: Path, base_url: str, api_key: str) -> list[str]:
    """Set up ``home`` for one Borgee agent.

    Returns a sentence for each setting that was changed. Nothing is written if the result would
    not be usable. Raises: SetupError.
    """
    if not home.is_dir():
        raise SetupError(f"{home} is no Hermes home; run hermes setup first, or name another one")
    path, env = home / "config.yaml", home / ".env"
    document, dump = _round_trip(path)
    changes = _apply(document, base_url)
    try:
        config_text = dump()
        env_text = with_variable(_read(env), KEY_VARIABLE, api_key)
        # What counts is how it is read again, with all else that is in the two files.
        environment = {**os.environ, KEY_VARIABLE: "", **_variables(env_text)}
        check(home, parse(config_text, path), environment)
        if environment[KEY_VARIABLE] != api_key:
            raise SetupError(
                f"{env} can't hold this key as it is: it has ${{…}} in it, or the file an open "
                "quote"
            )
        # The key first: a crash in between leaves nothing that is enabled but can't work.
        _replace(env, env_text, mode=0o600)
        if changes:
            _replace(path, config_text, mode=_mode_of(path, 0o600))
    except ConfigError as error:
        raise SetupError("; ".join(error.problems)) from error
    return [*changes, f"{KEY_VARIABLE} is in {env} (readable by its owner only)"]


def interactive(
    home: Path, *, base_url: str = "", read_key: Callable[[str], str] | None = None
) -> list[str]:
    """Ask for what is missing on the terminal, then :func:`write`. Raises: SetupError."""
    import getpass

    print(f"Borgee for the Hermes home {home}")
    if not base_url:
        base_url = input("Server (such as https://chat.example.com): ").strip()
    key = (read_key or getpass.getpass)("Key of the agent (not shown): ").strip()
    changes = write(home, base_url, key)
    for change in changes:
        print(f"  {change}")
    return changes


def _apply(document: Any, base_url: str) -> list[str]:
    changes: list[str] = []

    def put(mapping: Any, key: str, value: Any, name: str) -> None:
        if mapping.get(key) is not value and mapping.get(key) != value:
            mapping[key] = value
            changes.append(f"{name}: {str(value).lower() if isinstance(value, bool) else value}")

    def section(mapping: Any, key: str, name: str) -> Any:
        found = mapping.get(key)
        if found is None:
            found = mapping[key] = {}
        if not isinstance(found, Mapping):
            raise SetupError(f"{name} in config.yaml is no mapping; mend it by hand first")
        return mapping[key]

    plugins = section(document, "plugins", "plugins")
    enabled = plugins.get("enabled")
    if enabled is None:
        enabled = plugins["enabled"] = []
    if not isinstance(enabled, list):
        raise SetupError("plugins.enabled in config.yaml is no list; mend it by hand first")
    if PLUGIN not in enabled:
        plugins["enabled"].append(PLUGIN)
        changes.append(f"plugins.enabled: + {PLUGIN}")
    put(document, "group_sessions_per_user", False, "group_sessions_per_user")
    display = section(document, "display", "display")
    put(display, "busy_input_mode", "queue", "display.busy_input_mode")
    # Streaming for Borgee alone: the global switch would change every other platform.
    platforms = section(display, "platforms", "display.platforms")
    override = section(platforms, PLUGIN, "display.platforms.borgee")
    put(override, "streaming", True, "display.platforms.borgee.streaming")
    block = section(document, PLUGIN, PLUGIN)
    put(block, "enabled", True, "borgee.enabled")
    put(block, "base_url", base_url, "borgee.base_url")
    if _is_plain_loopback(base_url):
        put(block, "allow_insecure_loopback", True, "borgee.allow_insecure_loopback")
    return changes


def _is_plain_loopback(base_url: str) -> bool:
    try:
        parts = urlsplit(base_url)
        return parts.scheme == "http" and is_loopback((parts.hostname or "").removesuffix("."))
    except ValueError:
        return False


def _round_trip(path: Path) -> tuple[Any, Callable[[], str]]:
    try:
        from ruamel.yaml import YAML
    except ImportError as error:
        raise SetupError(
            "setup needs ruamel.yaml, which Hermes' own environment has: run it there"
        ) from error
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    try:
        text = path.read_text(encoding="utf-8-sig") if path.exists() else ""
        document = yaml.load(text) if text.strip() else None
    except Exception as error:  # also a 31st of June, and what else is YAML but no value
        raise SetupError(f"{path} can't be read as YAML; mend it first") from error
    if document is None:
        document = yaml.load("{}")
        document.fa.set_block_style()
    if not isinstance(document, Mapping):
        raise SetupError(f"{path} must hold a mapping of settings")

    def dump() -> str:
        out = io.StringIO()
        yaml.dump(document, out)
        return out.getvalue()

    return document, dump


def with_variable(text: str, name: str, value: str) -> str:
    """``.env`` text in which ``name`` has ``value``; a repeated line is kept once."""
    # Within single quotes nothing is expanded or cut off.
    quoted = value.replace("\\", "\\\\").replace("'", "\\'")
    line = f"{name}={value}" if _PLAIN.fullmatch(value) else f"{name}='{quoted}'"
    pattern = re.compile(rf"^\s*(?:export\s+)?{re.escape(name)}\s*=")
    kept: list[str] = []
    done = False
    for old in text.split("\n"):
        if pattern.match(old):
            if not done:
                kept.append(line)
            done = True
        else:
            kept.append(old)
    while kept and not kept[-1].strip():
        kept.pop()
    if not done:
        kept.append(line)
    return "\n".join(kept) + "\n"


def _read(env: Path) -> str:
    try:
        # Bytes that are no UTF-8 belong to others' lines: they come out as they went in.
        return env.read_bytes().removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise SetupError(f"{env} can't be read: {error.strerror}") from error


def _variables(env_text: str) -> dict[str, str]:
    from dotenv import dotenv_values

    found = dotenv_values(stream=io.StringIO(env_text))
    return {name: value for name, value in found.items() if value is not None}


def _mode_of(path: Path, default: int) -> int:
    try:
        return path.stat().st_mode & 0o777
    except OSError:
        return default


def _replace(path: Path, text: str, *, mode: int) -> None:
    try:
        _replace_file(path, text, mode)
    except OSError as error:
        raise SetupError(f"{path} can't be written: {error.strerror}") from error


def _replace_file(path: Path, text: str, mode: int) -> None:
    # The target of a link is replaced, not the link.
    path = path.resolve()
    prefix = f".{path.name}.setup-"
    for left in path.parent.glob(f"{prefix}*"):
        if time.time() - left.stat().st_mtime > 60:
            left.unlink()  # by a setup that was killed; it may hold the key
    owner = (path if path.exists() else path.parent).stat()
    with replacing(path, mode, prefix=prefix) as file:
        if os.geteuid() == 0:
            # Set up by root for another user, who has to be able to read it.
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
        file.write(text.encode("utf-8", "surrogateescape"))
