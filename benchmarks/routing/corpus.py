"""The labelled messages of the local router: read, checked, labelled blind, compared, thinned out.

    python benchmarks/routing/corpus.py check               # rules and counts
    python benchmarks/routing/corpus.py blind w01 > w01     # a writer's messages without labels
    python benchmarks/routing/corpus.py agreement           # of the writers and the second labels
    python benchmarks/routing/corpus.py duplicates --write  # near-duplicates, by embedding

``data/<writer>.jsonl`` holds what writers made, with their labels; ``labels/<writer>.jsonl`` the
second labels, given without sight of the first; ``duplicates.jsonl`` the ids that are left out.
Where the two labels differ, a message is *debatable* for that flag: both labels are kept.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bdh_bridge.routing.local.conversation import Conversation, conversation

HERE = Path(__file__).resolve().parent
DATA, LABELS, DUPLICATES = HERE / "data", HERE / "labels", HERE / "duplicates.jsonl"
FLAGS = ("read", "store")
LANGUAGES = frozenset(["en", "it", "es", "fr", "de", "pt", "nl", "pl", "ja", "zh", "mixed"])
KINDS = frozenset(
    [
        "question",
        "decision",
        "follow_up",
        "lesson",
        "fact",
        "plan",
        "preference",
        "command",
        "diagnostic",
        "status",
        "small_talk",
        "utility",
        "trivia",
        "pasted",
        "background",
        "adversarial",
        "other",
    ]
)
#: Writers who were asked for messages that look alike and are labelled differently: they teach,
#: but such messages are rarer in use, so they set no threshold and have a row of their own.
CONTRASTING = frozenset(f"w{number}" for number in range(13, 20))
#: Cosines from which two messages, and what came right before them, say the same.
SAME_MESSAGE, SAME_BEFORE = 0.93, 0.85


@dataclass(frozen=True, slots=True)
class Message:
    """``first`` and ``second`` are (read, store); ``second`` is None where nobody gave one."""

    id: str
    writer: str
    language: str
    kind: str
    history: tuple[dict[str, str], ...]
    text: str
    first: tuple[bool, bool]
    second: tuple[bool, bool] | None

    @property
    def debatable(self) -> tuple[bool, bool]:
        if self.second is None:
            return (False, False)
        return (self.first[0] != self.second[0], self.first[1] != self.second[1])

    @property
    def conversation(self) -> Conversation:
        host = [{"role": item["role"], "content": item["text"]} for item in self.history]
        # As the host hands it over: the current message stands at the end.
        return conversation(self.text, [*host, {"role": "user", "content": self.text}])


def read_corpus(*, duplicates: bool = False) -> list[Message]:
    """Every message in the order of its id; near-duplicates only where wanted.

    Raises: ValueError that names the file and line of a bad one.
    """
    left_out = set() if duplicates else {item["like"] for item in _rows(DUPLICATES)}
    second = {
        item["id"]: (item["read"], item["store"])
        for path in sorted(LABELS.glob("*.jsonl"))
        for item in _rows(path)
    }
    found = [
        _message(item, second.get(item["id"]))
        for path in sorted(DATA.glob("*.jsonl"))
        for item in _rows(path)
    ]
    return sorted((m for m in found if m.id not in left_out), key=lambda message: message.id)


def digest(messages: Iterable[Message]) -> str:
    """SHA-256 of all that training sees: texts, histories and both labels."""
    made = hashlib.sha256()
    for m in messages:
        fields = [m.id, m.writer, m.language, m.kind, list(m.history), m.text, m.first, m.second]
        made.update(json.dumps(fields, ensure_ascii=False, sort_keys=True).encode() + b"\n")
    return made.hexdigest()


def kappa(pairs: Sequence[tuple[bool, bool]]) -> float:
    """Cohen's kappa of two labellers, (observed - expected) / (1 - expected) agreement."""
    count = len(pairs)
    observed = sum(a == b for a, b in pairs) / count
    yes_a, yes_b = (sum(pair[at] for pair in pairs) / count for at in (0, 1))
    expected = yes_a * yes_b + (1 - yes_a) * (1 - yes_b)
    return 1.0 if expected == 1 else (observed - expected) / (1 - expected)


def agreement(messages: Sequence[Message]) -> dict[str, Any]:
    """How far the second labels agree with the writers', as they are."""
    both = [(m, m.second) for m in messages if m.second is not None]
    if not both:
        return {"messages": 0}
    found: dict[str, Any] = {"messages": len(both)}
    for at, flag in enumerate(FLAGS):
        pairs = [(m.first[at], second[at]) for m, second in both]
        found[flag] = {
            "agreement": round(sum(a == b for a, b in pairs) / len(pairs), 4),
            "kappa": round(kappa(pairs), 4),
            "writer_only": sum(a and not b for a, b in pairs),
            "second_only": sum(b and not a for a, b in pairs),
        }
    found["joint_agreement"] = round(sum(m.first == s for m, s in both) / len(both), 4)
    for group, key in (("writer", _writer), ("language", _language), ("kind", _kind)):
        parts: dict[str, list[bool]] = defaultdict(list)
        for m, s in both:
            parts[key(m)].append(m.first == s)
        found[f"joint_agreement_by_{group}"] = {
            name: round(sum(same) / len(same), 4) for name, same in sorted(parts.items())
        }
    return found


def near_duplicates(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Pairs in which the second says again what the first says, in the same situation."""
    import numpy as np

    from bdh_bridge.routing.local.encoder import LAYER, Encoder
    from bdh_bridge.routing.local.features import texts

    encoder = Encoder()
    parts = [texts(m.conversation) for m in messages]
    vectors = encoder.encode([part.message for part in parts])[:, :LAYER]
    told = [f"{part.user} {part.assistant}".strip() or "-" for part in parts]
    before = encoder.encode(told)[:, :LAYER]
    alike = (vectors @ vectors.T >= SAME_MESSAGE) & (before @ before.T >= SAME_BEFORE)
    found, gone = [], set()
    for one, other in zip(*np.nonzero(np.triu(alike, 1)), strict=True):
        if one in gone or other in gone:
            continue
        gone.add(other)
        cosine = float(vectors[one] @ vectors[other])
        found.append(
            {"id": messages[one].id, "like": messages[other].id, "cosine": round(cosine, 3)}
        )
    return found


def problems(messages: Sequence[Message]) -> list[str]:
    """What is wrong with the corpus, as sentences."""
    found = []
    for name, count in Counter(m.id for m in messages).items():
        if count > 1:
            found.append(f"{name}: {count} messages have this id")
    for m in messages:
        roles = [item["role"] for item in m.history]
        if m.language not in LANGUAGES or m.kind not in KINDS:
            found.append(f"{m.id}: unknown language or kind ({m.language}, {m.kind})")
        if not m.text.strip() or len(m.text) > 4_000:
            found.append(f"{m.id}: {len(m.text)} characters")
        if any(role not in ("user", "assistant") for role in roles):
            found.append(f"{m.id}: odd roles {roles}")
    return found


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_text("utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
    return rows


def _message(item: dict[str, Any], second: tuple[bool, bool] | None) -> Message:
    first = (item["read"], item["store"])
    if not all(type(flag) is bool for flag in (*first, *(second or ()))):
        raise ValueError(f"{item['id']}: a label is neither true nor false")
    return Message(
        item["id"],
        item["writer"],
        item["language"],
        item["kind"],
        tuple({"role": h["role"], "text": h["text"]} for h in item["history"]),
        item["message"],
        first,
        second,
    )


def _writer(message: Message) -> str:
    return message.writer


def _language(message: Message) -> str:
    return message.language


def _kind(message: Message) -> str:
    return message.kind


def _check(args: argparse.Namespace) -> int:
    messages = read_corpus(duplicates=True)
    found = problems(messages)
    for sentence in found:
        print(sentence)
    for what, key in (("writer", _writer), ("language", _language), ("kind", _kind)):
        print(what, dict(Counter(map(key, messages)).most_common()))
    ways = Counter((m.first[0], m.first[1]) for m in messages)
    print("(read, store)", {str(way): count for way, count in ways.items()})
    print(
        f"{len(messages)} messages, {sum(bool(m.history) for m in messages)} with history, "
        f"{sum(m.second is not None for m in messages)} labelled twice, "
        f"{len(_rows(DUPLICATES))} near-duplicates left out; sha256 {digest(read_corpus())}"
    )
    return 1 if found else 0


def _blind(args: argparse.Namespace) -> int:
    for m in read_corpus(duplicates=True):
        if m.writer == args.writer:
            row = {"id": m.id, "history": list(m.history), "message": m.text}
            print(json.dumps(row, ensure_ascii=False))
    return 0


def _agreement(args: argparse.Namespace) -> int:
    print(json.dumps(agreement(read_corpus()), ensure_ascii=False, indent=1))
    return 0


def _duplicates(args: argparse.Namespace) -> int:
    messages = read_corpus(duplicates=True)
    text = {m.id: m.text for m in messages}
    found = near_duplicates(messages)
    for item in found:
        first, again = (ascii(text[item[key]][:70]) for key in ("id", "like"))
        print(f"{item['cosine']:.3f} {item['id']} {first}  {item['like']} {again}")
    if args.write:
        DUPLICATES.write_text("".join(json.dumps(item) + "\n" for item in found), "utf-8")
    print(f"{len(found)} of {len(messages)}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    actions = parser.add_subparsers(required=True, metavar="ACTION")

    def action(name: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        made = actions.add_parser(name)
        made.set_defaults(run=run)
        return made

    action("check", _check)
    action("blind", _blind).add_argument("writer")
    action("agreement", _agreement)
    action("duplicates", _duplicates).add_argument("--write", action="store_true")
    args = parser.parse_args(argv)
    return int(args.run(args))


if __name__ == "__main__":
    sys.exit(main())
