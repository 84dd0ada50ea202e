"""What the router sees of the conversation."""

from __future__ import annotations

import copy
from typing import Any

from bdh_bridge.routing.history import recent_messages


def texts(history: Any, count: int = 6, max_chars: int = 200) -> list[str]:
    return [message.text for message in recent_messages(history, count, max_chars)]


def test_the_current_message_is_left_out() -> None:
    history = [
        {"role": "user", "content": "what is a sluice?"},
        {"role": "assistant", "content": "A gate for water."},
        {"role": "user", "content": "and why two of them?"},
    ]
    found = recent_messages(history, 6, 200)
    assert [(item.role, item.text) for item in found] == [
        ("user", "what is a sluice?"),
        ("assistant", "A gate for water."),
    ]


def test_a_history_that_ends_with_an_answer_is_taken_whole() -> None:
    history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert texts(history) == ["a", "b"]


def test_the_newest_are_kept_oldest_first() -> None:
    history = [{"role": "assistant", "content": str(number)} for number in range(20)]
    assert texts(history, count=3) == ["17", "18", "19"]
    assert texts(history, count=0) == []


def test_tool_noise_and_instructions_are_left_out_and_do_not_count() -> None:
    history = [
        {"role": "system", "content": "You are …"},
        {"role": "user", "content": "look it up"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [{"id": "1"}]},
        {"role": "tool", "content": "9,000 lines of log"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "2"}]},
        {"role": "tool", "content": [{"type": "text", "text": "more"}]},
        {"role": "assistant", "content": "Found it.", "tool_calls": []},
        {"role": "user", "content": "thanks, and then?"},
    ]
    assert texts(history, count=2) == ["look it up", "Found it."]


def test_blocks_are_flattened_to_their_text() -> None:
    history = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what is\non this"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                {"type": "text", "text": "picture?"},
            ],
        },
        {"role": "assistant", "content": "A lock."},
    ]
    assert texts(history) == ["what is on this picture?", "A lock."]


def test_each_message_is_bounded() -> None:
    long = "word " * 300_000
    found = texts([{"role": "assistant", "content": long}], max_chars=50)
    assert len(found[0]) <= 50
    assert found[0].endswith("word…")


def test_injected_context_does_not_come_back() -> None:
    block = "[BDH CONTEXT — optional]\nActivated neurons:\n- secret\n[/BDH CONTEXT]"
    history = [
        {"role": "user", "content": "why?", "api_content": f"why?\n\n{block}"},
        {"role": "assistant", "content": f"As noted: {block} because."},
    ]
    assert texts(history) == ["why?", "As noted: because."]


def test_odd_histories_do_no_harm() -> None:
    assert texts(None) == []
    assert texts([]) == []
    odd: list[Any] = [
        None,
        "text",
        5,
        {},
        {"role": "user"},
        {"role": "user", "content": 7},
        {"role": []},
    ]
    assert texts([*odd, {"role": "assistant", "content": "\x00 ok \ud800"}]) == ["ok ?"]


def test_the_history_is_not_touched() -> None:
    history = [
        {"role": "user", "content": [{"type": "text", "text": "a  b"}]},
        {"role": "assistant", "content": "c  d"},
    ]
    before = copy.deepcopy(history)
    texts(history)
    assert history == before
