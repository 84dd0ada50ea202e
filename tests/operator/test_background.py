"""graph start, status, stop and boot: a real server that outlives the command."""

from __future__ import annotations

import contextlib
import os
import plistlib
import signal
import socket
import stat
import sys
import time
from collections.abc import Iterator

import httpx
import pytest

from bdh_bridge.operator import background
from tests.operator.conftest import Home
from tests.support.embedded_graph import sample_vault


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def notes(home: Home, port: int) -> Iterator[Home]:
    home.set(BDH_API_URL=f"http://127.0.0.1:{port}", BDH_API_TOKEN="tok-SECRET")
    yield home
    with contextlib.suppress(background.BackgroundError):
        background.stop(home.loaded())


def test_it_starts_answers_and_stops(notes: Home, port: int) -> None:
    vault = sample_vault(notes.path / "my notes")
    nothing = notes.run("graph", "status", "--json")
    assert (nothing.status, nothing.json) == (1, {"running": False})
    assert "no graph runs" in notes.run("graph", "stop").out

    started = notes.run("graph", "start", "--vault", str(vault))
    assert started.status == 0, started.err
    assert f"http://127.0.0.1:{port} (8 notes in {vault.resolve()} at its start)" in started.out
    assert "bdh-bridge graph boot" in started.out
    status = notes.run("graph", "status", "--json").json
    assert (status["running"], status["notes"]) == (True, 8)
    assert os.getsid(status["pid"]) != os.getsid(0)
    assert "8 notes" in notes.doctor().checks("graph")[0][1]
    assert httpx.get(f"{status['url']}/api/stats").status_code == 401

    again = notes.run("graph", "start", "--vault", str(vault))
    assert (again.status, "runs already" in again.out) == (0, True)
    assert notes.run("graph", "status", "--json").json["pid"] == status["pid"]

    log = background.log_path(notes.loaded())
    assert stat.S_IMODE(log.stat().st_mode) == 0o600

    assert "has ended" in notes.run("graph", "stop").out
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{status['url']}/health")
    assert notes.run("graph", "status").status == 1
    assert not background.ready_path(notes.loaded()).exists()


def test_the_notes_of_the_last_start_are_served_again(notes: Home, port: int) -> None:
    vault = sample_vault(notes.path / "my notes")
    assert notes.run("graph", "start", "--vault", str(vault)).status == 0
    ready = background.ready_path(notes.loaded())
    assert stat.S_IMODE(ready.stat().st_mode) == 0o600
    other = notes.path / "other notes"
    other.mkdir()
    refused = notes.run("graph", "start", "--vault", str(other))
    assert (refused.status, "bdh-bridge graph stop" in refused.err) == (2, True), refused.err
    notes.run("graph", "stop")

    assert notes.run("graph", "start").status == 0
    notes.run("install")
    assert "bdh-bridge graph stop" in notes.run("uninstall").out
    status = notes.run("graph", "status", "--json").json
    assert (status["vault"], status["notes"]) == (str(vault.resolve()), 8)
    assert str(vault) in notes.run("graph", "boot").out
    notes.run("graph", "stop")

    assert notes.run("graph", "start", "--vault", str(other)).status == 0
    assert notes.run("graph", "status", "--json").json["notes"] == 0
    notes.run("graph", "stop")
    other.rmdir()
    gone = notes.run("graph", "start")
    assert (gone.status, f"{other} is not a folder" in gone.err) == (2, True), gone.err


def test_a_killed_server_is_known_to_be_gone(notes: Home, port: int) -> None:
    sample_vault(notes.paths.vault)
    notes.run("graph", "start")
    pid = notes.run("graph", "status", "--json").json["pid"]
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while notes.run("graph", "status").status == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # What it left behind does not make anybody believe in it, nor get in the way.
    assert background.ready_path(notes.loaded()).exists()
    assert "no graph runs" in notes.run("graph", "stop").out
    started = notes.run("graph", "start", "--port", "0")
    assert started.status == 0
    assert f"http://127.0.0.1:{port} (" not in started.out


def test_what_keeps_it_from_starting_is_one_sentence(notes: Home, port: int) -> None:
    done = notes.run("graph", "start", "--vault", str(notes.path / "none"))
    assert (done.status, "is not a folder" in done.err) == (2, True)
    with socket.create_server(("127.0.0.1", port)):
        done = notes.run("graph", "start")
    assert (done.status, f"port {port} of 127.0.0.1 is in use" in done.err) == (2, True), done.err
    assert len(done.err.splitlines()) == 1


def test_another_port_than_the_configured_one_is_pointed_out(home: Home) -> None:
    home.set(BDH_API_URL="https://graph.example.com")
    loaded = home.loaded()
    assert background.port_of(loaded) == 8643
    done = home.run("graph", "start", "--port", "0")
    try:
        assert (
            "Hermes reads https://graph.example.com; to use this one: BDH_API_URL=http" in done.out
        )
    finally:
        background.stop(loaded)


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_what_starts_it_at_boot(home: Home, platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    vault = sample_vault(home.path / 'my "notes" 100%')
    path, text, enable = background.boot_unit(home.loaded(), vault, 8643)
    command = background.serve_command(home.loaded(), vault, 8643)
    if platform == "darwin":
        values = plistlib.loads(text.encode())
        assert values["ProgramArguments"] == command
        assert path.suffix == ".plist"
    else:
        assert 'my \\"notes\\" 100%%"' in text
        assert "systemctl --user enable" in enable
    assert str(path) in home.run("graph", "boot").out
