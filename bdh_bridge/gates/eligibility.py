"""Gate ``eligibility``: is this message likely to gain from the graph, judged by its words alone?

Casual words are asked first, so "how are you?" is small talk in spite of its question mark;
then cues and questions, so "why Redis?" passes in spite of its length; then the length.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from bdh_bridge.gates import eligibility_words as words
from bdh_bridge.gates.decision import Decision, GatePath, allow, skip
from bdh_bridge.gates.reasons import Reason
from bdh_bridge.gates.trie import trie_pattern
from bdh_otel import attributes as attr

NAME = "eligibility"
#: Bounds on the weighed length. From the first to the second a message needs a cue to pass, as
#: it does below; the two give different reasons.
SHORTEST, LONG = 24, 40
#: Characters that are looked at: more than enough to be long, few enough to be quick.
WINDOW = 500
#: Words in which cues are looked for; a message of more passes by its length anyway.
MAX_WORDS = 60

_APOSTROPHE = re.compile("[\u2018\u2019\u02bc\uff07`\u00b4]")
_ACCENTED = re.compile("[\u00c0-\u052f\u1e00-\u1fff]")
_ACCENT = re.compile("[\u0300-\u036f]")
# Letters, digits, and the blocks whose vowel signs are marks to Python but parts of words.
_LETTER = r"[\w\u0591-\u05c7\u064b-\u065f\u0900-\u0963\u0966-\u109f\u1780-\u17d3]"
_WORD = re.compile(f"{_LETTER}+(?:'{_LETTER}+)*")
_SPACELESS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
# A question mark inside of a URL asks nothing; after a letter of a script without spaces the
# next sentence may follow at once.
_QUESTION_MARK = re.compile(r"[?؟](?![\w=&/%+-])|(?<=[^\x00-\x7f])[?؟]|¿")
_REPEATED = re.compile(r"(.)\1+")
_LAUGHTER = re.compile(
    r"[bm]?(ha|ah|he|eh|hi|ih|ho|oh|ja|aj|je|ej|rs|ks|ke|xa|ха|хе)\1+[a-zх]?|k{2,}|w{2,}|5{3,}|x+d+"
)


def eligibility(text: str) -> Decision:
    """The read path's mechanical decision on a message."""
    shown = normalise(text[:WINDOW])
    tokens = _WORD.findall(shown)
    if is_casual(tokens):
        return skip(NAME, GatePath.READ, Reason.CASUAL)
    cue = find_cue(shown, tokens)
    if cue:
        return allow(NAME, GatePath.READ, Reason.KNOWLEDGE_CUE, cue)
    if is_question(shown, tokens):
        return allow(NAME, GatePath.READ, Reason.QUESTION)
    length = weigh(shown)
    threshold = SHORTEST if length < SHORTEST else LONG
    measured: dict[str, Any] = {
        attr.GATE_VALUE: length,
        attr.GATE_THRESHOLD: float(threshold),
        attr.GATE_UNIT: "characters",
    }
    if length >= LONG:
        return allow(NAME, GatePath.READ, Reason.LONG_ENOUGH, **measured)
    reason = Reason.TOO_SHORT if length < SHORTEST else Reason.NO_CUE
    return skip(NAME, GatePath.READ, reason, **measured)


def normalise(text: str) -> str:
    """Case, accents, apostrophes, full-width forms and blanks made equal."""
    if text.isascii():
        return " ".join(text.lower().replace("`", "'").split())
    folded = unicodedata.normalize("NFKC", _APOSTROPHE.sub("'", text)).casefold()
    # Accents of Latin, Greek and Cyrillic alone: the marks of other scripts are letters.
    if _ACCENTED.search(folded):
        bare = _ACCENT.sub("", unicodedata.normalize("NFD", folded))
        folded = unicodedata.normalize("NFC", bare)
    return " ".join(folded.split())


def is_casual(tokens: list[str]) -> bool:
    """Nothing but small talk? So is a message without any word (emoji, dots)."""
    position, casual = 0, not tokens
    while position < len(tokens):
        length = _casual_at(tokens, position)
        if length:
            casual = True
        elif _bare(tokens[position]) in _FILLERS:
            length = 1
        else:
            return False
        position += length
    return casual


def find_cue(text: str, tokens: list[str]) -> str:
    """The first word or phrase that points at knowledge, as it is in the lists, or ``""``."""
    found = _CUE.search(" ".join(tokens[:MAX_WORDS]))
    if found:
        return found[0]
    return "" if text.isascii() else next((piece for piece in _CUE_PIECES if piece in text), "")


def is_question(text: str, tokens: list[str]) -> bool:
    if _QUESTION_MARK.search(text):
        return True
    start = f" {' '.join(tokens[:3])} "
    return (
        any(part in _QUESTION_WORDS for token in tokens[:3] for part in {token, *token.split("'")})
        or start.startswith(_FIRST_QUESTION_WORDS)
        or (not text.isascii() and any(piece in text for piece in _QUESTION_PIECES))
    )


def weigh(text: str) -> float:
    """The length in characters of an alphabet, each weighed by what its script says with one.

    The weights are how many Latin letters a translation takes: about three for an ideograph,
    two for a kana or a Korean syllable, one and a half for a consonant of Thai, Lao, Khmer or
    Burmese, whose marks count for nothing, as do emoji and other symbols.
    """
    if text.isascii():
        return float(len(text))
    return float(sum(_weight(char) for char in text))


def _weight(char: str) -> float:
    code = ord(char)
    if code < 0x250:
        return 1.0
    if 0x3400 <= code <= 0x9FFF or 0xF900 <= code <= 0xFAFF or 0x20000 <= code <= 0x3FFFF:
        return 3.0
    if 0x3040 <= code <= 0x30FF or 0xAC00 <= code <= 0xD7A3:
        return 2.0
    if unicodedata.category(char) in ("Mn", "Me", "Cf", "Cs", "Co", "Cn", "So", "Sk"):
        return 0.0
    if 0x0E00 <= code <= 0x0EFF or 0x1000 <= code <= 0x109F or 0x1780 <= code <= 0x17FF:
        return 1.5
    return 1.0


def _casual_at(tokens: list[str], position: int) -> int:
    """How many tokens from ``position`` on are one casual phrase, the longest there is."""
    token = tokens[position]
    for length in range(min(_LONGEST_PHRASE, len(tokens) - position), 0, -1):
        if _bare(" ".join(tokens[position : position + length])) in _CASUAL:
            return length
    if _LAUGHTER.fullmatch(token):
        return 1
    return 1 if _SPACELESS.match(token) and _is_casual_run(_bare(token)) else 0


def _is_casual_run(run: str) -> bool:
    """Is this run without spaces put together of casual pieces alone?"""
    if len(run) > 40:
        return False
    reachable = {0}
    for end in range(1, len(run) + 1):
        if any(run[start:end] in _CASUAL for start in reachable):
            reachable.add(end)
    return len(run) in reachable


def _bare(word: str) -> str:
    """Repeated letters said once: ``grazieee``, ``okkk`` and ``helo`` are what they mean."""
    return _REPEATED.sub(r"\1", word)


def _items(block: str) -> list[str]:
    parts = normalise(block.replace("\n", ",")).split(",")
    return [item for part in parts if (item := " ".join(_WORD.findall(part)))]


_CASUAL = frozenset(map(_bare, _items(words.CASUAL)))
_FILLERS = frozenset(map(_bare, _items(words.FILLERS)))
_LONGEST_PHRASE = max(phrase.count(" ") + 1 for phrase in _CASUAL)
# After a blank or an elided article (l'architettura); a stem may go on, a word may not.
_CUE = re.compile(
    rf"(?<![^ '])(?:{trie_pattern(_items(words.CUE_STEMS))}"
    rf"|{trie_pattern(_items(words.CUE_WORDS + words.CUE_PHRASES))}(?![^ ']))"
)
_CUE_PIECES = tuple(_items(words.CUE_PIECES))
_QUESTION_WORDS = frozenset(_items(words.QUESTION_WORDS))
_FIRST_QUESTION_WORDS = tuple(f" {phrase} " for phrase in _items(words.FIRST_QUESTION_WORDS))
_QUESTION_PIECES = tuple(_items(words.QUESTION_PIECES))
