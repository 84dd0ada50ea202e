"""``plugins.enabled`` in ``config.yaml``, changed by a few characters and nothing else.

The YAML parser says where a node begins and ends; the edit is made in the text itself, so that
comments, order, quotes and line ends stay. The result is parsed again and has to be what was
meant, else nothing is written. The parser is the one that Hermes brings.
"""

from __future__ import annotations

import copy
from typing import Any


class ConfigEditError(Exception):
    """The file is written in a way that this edit does not master. ``str()`` is a clause."""


def is_enabled(text: str, name: str) -> bool:
    """Raises: ConfigEditError for what is no YAML mapping."""
    plugins = _section(_load(text))
    return name in _listed(plugins, "enabled") and name not in _listed(plugins, "disabled")


def enable(text: str, name: str) -> str:
    """``text`` with ``name`` enabled and not disabled. Raises: ConfigEditError."""
    wanted = copy.deepcopy(_load(text)) or {}
    if wanted.get("plugins") is None:
        wanted["plugins"] = {}
    plugins = wanted["plugins"]
    if name not in _listed(_section(wanted), "enabled"):
        plugins["enabled"] = [*_listed(plugins, "enabled"), name]
    if name in _listed(plugins, "disabled"):
        plugins["disabled"] = [one for one in plugins["disabled"] if one != name]
        text = _remove(text, "disabled", name)
    if name not in _listed(_section(_load(text)), "enabled"):
        text = _add(text, name)
    return _verified(text, wanted)


def withdraw(text: str, name: str) -> str:
    """``text`` without ``name`` in ``plugins.enabled``. Raises: ConfigEditError."""
    wanted = copy.deepcopy(_load(text))
    if name not in _listed(_section(wanted), "enabled"):
        return text
    wanted["plugins"]["enabled"] = [one for one in wanted["plugins"]["enabled"] if one != name]
    return _verified(_remove(text, "enabled", name), wanted)


def _add(text: str, name: str) -> str:
    end = "\r\n" if "\r\n" in text else "\n"
    root = _compose(text)
    if root is None:
        return f"{_ended(text, end)}plugins:{end}  enabled:{end}    - {name}{end}"
    plugins = _child(root, "plugins")
    if plugins is None:
        if root.flow_style:
            return _insert(text, root.start_mark.index + 1, f"plugins: {{enabled: [{name}]}}", root)
        return f"{_ended(text, end)}plugins:{end}  enabled:{end}    - {name}{end}"
    if not _is_mapping(plugins) or not plugins.value:
        # Nothing but `plugins:`, `plugins: ~` or `plugins: {}`.
        start, stop = plugins.start_mark.index, plugins.end_mark.index
        return f"{text[:start].rstrip(' ')} {{enabled: [{name}]}}{text[stop:]}"
    enabled = _child(plugins, "enabled")
    if enabled is None:
        if plugins.flow_style:
            return _insert(text, plugins.start_mark.index + 1, f"enabled: [{name}]", plugins)
        first = plugins.value[0][0].start_mark
        indent = " " * first.column
        start = first.index - first.column
        return f"{text[:start]}{indent}enabled:{end}{indent}  - {name}{end}{text[start:]}"
    if not enabled.value or not isinstance(enabled.value, list):
        start, stop = enabled.start_mark.index, enabled.end_mark.index
        return f"{text[:start].rstrip(' ')} [{name}]{text[stop:]}"
    last = enabled.value[-1]
    if enabled.flow_style:
        place = last.end_mark.index
        return f"{text[:place]}, {name}{text[place:]}"
    line_start, line_stop = _line_of(text, last.start_mark.index)
    dash = text[line_start:].partition("-")[0]
    return f"{_ended(text[:line_stop], end)}{dash}- {name}{end}{text[line_stop:]}"


def _remove(text: str, key: str, name: str) -> str:
    root = _compose(text)
    sequence = _child(_child(root, "plugins"), key)
    items = sequence.value
    index = next(i for i, item in enumerate(items) if item.value == name)
    item = items[index]
    if sequence.flow_style:
        start = items[index - 1].end_mark.index if index else item.start_mark.index
        stop = item.end_mark.index
        if not index and len(items) > 1:
            stop = items[1].start_mark.index
        return text[:start] + text[stop:]
    line_start, line_stop = _line_of(text, item.start_mark.index)
    if len(items) > 1:
        return text[:line_start] + text[line_stop:]
    # The last one: an empty list has to be written out.
    place = _key(_child(root, "plugins"), key).end_mark.index + 1
    return f"{text[:place]} []{text[place:line_start]}{text[line_stop:]}"


def _insert(text: str, place: int, piece: str, mapping: Any) -> str:
    comma = ", " if mapping.value else ""
    return f"{text[:place]}{piece}{comma}{text[place:]}"


def _verified(text: str, wanted: Any) -> str:
    if _load(text) != wanted:
        raise ConfigEditError("plugins.enabled is written in an unusual way")
    return text


def _load(text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ConfigEditError("this Python has no YAML parser") from error
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise ConfigEditError(f"it is no valid YAML{where}") from error
    except (ValueError, TypeError, RecursionError) as error:  # a 45th of March, a tower of lists
        raise ConfigEditError(f"the YAML parser gives up: {type(error).__name__}") from error
    if document is not None and not isinstance(document, dict):
        raise ConfigEditError("it holds no mapping of settings")
    return document


def _section(document: Any) -> dict[str, Any]:
    plugins = (document or {}).get("plugins")
    if plugins is not None and not isinstance(plugins, dict):
        raise ConfigEditError("plugins is no mapping")
    return plugins or {}


def _listed(plugins: dict[str, Any], key: str) -> list[Any]:
    names = plugins.get(key)
    if names is not None and not isinstance(names, list):
        raise ConfigEditError(f"plugins.{key} is no list")
    return names or []


def _compose(text: str) -> Any:
    import yaml

    return yaml.compose(text, yaml.SafeLoader)


def _is_mapping(node: Any) -> bool:
    import yaml

    return isinstance(node, yaml.MappingNode)


def _child(mapping: Any, name: str) -> Any:
    return next((value for key, value in mapping.value if key.value == name), None)


def _key(mapping: Any, name: str) -> Any:
    return next(key for key, _ in mapping.value if key.value == name)


def _line_of(text: str, index: int) -> tuple[int, int]:
    """Where the line with ``index`` begins, and where the next one does."""
    start = text.rfind("\n", 0, index) + 1
    stop = text.find("\n", index)
    return start, len(text) if stop < 0 else stop + 1


def _ended(text: str, end: str) -> str:
    return text if not text or text.endswith("\n") else text + end
