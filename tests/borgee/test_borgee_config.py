"""Configuration: every wrong value is one sentence that names its key."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from hermes_borgee import config
from hermes_borgee.config import ConfigError

GOOD: dict[str, Any] = {
    "group_sessions_per_user": False,
    "display": {"busy_input_mode": "queue"},
    "streaming": {"enabled": True},
    "borgee": {"enabled": True, "base_url": "https://chat.example.com"},
}
ENV = {"BORGEE_API_KEY": "bgr_secret"}


def changed(path: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    place = document
    for name in parents:
        place = place.setdefault(name, {})
    place[last] = value
    return document


def test_defaults_are_the_documented_ones(tmp_path: Path) -> None:
    found = config.check(tmp_path, GOOD, ENV)
    assert found.max_concurrent_dispatches == 4
    assert found.drain_timeout == 30
    assert found.control_timeout == 15
    assert not found.allow_insecure_loopback
    assert not found.allow_destructive_tools
    assert found.inbox == tmp_path / "plugins" / "borgee" / "inbox.sqlite3"
    assert "bgr_secret" not in repr(found)


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        ("borgee.enabled", "yes", "borgee.enabled"),
        ("borgee.enabled", False, "borgee.enabled"),
        ("borgee.base_url", None, "borgee.base_url"),
        ("borgee.base_url", 7, "borgee.base_url"),
        ("borgee.base_url", "ftp://chat.example.com", "borgee.base_url"),
        ("borgee.base_url", "https://user:pw@chat.example.com", "borgee.base_url"),
        ("borgee.base_url", "https://chat.example.com/team", "borgee.base_url"),
        ("borgee.base_url", "https://chat.example.com?x=1", "borgee.base_url"),
        ("borgee.base_url", "https://chat.example.com:99999", "borgee.base_url"),
        ("borgee.base_url", "http://chat.example.com", "borgee.base_url"),
        ("borgee.base_url", "https://chat.example.com?", "borgee.base_url"),
        ("borgee.base_url", "https://chat.example.com#", "borgee.base_url"),
        ("borgee.base_url", " https://chat.example.com", "borgee.base_url"),
        ("borgee.base_url", "https://chat\n.example.com", "borgee.base_url"),
        ("borgee.base_url", "https://chat.example.com;x", "borgee.base_url"),
        ("borgee.base_url", "https://chat%2f.example.com", "borgee.base_url"),
        ("borgee.base_url", "https://..", "borgee.base_url"),
        ("borgee.base_url", "https://chat.example.com:0", "borgee.base_url"),
        ("borgee.base_url", "http://127.0.0.1:8000", "borgee.allow_insecure_loopback"),
        ("borgee.allow_insecure_loopback", "false", "borgee.allow_insecure_loopback"),
        ("borgee.allow_insecure_loopback", 1, "borgee.allow_insecure_loopback"),
        ("borgee.max_concurrent_dispatches", 0, "borgee.max_concurrent_dispatches"),
        ("borgee.max_concurrent_dispatches", 2.5, "borgee.max_concurrent_dispatches"),
        ("borgee.max_concurrent_dispatches", True, "borgee.max_concurrent_dispatches"),
        ("borgee.drain_timeout_seconds", "30", "borgee.drain_timeout_seconds"),
        ("borgee.control_timeout_seconds", 0, "borgee.control_timeout_seconds"),
        ("borgee.retention_days", -1, "borgee.retention_days"),
        ("borgee.allow_destructive_tools", "true", "borgee.allow_destructive_tools"),
        ("borgee.max_dispatches", 3, "borgee.max_dispatches"),
        ("borgee.api_key", "bgr_x", "borgee.api_key"),
        ("borgee.extra", {"token": "bgr_x"}, "borgee.extra.token"),
        ("platforms.borgee", {"token": "bgr_x"}, "platforms.borgee.token"),
        ("gateway.platforms", {"borgee": {"api_key": "k"}}, "gateway.platforms.borgee.api_key"),
        ("group_sessions_per_user", True, "group_sessions_per_user"),
        ("group_sessions_per_user", "false", "group_sessions_per_user"),
        ("display.busy_input_mode", "interrupt", "display.busy_input_mode"),
        ("streaming.enabled", "yes", "streaming.enabled"),
        ("streaming", True, "streaming"),
        (
            "display.platforms",
            {"borgee": {"streaming": "on"}},
            "display.platforms.borgee.streaming",
        ),
        ("display.platforms", "borgee", "display.platforms"),
        ("display.platforms", {"borgee": True}, "display.platforms.borgee"),
        ("multiplex_profiles", True, "multiplex_profiles"),
        ("gateway.multiplex_profiles", True, "gateway.multiplex_profiles"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, path: str, value: Any, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.check(tmp_path, changed(path, value), ENV)
    assert any(key in problem for problem in caught.value.problems)
    assert "bgr_" not in str(caught.value)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    document = changed("borgee.base_url", "nonsense")
    document["group_sessions_per_user"] = True
    with pytest.raises(ConfigError) as caught:
        config.check(tmp_path, document, {})
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("key", ["", "with blank", "with\nbreak", "ключ"])
def test_an_unusable_key_is_refused_without_being_repeated(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match="BORGEE_API_KEY") as caught:
        config.check(tmp_path, GOOD, {"BORGEE_API_KEY": key})
    assert not key.strip() or key not in str(caught.value)


def test_multiplexing_by_the_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="GATEWAY_MULTIPLEX_PROFILES"):
        config.check(tmp_path, GOOD, {**ENV, "GATEWAY_MULTIPLEX_PROFILES": "1"})


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("[::1]", True),
        ("10.0.0.5", False),
        ("192.168.1.2", False),
        ("172.16.0.1", False),
        ("localhost.example.com", False),
        ("[fd00::1]", False),
    ],
)
def test_loopback_means_this_machine_not_a_private_network(
    tmp_path: Path, host: str, loopback: bool
) -> None:
    document = changed("borgee.base_url", f"http://{host}:4000")
    document["borgee"]["allow_insecure_loopback"] = True
    if loopback:
        assert config.check(tmp_path, document, ENV).base_url.endswith(":4000")
    else:
        with pytest.raises(ConfigError, match=r"borgee\.base_url"):
            config.check(tmp_path, document, ENV)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        config.load(tmp_path)
    (tmp_path / "config.yaml").write_text("a: [1\nb: }")
    with pytest.raises(ConfigError, match="line"):
        config.load(tmp_path)
    (tmp_path / "config.yaml").write_text("- a list\n")
    with pytest.raises(ConfigError, match="mapping"):
        config.load(tmp_path)
    (tmp_path / "config.yaml").write_text("other: 1\n")
    with pytest.raises(ConfigError, match="borgee: the block"):
        config.load(tmp_path)


def test_the_key_of_the_profile_wins_over_the_environment(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BORGEE_API_KEY", "bgr_of_the_shell")
    assert config.load(home).api_key.get_secret_value() == "bgr_test_key"


@pytest.mark.parametrize(
    "url",
    [
        "https://Chat.Example.com",
        "HTTPS://chat.example.com/",
        "https://chat.example.com:443",
        "https://chat.example.com.",
        "https://chat.example.com:",
    ],
)
def test_one_origin_has_one_spelling_because_a_lock_is_named_after_it(
    tmp_path: Path, url: str
) -> None:
    found = config.check(tmp_path, changed("borgee.base_url", url), ENV)
    assert found.base_url == "https://chat.example.com"


def test_a_name_in_another_alphabet_and_an_address_stay_usable(tmp_path: Path) -> None:
    for url, origin in (
        ("https://bücher.example:8443", "https://xn--bcher-kva.example:8443"),
        ("https://[2001:DB8::1]:8443", "https://[2001:db8::1]:8443"),
    ):
        assert config.check(tmp_path, changed("borgee.base_url", url), ENV).base_url == origin
