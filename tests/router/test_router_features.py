"""What the local router sees of a conversation."""

from __future__ import annotations

import time

import numpy as np
import pytest

from bdh_bridge.routing.local import cues, features, shape
from bdh_bridge.routing.local.conversation import Conversation, conversation
from bdh_bridge.routing.local.encoder import Encoder
from bdh_bridge.routing.local.query import is_follow_up, queries

HOSTILE = {
    "empty": "",
    "blank": " \n\t ",
    "null": "\x00\x01\x02",
    "surrogate": "\ud800 half \udfff",
    "bidi": "\u202e\u2066evil\u2069",
    "emoji": "👩‍👩‍👧‍👦" * 400,
    "brackets": "[" * 50_000,
    "lines": "\n" * 100_000,
    "digits": "1" * 100_000,
    "kana": "あ" * 30_000,
    "megabyte": "we decided " * 100_000,
    "combining": "a" + "\u0301" * 20_000,
    "json": '{"should_retrieve": true, ' * 3_000,
}


def of(message: str, *before: str) -> Conversation:
    """``before`` are the earlier messages, the user's and the assistant's in turn."""
    roles = ("user", "assistant")
    history = [{"role": roles[n % 2], "content": text} for n, text in enumerate(before)]
    return conversation(message, [*history, {"role": "user", "content": message}])


def test_every_feature_has_a_name_and_a_place() -> None:
    values = shape.shape(of("Why did we choose it?", "hello", "hi"))
    assert len(values) == len(shape.NAMES) == len(set(shape.NAMES))
    assert len(features.names()) == features.SIZE
    edges = [(block.start, block.stop) for block in features.BLOCKS]
    assert [start for start, _ in edges] == [0, *(stop for _, stop in edges[:-1])]
    assert edges[-1][1] == features.SIZE


@pytest.mark.parametrize("name", HOSTILE)
def test_any_text_has_finite_features_soon(encoder: Encoder, name: str) -> None:
    given = of(HOSTILE[name], HOSTILE[name], HOSTILE[name])
    started = time.process_time()
    found = features.features(given, encoder.encode)
    # A bound on work, not on a clock: texts are cut before anything looks at them.
    assert time.process_time() - started < 2.0
    assert found.shape == (features.SIZE,)
    assert np.isfinite(found).all()
    assert float(np.abs(found).max()) < 10


def test_the_same_conversation_has_the_same_features_whatever_comes_with_it(
    encoder: Encoder,
) -> None:
    given = of("e per staging?", "come pubblichiamo il sito?", "Con il container, di notte.")
    alone = features.features(given, encoder.encode)
    encoder.remembered(["something else", "e per staging?"])
    again = features.features(given, encoder.remembered)
    np.testing.assert_allclose(alone, again, atol=2e-5)


def test_history_is_what_the_host_gives_without_the_message_itself() -> None:
    given = of("and the second?", "two options?", "A and B")
    assert given.last("user") == "two options?"
    assert given.last("assistant") == "A and B"
    assert given.last("user", skip=1) == ""


def test_context_that_was_injected_is_not_looked_at() -> None:
    block = "[BDH CONTEXT — optional]\nwe decided everything\n[/BDH CONTEXT]\n\nthanks"
    assert of(block).message == "thanks"


@pytest.mark.parametrize(
    ("group", "text"),
    [
        ("decided", "alla fine abbiamo deciso per il legno"),
        ("decided", "entschieden: wir nehmen Holz"),
        ("decided", "这件事决定了"),
        ("learned", "lesson: never again without gloves"),
        ("why", "l'altro, perché?"),
        ("lasting", "d'ora in poi scrivimi in italiano"),
        ("recall", "te souviens-tu ? la dernière fois"),
        ("utility", "traduci questa frase"),
        ("background", "Review the conversation above and save"),
        ("router", 'answer {"should_retrieve": true}'),
    ],
)
def test_cues_are_found_in_many_languages(group: str, text: str) -> None:
    assert cues.counts(shape.shown(text))[group] > 0


def test_a_cue_is_a_word_and_no_part_of_one() -> None:
    assert cues.counts(shape.shown("the whyever of reruns"))["why"] == 0
    assert not cues.opens_with("command", shape.shown("runway lights at dusk"))
    assert cues.opens_with("command", shape.shown("Run the tests"))


@pytest.mark.parametrize(
    "message", ["e per staging?", "and the second one?", "y el otro?", "それで？", "why?"]
)
def test_a_follow_up_takes_its_topic_along(message: str) -> None:
    given = of(message, "How do we back up the parish archive?", "To two disks, weekly.")
    assert is_follow_up(given)
    first, second = queries(given)
    assert first == f"How do we back up the parish archive? {message}"
    assert second == message


def test_a_chain_of_follow_ups_reaches_back_to_the_topic() -> None:
    topic = "What did we decide about the drainage of the lower orchard?"
    given = of("and why?", topic, "Open ditches.", "e il costo?", "About 900.")
    assert queries(given)[0] == f"{topic} e il costo? and why?"


@pytest.mark.parametrize(
    ("message", "before"),
    [
        ("Why did the choir move its rehearsals from Tuesday to Thursday last autumn?", ("a", "b")),
        ("and the second one?", ()),
        ("", ("How do we back up?", "weekly")),
    ],
)
def test_other_messages_speak_for_themselves(message: str, before: tuple[str, ...]) -> None:
    assert queries(of(message, *before)) == []


def test_long_histories_make_short_queries() -> None:
    given = of("and then?", "word " * 5_000, "x")
    assert all(len(query) <= 600 for query in queries(given))
