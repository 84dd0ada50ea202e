"""The JSON object in a model's answer, which may be fenced, or stand amid prose or thoughts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from bdh_bridge.routing.hop import HopError, HopOutcome

ANSWER_LIMIT = 32_768
"""Characters that are looked at of an answer."""
_OBJECTS_LIMIT = 64
_THINKING = re.compile(r"<(think|thinking|reasoning)>.*?(</\1>|\Z)", re.DOTALL | re.IGNORECASE)

_Pairs = list[tuple[str, Any]]


def own_object(answer: str, keys: frozenset[str], material: str = "") -> dict[str, Any]:
    """The model's own object: the last one with any of ``keys``.

    ``material`` is all text that the model was given to work on: an object that already stands
    in it is a quotation, or an attempt to steer the model, and never the answer.

    Raises: :class:`HopError` with ``empty``, ``invalid_json`` or ``schema_rejected``.
    """
    text = _THINKING.sub("", answer[:ANSWER_LIMIT]).strip().lstrip("\ufeff")
    if not text:
        raise HopError(HopOutcome.EMPTY, "the answer is empty")
    found = list(_objects(text, keys))
    objects = [item for item in found if keys & item.keys()]
    if not objects:
        if found:
            raise HopError(HopOutcome.SCHEMA_REJECTED, "a JSON object without the flags")
        reason = "malformed JSON" if "{" in text else "no JSON object"
        raise HopError(HopOutcome.INVALID_JSON, reason)
    quoted = _all_objects(material, keys)
    own = [item for item in objects if item not in quoted]
    if not own:
        raise HopError(
            HopOutcome.SCHEMA_REJECTED, "the answer repeats an object of the message or its context"
        )
    return own[-1]  # a model that thinks aloud ends with its answer


def _objects(text: str, keys: frozenset[str]) -> Iterator[dict[str, Any]]:
    """The outermost JSON objects of ``text`` that can be read, in order; the first 64 braces
    are tried."""
    decoder = json.JSONDecoder(object_pairs_hook=_unique(keys), strict=False)
    position = 0
    for _ in range(_OBJECTS_LIMIT):
        position = text.find("{", position)
        if position < 0:
            return
        try:
            item, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            position += 1
            continue
        yield item


def _unique(keys: frozenset[str]) -> Callable[[_Pairs], dict[str, Any]]:
    def build(pairs: _Pairs) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in keys and key in found and found[key] is not value:
                raise ValueError(f"{key} stands there twice")
            found[key] = value
        return found

    return build


def _all_objects(text: str, keys: frozenset[str]) -> list[dict[str, Any]]:
    """Every JSON object of ``text`` with any of ``keys``, inner ones included, wherever it
    hides."""
    found: list[dict[str, Any]] = []

    def keep(pairs: _Pairs) -> dict[str, Any]:
        item = dict(pairs)
        if keys & item.keys():
            found.append(item)
        return item

    decoder = json.JSONDecoder(object_pairs_hook=keep, strict=False)
    position = text.find("{")
    while position >= 0:
        try:
            _, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            position += 1
        position = text.find("{", position)
    return found
