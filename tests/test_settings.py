"""One loader: precedence, lenient values, secrets."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from bdh_bridge.settings import Settings, load, variable

#: What the bridge's published documentation promises, by name.
PUBLISHED = {
    "BDH_API_URL": "http://localhost:8643",
    "BDH_QUERY_REWRITE_ENABLED": False,
    "BDH_REWRITE_MODEL": "deepseek-v4-flash:cloud",
    "BDH_REWRITE_TIMEOUT": 15,
    "BDH_REWRITE_API_URL": "https://ollama.com/v1",
    "BDH_REWRITE_NOUS_MODEL": "upstage/solar-pro4:free",
    "BDH_REWRITE_NOUS_URL": "https://inference-api.nousresearch.com/v1",
    "BDH_REWRITE_OPENROUTER_MODEL": "nvidia/nemotron-3-ultra-550b-a55b:free",
    "BDH_REWRITE_OPENROUTER_URL": "https://openrouter.ai/api/v1",
    "BDH_REWRITE_LOCAL_MODEL": "qwen3.8-27b-oq4e-mtp",
    "BDH_REWRITE_LOCAL_URL": "http://127.0.0.1:8083/v1",
    "BDH_REWRITE_HTTP_REFERER": "",
    "BDH_REWRITE_APP_TITLE": "BDH Hermes Bridge",
    "BDH_REWRITE_PROMPT_FILE": "",
    "BDH_CONTEXT_MESSAGES_N": 6,
    "BDH_CONTEXT_MSG_MAX_CHARS": 200,
    "BDH_REWRITE_MAX_VARIANTS": 10,
    "BDH_SESSION_SYNTH_ENABLED": False,
    "BDH_SESSION_SYNTH_MIN_TURNS": 3,
    "BDH_SESSION_SYNTH_MAX_CHARS": 6000,
    "BDH_PROMPT_BLACKLIST_FILE": "",
}
SECRETS = ("BDH_REWRITE_API_KEY", "OPENROUTER_API_KEY", "BDH_API_TOKEN", "OLLAMA_API_KEY")


def test_published_variables_keep_their_names_and_defaults() -> None:
    defaults = {
        variable(name): field.get_default() for name, field in Settings.model_fields.items()
    }
    for name, value in PUBLISHED.items():
        assert defaults[name] == value, name


def test_secrets_are_secret(tmp_path: Path) -> None:
    loaded = load(tmp_path, environ=dict.fromkeys(SECRETS, "hunter2"))
    assert "hunter2" not in repr(loaded.settings)
    for name in SECRETS:
        field = next(f for f in Settings.model_fields if variable(f) == name)
        value = getattr(loaded.settings, field)
        assert isinstance(value, SecretStr)
        assert value.get_secret_value() == "hunter2"


def test_the_homes_env_file_wins_over_the_environment(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        "\ufeffBDH_API_URL='http://from-file:1/'\r\nBDH_VAULT_ID=\r\n", encoding="utf-8"
    )
    environ = {"BDH_API_URL": "http://from-environment:1", "BDH_VAULT_ID": "work"}
    loaded = load(tmp_path, environ=environ)
    assert loaded.settings.api_url == "http://from-file:1"
    assert loaded.origins["BDH_API_URL"] == ".env"
    assert loaded.origins["BDH_WORKER"] == "default"


def test_an_env_file_of_the_current_directory_is_never_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / ".env").write_text("BDH_API_URL=http://evil:1\n")
    monkeypatch.chdir(here)
    assert load(tmp_path / "home", environ={}).settings.api_url == "http://localhost:8643"


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("BDH_WRITE_TIMEOUT", "soon", "valid number"),
        ("BDH_WRITE_TIMEOUT", "-1", "greater than 0"),
        ("BDH_WRITE_TIMEOUT", "nan", ""),
        ("BDH_ENABLED", "perhaps", "valid boolean"),
        ("BDH_WORKER", "fiber", "'process', 'thread' or 'off'"),
        ("BDH_API_URL", "ftp://x", "http:// or https://"),
        ("BDH_API_URL", "http://user:pw@x", "credentials"),
        ("BDH_API_URL", "http://x:99999", "ort"),
        ("BDH_API_URL", "localhost:8643", "http:// or https://"),
        ("BDH_API_TOKEN", "two words", "blank"),
        ("BDH_API_TOKEN", "schlüssel", "non-ASCII"),
        ("BDH_CONTEXT_MESSAGES_N", "6.5", "valid integer"),
    ],
)
def test_a_value_that_does_not_parse_is_named_and_the_default_used(
    tmp_path: Path, name: str, value: str, problem: str
) -> None:
    loaded = load(tmp_path, environ={name: value})
    field = next(f for f in Settings.model_fields if variable(f) == name)
    assert getattr(loaded.settings, field) == Settings.model_fields[field].get_default()
    (warning,) = loaded.warnings
    assert warning.startswith(f"{name}: ")
    assert problem in warning
    assert "using the default" in warning
    if "TOKEN" in name or "pw@" in value:
        assert value not in warning


def test_one_wrong_value_costs_no_other(tmp_path: Path) -> None:
    loaded = load(tmp_path, environ={"BDH_ENABLED": "?", "BDH_VAULT_ID": "work"})
    assert loaded.settings.vault_id == "work"
    assert loaded.settings.enabled is True


def test_lists_are_split_and_trimmed(tmp_path: Path) -> None:
    loaded = load(tmp_path, environ={"BDH_READ_SENDERS": " a, telegram:7 ,,"})
    assert loaded.settings.read_senders == {"a", "telegram:7"}


def test_an_unreadable_env_file_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("BDH_API_URL=http://from-file:1\n")

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError("no")  # root may read what is forbidden

    monkeypatch.setattr("dotenv.dotenv_values", refuse)
    assert "can't be read" in load(tmp_path, environ={}).warnings[0]


@pytest.mark.parametrize("name", ["../x", "", "a/b", ".hidden"])
def test_a_profile_is_a_plain_name(name: str) -> None:
    with pytest.raises(ValueError, match="not a profile name"):
        load(profile=name)


def test_profiles_are_folders_of_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    assert load(profile="work").paths.hermes_home == tmp_path / "profiles" / "work"
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "profiles" / "work"))
    assert load(profile="play").paths.hermes_home == tmp_path / "profiles" / "play"
    assert load(profile="default").paths.hermes_home == tmp_path
    other = tmp_path / "other"
    assert load(other, profile="work").paths.hermes_home == other / "profiles" / "work"


def test_built_in_code_a_wrong_value_is_an_error() -> None:
    with pytest.raises(ValueError, match="BDH_WORKER"):
        Settings(BDH_WORKER="fiber")


def test_a_file_that_is_no_utf_8_is_read_as_hermes_reads_it(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"OTHER=caf\xe9\nBDH_API_URL=http://from-file:1\n")
    loaded = load(tmp_path, environ={})
    assert loaded.settings.api_url == "http://from-file:1"
    assert loaded.warnings == ()


def test_secrets_do_not_show_in_what_is_loaded(tmp_path: Path) -> None:
    loaded = load(tmp_path, environ={"BDH_API_TOKEN": "t0ken-of-mine", "SOME_KEY": "t0ken-too"})
    assert "t0ken" not in repr(loaded)
