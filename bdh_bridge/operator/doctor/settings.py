"""Settings that don't parse, names that nobody reads, rules that can't be used."""

from __future__ import annotations

import difflib
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from bdh_bridge.gates.blacklist import Blacklist, resolve_blacklist
from bdh_bridge.operator.doctor.checks import Check, Subject, failed, ok, warning
from bdh_bridge.operator.install import env_file
from bdh_bridge.operator.plain import count
from bdh_bridge.settings import Settings, variable

#: Read by tests and scripts alone.
_OTHERS = frozenset({"BDH_OTEL_STRICT", "BDH_PYTHON", "BDH_VENV"})
#: Tests, and settings of telemetry endpoints that the operator has named.
_OTHER_PREFIXES = ("BDH_TEST_", "BDH_OTEL_ENDPOINT_")


def settings(subject: Subject) -> Iterator[Check]:
    loaded = subject.loaded
    for sentence in loaded.warnings:
        yield failed("settings", sentence, f"mend it in {loaded.paths.env_file} or the environment")
    unknown = _unknown(loaded.environment)
    for name, nearest in unknown:
        yield warning(
            "settings",
            f"{name} is no setting, nobody reads it",
            f"did you mean {nearest}?" if nearest else "remove it; see docs/configuration.md",
        )
    if not loaded.settings.enabled:
        yield warning("settings", "BDH_ENABLED=false: every turn passes untouched", "remove it")
    yield from _env_file(loaded.paths.env_file)
    if not loaded.warnings and not unknown:
        given = sum(origin != "default" for origin in loaded.origins.values())
        yield ok("settings", f"{given} set, all usable")


def _unknown(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    known = {variable(field) for field in Settings.model_fields}
    names = [name for name in environment if name.startswith("BDH_")]
    found = []
    for name in sorted(names):
        if name in known or name in _OTHERS or name.startswith(_OTHER_PREFIXES):
            continue
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        found.append((name, nearest[0] if nearest else ""))
    return found


def _env_file(path: Path) -> Iterator[Check]:
    try:
        found = path.stat()
    except OSError:
        return
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISREG(found.st_mode):
        yield failed(
            "settings", f"{path} is not a file: only the environment is used", "move it away"
        )
        return
    for line in env_file.unreadable_lines(path):
        yield failed(
            "settings",
            f"{path}: line {line} is no NAME=value and counts for nothing",
            "mend it: a quote may be missing at its end",
        )
    if mode & 0o077:
        yield warning(
            "settings",
            f"{path} has mode {mode:04o}: others on this machine can read your keys",
            f"run: chmod 600 {path}",
        )


def blacklist(subject: Subject) -> Iterator[Check]:
    loaded = subject.loaded
    path = resolve_blacklist(loaded.settings, loaded.paths)
    if not path.exists():
        if loaded.settings.prompt_blacklist_file:
            yield warning(
                "blacklist",
                f"{path}, which BDH_PROMPT_BLACKLIST_FILE names, does not exist",
                "create it, or remove the setting",
            )
        else:
            yield ok("blacklist", f"no file ({path}): no prompt is kept out")
        return
    try:
        path.read_bytes()
        status = path.stat()
    except OSError as error:
        yield failed(
            "blacklist", f"{path} can't be read ({error.strerror})", "mend its permissions"
        )
        return
    live = Blacklist(path)
    for rule in live.errors:
        yield warning(
            "blacklist",
            f"line {rule.line} of {path} is not used: {rule.error}",
            "mend it: bdh-bridge blacklist list, or the terminal UI",
        )
    if status.st_mode & 0o022:
        yield warning(
            "blacklist",
            f"{path} can be changed by others on this machine",
            f"run: chmod 600 {path}",
        )
    usable = sum(rule.usable for rule in live.rules)
    if not live.errors:
        yield ok("blacklist", f"{count(usable, 'rule')} in use ({path})")
