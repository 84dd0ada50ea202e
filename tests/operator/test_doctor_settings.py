"""Settings and the blacklist, as doctor and config see them."""

from __future__ import annotations

import pytest

from tests.operator.conftest import Home

SECRETS = {
    "BDH_API_TOKEN": "tok-SECRET-1",
    "BDH_REWRITE_API_KEY": "key-SECRET-2",
    "OLLAMA_API_KEY": "key-SECRET-3",
    "OPENROUTER_API_KEY": "key-SECRET-4",
    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=SECRET-5",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://me:SECRET-6@127.0.0.1:9/?key=SECRET-7",
    "BDH_TUI_TRACE_URL": "http://me:SECRET-8@127.0.0.1/trace/{trace_id}?token=SECRET-9",
}


def test_a_value_that_does_not_parse(home: Home) -> None:
    home.set(BDH_WRITE_TIMEOUT="soon", BDH_WORKER="tread")
    found = home.doctor().checks("settings")
    assert [level for level, _, _ in found] == ["failed", "failed"]
    assert any("BDH_WRITE_TIMEOUT: 'soon' is not usable" in text for _, text, _ in found)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("BDH_API_ULR", "BDH_API_URL"), ("BDH_WRITE_SENDER", "BDH_WRITE_SENDERS"), ("BDH_ZZZ", "")],
)
def test_an_unknown_name_with_the_nearest_right_one(home: Home, name: str, nearest: str) -> None:
    home.set(**{name: "1"})
    [(level, text, mend)] = home.doctor().checks("settings")
    assert (level, name in text) == ("warning", True)
    assert mend == (f"did you mean {nearest}?" if nearest else mend)
    assert "did you mean" in mend or not nearest


def test_names_from_the_shell_count_too(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BDH_OUTBX_MAX_ROWS", "5")
    assert "did you mean BDH_OUTBOX_MAX_ROWS?" in home.doctor().checks("settings")[0][2]


def test_switched_off_and_readable_by_others(home: Home) -> None:
    home.set(BDH_ENABLED="false")
    home.paths.env_file.chmod(0o644)
    texts = [text for level, text, _ in home.doctor().checks("settings") if level == "warning"]
    assert any("BDH_ENABLED=false" in text for text in texts)
    assert any("mode 0644" in text for text in texts)


def test_no_secret_is_ever_printed(home: Home) -> None:
    home.set(**SECRETS, BDH_QUERY_REWRITE_ENABLED="true")
    for command in (["doctor", "--json"], ["doctor"], ["config"], ["config", "--json"], ["status"]):
        done = home.run(*command)
        assert "SECRET" not in done.out + done.err, command
    # … nor one that does not parse.
    home.set(BDH_API_TOKEN="SECRET with blanks", BDH_API_URL="http://me:SECRET@127.0.0.1")
    for command in (["doctor", "--json"], ["config"], ["query", "x"]):
        done = home.run(*command)
        assert "SECRET" not in done.out + done.err, command


def test_config_names_value_and_origin(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.set(BDH_API_URL="http://127.0.0.1:9000/", BDH_API_TOKEN="tok")
    monkeypatch.setenv("BDH_WRITE_TIMEOUT", "12")
    monkeypatch.setenv("BDH_API_URL", "http://ignored:1")
    found = {one["name"]: one for one in home.run("config", "--json").json}
    assert (found["BDH_API_URL"]["value"], found["BDH_API_URL"]["origin"]) == (
        "http://127.0.0.1:9000",
        ".env",
    )
    assert (found["BDH_WRITE_TIMEOUT"]["value"], found["BDH_WRITE_TIMEOUT"]["origin"]) == (
        12.0,
        "environment",
    )
    assert (found["BDH_API_TOKEN"]["value"], found["BDH_API_TOKEN"]["secret"]) == ("(set)", True)
    assert found["BDH_ENABLED"]["origin"] == "default"
    changed = home.run("config", "--changed").out
    assert len(changed.splitlines()) == 3
    assert "BDH_API_TOKEN" in changed
    assert found["BDH_DENY_PLATFORMS"]["value"] == "curator,subagent"


def test_rules_that_can_not_be_used(home: Home) -> None:
    home.paths.directory.mkdir(mode=0o700)
    home.paths.blacklist.write_text("fine\nre:(unclosed\n\nre:.*\n")
    home.paths.blacklist.chmod(0o600)
    found = home.doctor().checks("blacklist")
    assert [level for level, _, _ in found] == ["warning", "warning"]
    assert "line 2 " in found[0][1]
    assert "line 4 " in found[1][1]


def test_a_blacklist_that_others_may_write_or_nobody_can_read(home: Home) -> None:
    home.paths.directory.mkdir(mode=0o700)
    home.paths.blacklist.write_text("fine\n")
    home.paths.blacklist.chmod(0o666)
    assert "can be changed by others" in home.doctor().checks("blacklist")[0][1]
    home.paths.blacklist.unlink()
    home.paths.blacklist.mkdir()
    level, text, _ = home.doctor().checks("blacklist")[0]
    assert (level, "can't be read" in text) == ("failed", True)
    home.set(BDH_PROMPT_BLACKLIST_FILE="gone.txt")
    assert home.doctor().checks("blacklist")[0][0] == "warning"
