"""What of a value is kept: the check of every attribute against its declaration."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import Enum
from math import isfinite
from typing import Any, Literal

from bdh_otel import attributes as attr

log = logging.getLogger(__name__)

Content = Literal["off", "preview", "full"]

_INT64 = 1 << 63
_EXACT: Mapping[attr.Type, type] = {"string": str, "bool": bool, "int": int, "float": float}


class AttributeMisuse(ValueError):
    """An attribute that is not declared, or a value of another type than declared."""


class Rules:
    """How one tracer treats attributes.

    ``content`` is how much of people's text is kept. ``strict`` raises :class:`AttributeMisuse`
    where production drops the attribute and warns once.
    """

    def __init__(self, content: Content, *, strict: bool) -> None:
        self._strict = strict
        self._warned: set[str] = set()
        self._content_limit = {"off": 0, "preview": 200, "full": attr.MAX_CONTENT}[content]
        #: Codes are checked where it may raise: production keeps what a newer part may say.
        self._codes = {
            name: frozenset(declared.codes)
            for name, declared in attr.TABLE.items()
            if strict and declared.codes
        }
        self._limits: dict[str, tuple[attr.Type, Any, int]] = {
            name: (declared.type, _EXACT.get(declared.type), _limit(declared, content))
            for name, declared in attr.TABLE.items()
        }

    def put(self, target: dict[str, attr.Value], name: str, value: Any) -> None:
        """Set ``target[name]`` to what may be kept of ``value``; hot, so it takes no detours."""
        declared = self._limits.get(name)
        if declared is None:
            self._refuse(name, "is not declared in bdh_otel.attributes")
            return
        if value is None:
            return
        kind, exact, limit = declared
        if type(value) is not exact:
            self._put_rare(target, name, value, kind, limit)
        elif exact is str:
            if self._codes and value not in self._codes.get(name, (value,)):
                self._refuse(name, f"has no code {value!r}")
            if limit:
                short = len(value) <= limit and value.isascii()
                target[name] = value if short else cut(value, limit)
        elif isfinite(value) if exact is float else -_INT64 <= value < _INT64:
            target[name] = value
        else:
            self._refuse(name, f"can't be exported with the value {value}")

    def checked(self, attributes: Mapping[str, Any] | None) -> dict[str, attr.Value]:
        """The part of ``attributes`` that may be kept."""
        kept: dict[str, attr.Value] = {}
        for name, value in (attributes or {}).items():
            self.put(kept, name, value)
        return kept

    def content(self, text: str) -> str | None:
        """What may be kept of a text that is no attribute: a status, an exception's message."""
        return cut(text, self._content_limit) if self._content_limit else None

    def _put_rare(
        self, target: dict[str, attr.Value], name: str, value: Any, kind: attr.Type, limit: int
    ) -> None:
        if isinstance(value, Enum):
            self.put(target, name, value.value)
        elif kind == "string" and isinstance(value, str):
            self.put(target, name, str(value))
        elif kind == "float" and type(value) is int:
            try:
                self.put(target, name, float(value))
            except OverflowError:
                self._refuse(name, "can't be exported: it is beyond a float's range")
        elif kind == "int" and type(value) is float and value.is_integer():
            self.put(target, name, int(value))  # a peer's JSON may have it so
        elif kind == "strings" and isinstance(value, (list, tuple, set, frozenset)):
            items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
            if limit:
                target[name] = tuple(
                    cut(str(item), limit) for item in list(items)[: attr.MAX_ITEMS]
                )
        else:
            self._refuse(name, f"is declared as {kind}, not {type(value).__name__}")

    def _refuse(self, name: str, why: str) -> None:
        if self._strict:
            raise AttributeMisuse(f"attribute {name!r} {why}")
        if name not in self._warned and len(self._warned) < 100:
            self._warned.add(name)
            log.warning("[bdh-bridge] span attribute %.100r dropped: it %s", name, why)


def cut(text: str, limit: int) -> str:
    """At most ``limit`` characters, the last an ellipsis if some were cut; valid Unicode.

    Lone surrogates, which some hosts pass on from broken input, can't be stored as UTF-8.
    """
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _limit(declared: attr.Attribute, content: Content) -> int:
    if declared.privacy != "content":
        return attr.MAX_CHARACTERS
    return {"off": 0, "preview": declared.preview, "full": attr.MAX_CONTENT}[content]
