"""Words that hint at what a message is for, in the languages that the encoder knows best.

Each group becomes one feature; how much it counts, and whether at all, is learned.
"""

from __future__ import annotations

import re

from bdh_bridge.gates.eligibility import normalise
from bdh_bridge.gates.trie import trie_pattern
from bdh_bridge.routing.local.cue_words import GROUPS

#: Ideographs and kana have no blanks around their words.
_SPACELESS = re.compile("[\u3040-\u30ff\u3400-\u9fff]")

NAMES = tuple(GROUPS)


def _pattern(block: str) -> tuple[re.Pattern[str], tuple[str, ...]]:
    items = [item for part in block.split(",") if (item := normalise(part))]
    pieces = tuple(sorted({item for item in items if _SPACELESS.search(item)}))
    stems = [item[:-1] for item in items if item.endswith("*")]
    words = [item for item in items if item not in pieces and not item.endswith("*")]
    alternatives = [rf"{trie_pattern(words)}(?=[^\w]|$)"]
    if stems:
        alternatives.append(trie_pattern(stems))
    # After a blank, a mark, or an elided article (l'architettura).
    return re.compile(rf"(?<!\w)(?:{'|'.join(alternatives)})"), pieces


_PATTERNS = {name: _pattern(block) for name, block in GROUPS.items()}


def counts(shown: str) -> dict[str, int]:
    """How often each group occurs in ``shown``, which is normalised text; 4 at most."""
    spaceless = _SPACELESS.search(shown) is not None
    found: dict[str, int] = {}
    for name, (pattern, pieces) in _PATTERNS.items():
        number = 0
        for number, _ in enumerate(pattern.finditer(shown), start=1):
            if number == 4:
                break
        if spaceless and number < 4:
            number += sum(piece in shown for piece in pieces)
        found[name] = min(number, 4)
    return found


def opens_with(name: str, shown: str) -> bool:
    """Does normalised text begin with a word of this group?"""
    pattern, pieces = _PATTERNS[name]
    return pattern.match(shown) is not None or shown.startswith(pieces)
