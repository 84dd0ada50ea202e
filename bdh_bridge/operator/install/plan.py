"""What an installation has to change in a home, worked out before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import bdh_bridge
from bdh_bridge.gates.blacklist import resolve_blacklist
from bdh_bridge.operator.effective import without_credentials
from bdh_bridge.operator.install import config_file, env_file
from bdh_bridge.operator.install.record import mode_of, read_file
from bdh_bridge.operator.install.steps import FileStep, Step
from bdh_bridge.settings import Loaded, Settings, load, variable

NAME = bdh_bridge.DISTRIBUTION
EMBEDDED_URL = "http://127.0.0.1:8643"


class InstallError(Exception):
    """It can't be done as asked. ``str()`` is a sentence that says what to do."""


@dataclass
class Plan:
    """``steps`` in their order; ``notes`` are sentences for the operator."""

    steps: list[Step] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def enable_step(home: Path, name: str = NAME) -> FileStep | None:
    """``config.yaml`` with the plugin enabled; None if it is. Raises: InstallError."""
    path = home / "config.yaml"
    if (home / ".managed").exists():
        raise InstallError(
            f"{path} is managed by the system: add {name} to plugins.enabled where it is made"
        )
    before = _read(path)
    try:
        text = (before or b"").decode("utf-8")
        after = config_file.enable(text, name)
    except (UnicodeDecodeError, config_file.ConfigEditError) as error:
        raise InstallError(
            f"{path} can't be changed ({error}); "
            f"run instead: hermes plugins enable {name} --no-allow-tool-override"
        ) from error
    if after == text and before is not None:
        return None
    return FileStep(
        path,
        before,
        after.encode(),
        mode_of(path) or 0o600,
        f"{path}: {name} is added to plugins.enabled",
    )


def settings_step(home: Path, variables: Mapping[str, str]) -> FileStep | None:
    """``.env`` with a block of ``variables`` added to what the block holds; None if nothing
    changes. Raises: InstallError for values that are not usable."""
    path = home / ".env"
    before = _read(path)
    try:
        text = (before or b"").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InstallError(f"{path} is no UTF-8 text; mend it first") from error
    have, ours = env_file.values(text), env_file.block(text)
    wanted = {name: value for name, value in variables.items() if have.get(name) != value}
    if not wanted:
        return None
    check_values(wanted)
    try:
        after = env_file.with_block(text, {**ours, **wanted})
    except ValueError as error:
        raise InstallError(f"{', '.join(wanted)}: {error}") from error
    if any(env_file.values(after).get(name) != value for name, value in wanted.items()):
        raise InstallError(f"{path} can't hold one of these values; set it by hand")
    return FileStep(
        path,
        before,
        after.encode(),
        0o600,
        f"{path} (owner-only): {', '.join(shown(*pair) for pair in wanted.items())}",
    )


def _read(path: Path) -> bytes | None:
    """None for a file that isn't there. Raises: InstallError."""
    try:
        return read_file(path)
    except OSError as error:
        raise InstallError(
            f"{path} can't be read ({error.strerror}); mend that and run it again"
        ) from error


def blacklist_step(loaded: Loaded) -> FileStep | None:
    """The blacklist with commented examples, where the default one is meant and missing."""
    path = loaded.paths.blacklist
    if resolve_blacklist(loaded.settings, loaded.paths) != path or path.exists():
        return None
    return FileStep(
        path, None, example_blacklist().encode(), 0o600, f"{path}: made, with commented examples"
    )


def example_blacklist() -> str:
    """``prompt_blacklist.example.txt``: in the package, or at the root of a checkout."""
    package = Path(bdh_bridge.__file__).parent
    for folder in (package, package.parent):
        path = folder / "prompt_blacklist.example.txt"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    return "# One rule a line; see docs/gates.md\n"


def check_values(variables: Mapping[str, str]) -> None:
    """Raises: InstallError for a name that is no setting, or a value that does not parse."""
    known = {variable(name) for name in Settings.model_fields}
    unknown = [name for name in variables if name not in known]
    if unknown:
        raise InstallError(f"{unknown[0]} is no setting; see: bdh-bridge config")
    # A home that can't exist: the values alone are looked at.
    warnings = load(Path("/dev/null/none"), environ=variables).warnings
    if warnings:
        raise InstallError(warnings[0].partition("; using the default")[0])


def shown(name: str, value: str) -> str:
    """``NAME=value`` for a screen: a secret is only named."""
    field_name = next((one for one in Settings.model_fields if variable(one) == name), "")
    default = Settings.model_fields[field_name].get_default() if field_name else ""
    if type(default).__name__ == "SecretStr":
        return f"{name}=(hidden)"
    return f"{name}={without_credentials(value)}"
