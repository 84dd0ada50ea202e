"""Setup against keys, files and homes that are not as one would like them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hermes_borgee import config
from hermes_borgee.setup import SetupError, write

URL = "https://chat.example.com"


@pytest.fixture(autouse=True)
def no_key_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BORGEE_API_KEY", raising=False)
    monkeypatch.delenv("GATEWAY_MULTIPLEX_PROFILES", raising=False)


@pytest.mark.parametrize(
    "key", ["'abc", '"abc', '"q"', "a'b", "a\\nb", "a\\", "a\\'b", "#x", "ab#cd", "a=b", "`id`"]
)
def test_every_key_is_read_again_as_it_was_given(tmp_path: Path, key: str) -> None:
    write(tmp_path, URL, key)
    assert config.load(tmp_path).api_key.get_secret_value() == key


def test_a_key_that_the_file_cannot_hold_is_refused_and_nothing_written(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="can't hold this key") as caught:
        write(tmp_path, URL, "bgr_${HOME}")
    assert "bgr_" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_lines_of_others_come_out_as_they_went_in(tmp_path: Path) -> None:
    env = tmp_path / ".env"
    others = 'X="a\u2028b"\r\n'.encode() + b"L=\xff\n"
    env.write_bytes(b"\xef\xbb\xbfBORGEE_API_KEY=old\n" + others)
    write(tmp_path, URL, "bgr_new")
    assert env.read_bytes() == b"BORGEE_API_KEY=bgr_new\n" + others


def test_what_the_homes_own_env_spoils_is_told_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("GATEWAY_MULTIPLEX_PROFILES=true\n")
    with pytest.raises(SetupError, match="GATEWAY_MULTIPLEX_PROFILES"):
        write(tmp_path, URL, "bgr_x")
    assert not (tmp_path / "config.yaml").exists()


def test_a_file_that_cannot_be_used_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / ".env").mkdir()
    with pytest.raises(SetupError, match=r"\.env can't be read"):
        write(tmp_path, URL, "bgr_x")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_home_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(SetupError, match="can't be written"):
            write(tmp_path, URL, "bgr_x")
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write for somebody else")
def test_set_up_by_root_the_files_stay_their_owners(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("other: 1\n")
    os.chown(tmp_path, 12345, 12345)
    os.chown(tmp_path / "config.yaml", 12345, 12345)
    write(tmp_path, URL, "bgr_x")
    assert {path.stat().st_uid for path in tmp_path.iterdir()} == {12345}


def test_what_a_killed_setup_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "..env.setup-abc"
    left.write_text("BORGEE_API_KEY=bgr_old\n")
    os.utime(left, (time.time() - 3600,) * 2)
    write(tmp_path, URL, "bgr_x")
    assert not left.exists()


@pytest.mark.parametrize("url", ["http://[::1]:8080", "http://localhost.:8080", "http://127.0.0.1"])
def test_every_spelling_of_this_machine_is_set_up(tmp_path: Path, url: str) -> None:
    write(tmp_path, url, "bgr_x")
    assert config.load(tmp_path).allow_insecure_loopback


@pytest.mark.parametrize(
    "value",
    ["2026-99-99", "!!int bgr_x", "!!bool bgr_x", "!!timestamp x", "9" * 6000, "[" * 20_000],
    ids=["date", "int", "bool", "timestamp", "digits", "depth"],
)
def test_yaml_that_holds_no_value_is_told_by_its_file(tmp_path: Path, value: str) -> None:
    (tmp_path / "config.yaml").write_text(f"other: {value}\n")
    with pytest.raises(config.ConfigError, match=r"config\.yaml") as caught:
        config.load(tmp_path)
    assert "bgr_x" not in str(caught.value)
    with pytest.raises(SetupError, match=r"config\.yaml"):
        write(tmp_path, URL, "bgr_x")
    assert not (tmp_path / ".env").exists()
