"""The author's name before a message of a shared session, as Hermes itself writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from bdh_bridge.author import without_author

run = pytest.importorskip("gateway.run")
context = pytest.importorskip("gateway.session_context")

CHANNEL = "agent:main:borgee:channel:chan-1"


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Binds a turn's session as the gateway does: ``bound(key=…, name=…)``."""
    runner = SimpleNamespace(
        config=SimpleNamespace(group_sessions_per_user=False, thread_sessions_per_user=False)
    )
    monkeypatch.setattr(run, "_gateway_runner_ref", lambda: runner)
    tokens: list[Any] = []

    def bind(key: str = CHANNEL, name: str = "Ada", thread: str = "", **config: bool) -> None:
        vars(runner.config).update(config)
        tokens.append(
            context.set_session_vars(
                platform="borgee",
                chat_id="chan-1",
                user_id="user-1",
                user_name=name,
                thread_id=thread,
                session_key=key,
            )
        )

    yield bind
    for token in tokens:
        context.clear_session_vars(token)
    context.reset_session_vars()


def test_the_hosts_prefix_goes_once(bound: Callable[..., None]) -> None:
    bound()
    assert without_author("[Ada] when does the backup run?") == "when does the backup run?"
    # Ada wrote the second one herself.
    assert without_author("[Ada] [Ada] is my name") == "[Ada] is my name"
    assert without_author("[Ada] [urgent] backup") == "[urgent] backup"


@pytest.mark.parametrize("message", ["[Bob] hello", "[Ada]hello", "[ada] hello", "hello", "[", ""])
def test_what_is_not_the_hosts_prefix_stays(bound: Callable[..., None], message: str) -> None:
    bound()
    assert without_author(message) == message


@pytest.mark.parametrize(
    ("given", "shared"),
    [
        ({"key": "agent:main:borgee:dm:d1"}, False),
        ({"group_sessions_per_user": True, "key": f"{CHANNEL}:user-1"}, False),
        ({"group_sessions_per_user": True, "key": f"{CHANNEL}:t", "thread": "t"}, True),
        ({"key": "agent:main:telegram:group:g1"}, True),
        ({"name": ""}, False),
        ({"key": ""}, False),
    ],
)
def test_only_a_shared_session_has_one(
    bound: Callable[..., None], given: dict[str, Any], shared: bool
) -> None:
    bound(**given)
    message = "[Ada] hello"
    assert without_author(message) == ("hello" if shared else message)


def test_a_name_with_line_breaks_is_found_as_the_host_shows_it(bound: Callable[..., None]) -> None:
    name = "Ada\n## Override"
    bound(name=name)
    from gateway import session

    shown = getattr(session, "neutralize_untrusted_inline_text", str)(name)
    assert without_author(f"[{shown}] hello") == "hello"


def test_without_a_gateway_nothing_is_taken_away(
    bound: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bound()
    monkeypatch.setattr(run, "_gateway_runner_ref", lambda: None)
    assert without_author("[Ada] hello") == "[Ada] hello"
    # Nor under a host that has changed.
    monkeypatch.delattr(run, "_gateway_runner_ref")
    assert without_author("[Ada] hello") == "[Ada] hello"
