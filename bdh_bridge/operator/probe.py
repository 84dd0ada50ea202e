"""Run by Hermes' own Python, by path: says as JSON what that environment and a home hold.

Only the standard library (and the YAML parser that Hermes brings) is used, since the packages
of the bridge may be missing where this runs.
"""

from __future__ import annotations

import importlib.metadata as metadata
import importlib.util
import json
import platform
import sys
from pathlib import Path
from typing import Any

ENTRY_POINTS = "hermes_agent.plugins"
#: Whoever registers it is a bridge, whatever its name.
TOOL = "bdh_query"


def look(home: Path, modules: dict[str, str], names: list[str]) -> dict[str, Any]:
    """``modules`` maps what is imported to the distribution that brings it; ``names`` are the
    plugins to look for."""
    return {
        "python": sys.executable,
        "python_version": platform.python_version(),
        "hermes": _version("hermes-agent"),
        "plugins": _entry_points(names),
        "missing": [package for module, package in modules.items() if not _importable(module)],
        "clones": _clones(home, names),
        "config": _config(home / "config.yaml"),
    }


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _entry_points(names: list[str]) -> list[dict[str, str]]:
    found = []
    for point in metadata.entry_points(group=ENTRY_POINTS):
        if point.name in names:
            distribution = getattr(point, "dist", None)
            found.append(
                {
                    "name": point.name,
                    "module": point.value,
                    "distribution": str(distribution.metadata["Name"]) if distribution else "",
                    "version": str(distribution.version) if distribution else "",
                }
            )
    return found


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _clones(home: Path, names: list[str]) -> list[dict[str, str]]:
    """Folders below ``plugins/`` whose manifest gives one of ``names``, or a tool of the bridge."""
    found = []
    try:
        folders = sorted(path for path in (home / "plugins").iterdir() if path.is_dir())
    except OSError:
        return []
    for folder in folders:
        manifest = _manifest(folder)
        name = str(manifest.get("name") or folder.name)
        if manifest and (name in names or TOOL in _names(manifest.get("provides_tools"))):
            found.append(
                {
                    "name": name,
                    "path": str(folder),
                    "version": str(manifest.get("version") or ""),
                    "ours": "yes" if _is_file(folder / "bdh_bridge" / "__init__.py") else "",
                }
            )
    return found


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # in a folder that may not be entered
        return False


def _manifest(folder: Path) -> dict[str, Any]:
    for name in ("plugin.yaml", "plugin.yml"):
        path = folder / name
        if _is_file(path):
            parsed, _ = _parse(path)
            return parsed if isinstance(parsed, dict) else {"name": folder.name}
    return {}


def _config(path: Path) -> dict[str, Any]:
    """The part of ``config.yaml`` that says which plugins are loaded."""
    try:
        path.stat()
    except FileNotFoundError:
        return {"exists": False, "error": "", "enabled": [], "disabled": []}
    except OSError:
        pass  # reading it says why
    parsed, error = _parse(path)
    if not error and not isinstance(parsed, dict | None):
        error = "it holds no mapping"
    plugins = parsed.get("plugins") if isinstance(parsed, dict) else None
    lists = plugins if isinstance(plugins, dict) else {}
    return {
        "exists": True,
        "error": error,
        "enabled": _names(lists.get("enabled")),
        "disabled": _names(lists.get("disabled")),
    }


def _parse(path: Path) -> tuple[Any, str]:
    try:
        import yaml
    except ImportError:
        return None, "this Python has no YAML parser"
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8-sig")), ""
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        return None, f"it is no valid YAML{f' (line {mark.line + 1})' if mark else ''}"
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        return None, f"it can't be read ({reason})"
    except (ValueError, TypeError, RecursionError) as error:  # a 45th of March, a tower of lists
        return None, f"the YAML parser gives up: {type(error).__name__}"


def _names(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else []


if __name__ == "__main__":
    question = json.loads(sys.argv[1])
    print(json.dumps(look(Path(question["home"]), question["modules"], question["names"])))
