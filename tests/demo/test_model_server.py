"""The scripted model server, asked over real HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from bdh_bridge.demo.borgee.conversation import ANSWERS as CHAT_ANSWERS
from bdh_bridge.demo.conversation import ANSWERS
from bdh_bridge.demo.model_server import MODEL, ScriptedAnswer, ScriptedModelServer

TOOL = {"type": "function", "function": {"name": "bdh_query", "parameters": {}}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ScriptedModelServer]:
    answers = (
        ScriptedAnswer("Come stai?", "Bene!\nE tu?"),
        ScriptedAnswer("Look it up", "Found.", tool="bdh_query", arguments='{"query": "x"}'),
    )
    with ScriptedModelServer(answers, tmp_path / "requests.jsonl") as running:
        yield running


def ask(server: ScriptedModelServer, *messages: dict[str, Any], **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": list(messages), **fields}
    return httpx.post(f"{server.base_url}/chat/completions", json=body, trust_env=False)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def chunks(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line for line in response.text.splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_a_plain_completion_holds_the_scripted_answer(server: ScriptedModelServer) -> None:
    answer = ask(server, user("Ciao. Come stai?")).json()
    assert answer["choices"][0]["message"]["content"] == "Bene!\nE tu?"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["total_tokens"] > 0


def test_a_streamed_completion_ends_with_its_reason_and_usage(server: ScriptedModelServer) -> None:
    response = ask(server, user("Come stai?"), stream=True)
    assert response.headers["content-type"] == "text/event-stream"
    got = chunks(response)
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in got[:-1])
    assert text == "Bene!\nE tu?"
    assert got[-2]["choices"][0]["finish_reason"] == "stop"
    assert got[-1]["choices"] == []
    assert got[-1]["usage"]["completion_tokens"] > 0


def test_a_tool_is_called_once_and_its_result_answered(server: ScriptedModelServer) -> None:
    asked = user("Look it up, please")
    first = chunks(ask(server, asked, stream=True, tools=[TOOL]))
    (call,) = next(
        c["choices"][0]["delta"]["tool_calls"]
        for c in first
        if c["choices"] and "tool_calls" in c["choices"][0]["delta"]
    )
    assert call["function"] == {"name": "bdh_query", "arguments": '{"query": "x"}'}
    assert first[-2]["choices"][0]["finish_reason"] == "tool_calls"
    result = {"role": "tool", "tool_call_id": call["id"], "content": "three notes"}
    second = ask(server, asked, {"role": "assistant", "tool_calls": [call]}, result, tools=[TOOL])
    assert second.json()["choices"][0]["message"]["content"] == "Found."
    assert server.requests()[-1].tool_results == ("three notes",)


def test_a_tool_that_is_not_offered_is_not_called(server: ScriptedModelServer) -> None:
    message = ask(server, user("Look it up")).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Found."}


def test_only_the_last_user_message_counts_and_in_it_what_comes_first(
    server: ScriptedModelServer,
) -> None:
    earlier = user("Look it up")
    quoting = user("Come stai?\n\n[a block that quotes: Look it up]")
    ask(server, earlier, {"role": "assistant", "content": "Found."}, quoting)
    assert server.requests()[-1].scripted == "Come stai?"


def test_what_the_script_does_not_hold_is_answered_plainly_and_logged(
    server: ScriptedModelServer,
) -> None:
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "this?"}]
    answer = ask(server, {"role": "user", "content": parts}, tools=[TOOL]).json()
    assert "scripted" in answer["choices"][0]["message"]["content"]
    (request,) = server.requests()
    assert request.scripted is None
    assert request.user_message == "What is\nthis?"
    assert request.tools == ("bdh_query",)


def test_other_paths_and_bodies_get_errors_and_leave_no_trace(server: ScriptedModelServer) -> None:
    with httpx.Client(trust_env=False) as client:
        url = server.base_url
        assert client.post(f"{url}/embeddings", json={}).status_code == 404
        assert client.get(f"{url}/anything").status_code == 404
        assert client.post(f"{url}/chat/completions", content=b"{").status_code == 400
        assert client.post(f"{url}/chat/completions", json={"messages": 1}).status_code == 400
        assert client.get(f"{url}/models").json()["data"][0]["id"] == MODEL
    assert server.requests() == []


def test_a_held_answer_is_logged_at_once_and_given_later(server: ScriptedModelServer) -> None:
    thinking = server.hold("Come stai?")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, server, user("Come stai?"))
        while not server.requests():
            assert not asked.done()
        assert ask(server, user("Look it up")).status_code == 200  # another one goes on
        assert not asked.done()
        thinking.set()
        assert asked.result(60).json()["choices"][0]["message"]["content"] == "Bene!\nE tu?"


@pytest.mark.parametrize("script", [ANSWERS, CHAT_ANSWERS])
def test_no_prompt_of_the_conversation_hides_another(script: tuple[ScriptedAnswer, ...]) -> None:
    for answer in script:
        matching = [one.when for one in script if one.when in answer.when]
        assert matching == [answer.when]
