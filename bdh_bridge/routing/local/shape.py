"""What can be seen of a message without understanding it: length, marks, layout, cue words."""

from __future__ import annotations

import math
import re

from bdh_bridge.gates import eligibility
from bdh_bridge.gates.reasons import Reason
from bdh_bridge.routing.local import cues
from bdh_bridge.routing.local.conversation import Conversation

#: Characters in which cue words are looked for: the beginning, and the end, where a long message
#: often asks its question.
HEAD, TAIL = 500, 200

_WORD = re.compile(r"\w+")
_LOG_LINE = re.compile(
    r"^\s*(?:\[?\d{4}-\d\d-\d\d|\[?\d\d:\d\d:\d\d|\[\w+\]|(?:ERROR|WARN|INFO|DEBUG|FATAL)\b|at \S+"
    r"|File \"|Traceback|[\w./-]+:\d+:|\$ |> |# )",
    re.MULTILINE,
)
_CODE = re.compile(
    r"```|[{};]\s*$|^\s*(?:def|class|import|const|let|var|SELECT|function|return)\b|=>|\(\)|::",
    re.MULTILINE,
)
_JSON_KEY = re.compile(r"\"[\w-]+\"\s*:")
_LIST_ITEM = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s", re.MULTILINE)
_URL = re.compile(r"https?://")
_PATH = re.compile(
    r"(?:^|\s)[~.]?/[\w./-]+|\b\w+\.(?:py|js|ts|md|json|ya?ml|txt|log|sh|sql|csv|pdf)\b"
)
_NUMBER = re.compile(r"\d+")
_EMOJI = re.compile("[\u2600-\u27bf\U0001f300-\U0001faff]")
_QUOTE = re.compile(r"^\s*>|[«“「]", re.MULTILINE)
_ELLIPSIS = re.compile(r"\.\.\.|…")
_SENTENCE = re.compile(r"[.!?。！？]+")
_CJK = re.compile("[\u3040-\u30ff\u3400-\u9fff]")
_FALSE_FRIENDS = re.compile(r"\"(?:should_retrieve|store_candidate|should_query)\"")

NAMES: tuple[str, ...] = (
    "bias_history",
    "history_messages",
    "length_log",
    "under_12",
    "under_24",
    "under_40",
    "over_200",
    "over_600",
    "words_log",
    "mean_word",
    "lines_log",
    "sentences_log",
    "question_mark",
    "ends_with_question",
    "question_share",
    "exclamation",
    "ellipsis",
    "ends_with_colon",
    "starts_lower",
    "upper_share",
    "digit_share",
    "numbers",
    "symbol_share",
    "cjk",
    "code",
    "json",
    "log_lines",
    "list_items",
    "url",
    "path",
    "emoji",
    "quote",
    "starts_with_slash",
    "starts_with_bracket",
    "route_keys",
    "gate_casual",
    "gate_cue",
    "gate_question",
    "gate_long",
    "short_with_history",
    "question_with_history",
    "user_question_before",
    "user_short_before",
    "user_code_before",
    "assistant_asks_before",
    "assistant_long_before",
    *(f"cue_{name}" for name in cues.NAMES),
    *(f"opens_{name}" for name in cues.NAMES),
    *(f"only_{name}" for name in ("decided", "learned", "lasting", "recall", "why", "plan")),
    *(f"before_{name}" for name in cues.NAMES),
    *(f"assistant_{name}" for name in cues.NAMES),
)
"""The order of :func:`shape`'s values."""


def shown(text: str) -> str:
    """``text`` as cues are looked for in it."""
    cut = text if len(text) <= HEAD + TAIL else f"{text[:HEAD]} \n {text[-TAIL:]}"
    return eligibility.normalise(cut)


def shape(given: Conversation) -> list[float]:
    """One value a name of :data:`NAMES`, each between 0 and about 1."""
    text = given.message
    seen = shown(text)
    words = _WORD.findall(seen)
    length = max(len(text), 1)
    lines = text.count("\n") + 1
    asks = "?" in seen or "¿" in seen
    gate = eligibility.eligibility(text)
    user, assistant = given.last("user"), given.last("assistant")
    before, after = shown(user), shown(assistant)
    found = cues.counts(seen)
    in_user, in_assistant = cues.counts(before), cues.counts(after)
    stripped = text.rstrip()
    short = eligibility.weigh(seen) < eligibility.LONG
    question = asks or cues.opens_with("question_word", seen)
    values = [
        float(bool(given.history)),
        len(given.history) / 6,
        math.log1p(length) / 8,
        float(length < 12),
        float(length < 24),
        float(length < 40),
        float(length > 200),
        float(length > 600),
        math.log1p(len(words)) / 6,
        min(sum(map(len, words)) / max(len(words), 1) / 10, 2.0),
        math.log1p(lines) / 5,
        math.log1p(len(_SENTENCE.findall(text))) / 4,
        float(asks),
        float(stripped.endswith(("?", "？"))),
        min((text.count("?") + text.count("？")) / 3, 1.0),
        float("!" in text or "！" in text),
        float(_ELLIPSIS.search(text) is not None),
        float(stripped.endswith((":", "："))),
        float(text[:1].islower()),
        sum(char.isupper() for char in text) / length,
        sum(char.isdigit() for char in text) / length,
        min(len(_NUMBER.findall(text)) / 5, 1.0),
        sum(not char.isalnum() and not char.isspace() for char in text) / length,
        float(len(_CJK.findall(text)) > 0.2 * length),
        min(len(_CODE.findall(text)) / 4, 1.0),
        min(len(_JSON_KEY.findall(text)) / 3, 1.0),
        len(_LOG_LINE.findall(text)) / lines,
        min(len(_LIST_ITEM.findall(text)) / 4, 1.0),
        float(_URL.search(text) is not None),
        float(_PATH.search(text) is not None),
        float(_EMOJI.search(text) is not None),
        float(_QUOTE.search(text) is not None),
        float(text.startswith(("/", "!"))),
        float(text.startswith(("[", "{", "<"))),
        float(_FALSE_FRIENDS.search(text) is not None),
        float(gate.reason == Reason.CASUAL),
        float(gate.reason == Reason.KNOWLEDGE_CUE),
        float(gate.reason == Reason.QUESTION),
        float(gate.reason == Reason.LONG_ENOUGH),
        float(short and bool(given.history)),
        float(question and bool(given.history)),
        float("?" in before),
        float(0 < len(user) < eligibility.LONG),
        float(_CODE.search(user) is not None),
        float(assistant.rstrip().endswith(("?", "？"))),
        float(len(assistant) > 150),
        *(number / 4 for number in found.values()),
        *(float(cues.opens_with(name, seen)) for name in cues.NAMES),
        *(
            float(found[name] > 0 and not question)
            for name in ("decided", "learned", "lasting", "recall", "why", "plan")
        ),
        *(number / 4 for number in in_user.values()),
        *(number / 4 for number in in_assistant.values()),
    ]
    return values
