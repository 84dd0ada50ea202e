"""Two locks: one gateway for a home, one for an agent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway import status

from hermes_borgee import ownership
from hermes_borgee.ownership import Contention, Ownership

URL, KEY = "https://chat.example.com", "bgr_key"

HOLDER = """
import sys
from pathlib import Path
from hermes_borgee.ownership import Ownership
owner = Ownership(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
owner.acquire()
print("held", flush=True)
sys.stdin.read()
# The name of a gateway process: gateway run
"""


@pytest.fixture(autouse=True)
def lock_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HERMES_GATEWAY_LOCK_DIR", str(tmp_path / "locks"))
    return tmp_path / "locks"


@pytest.fixture
def other_process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    script = tmp_path / "hermes_cli" / "main.py"  # Hermes tells a gateway by its command line
    script.parent.mkdir()
    script.write_text(HOLDER)
    home = tmp_path / "home"
    home.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(script), str(home), URL, KEY, "gateway", "run"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "held"
    yield process
    process.kill()
    process.communicate()


def order_of_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    calls: list[tuple[str, str]] = []
    acquire, release = status.acquire_scoped_lock, status.release_scoped_lock

    def acquired(scope: str, identity: str, metadata: object = None) -> object:
        calls.append(("acquire", scope))
        return acquire(scope, identity, metadata)

    def released(scope: str, identity: str) -> None:
        calls.append(("release", scope))
        release(scope, identity)

    monkeypatch.setattr(status, "acquire_scoped_lock", acquired)
    monkeypatch.setattr(status, "release_scoped_lock", released)
    return calls


def test_locks_are_taken_in_order_and_released_in_reverse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = order_of_calls(monkeypatch)
    owner = Ownership(tmp_path, URL, KEY)
    owner.acquire()
    assert owner.held
    owner.release()
    owner.release()
    assert calls == [
        ("acquire", "borgee-home"),
        ("acquire", "borgee-agent"),
        ("release", "borgee-agent"),
        ("release", "borgee-home"),
    ]


def test_a_second_adapter_of_this_process_is_kept_out(tmp_path: Path) -> None:
    first = Ownership(tmp_path / "a", URL, KEY)
    first.acquire()
    # Another home, the same agent: the first lock is taken and given back again.
    second = Ownership(tmp_path / "b", URL, KEY)
    with pytest.raises(Contention, match="another adapter of this process"):
        second.acquire()
    assert not second.held
    third = Ownership(tmp_path / "b", URL, "other")
    third.acquire()
    third.release()
    first.release()
    second.acquire()
    second.release()
    assert ownership._registry == {}


def test_two_names_of_one_home_are_one_home(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "home")
    first = Ownership(tmp_path / "home", URL, KEY)
    first.acquire()
    with pytest.raises(Contention):
        Ownership(tmp_path / "link", "https://other.example.com", "k").acquire()
    first.release()


def test_another_process_is_named_and_its_death_frees_the_locks(
    tmp_path: Path, other_process: subprocess.Popen[str]
) -> None:
    owner = Ownership(tmp_path / "home", URL, KEY)
    with pytest.raises(Contention, match=str(other_process.pid)):
        owner.acquire()
    with pytest.raises(Contention, match=str(other_process.pid)):
        Ownership(tmp_path, URL, KEY).acquire()  # another home, the same agent
    other_process.kill()
    other_process.wait()
    owner.acquire()
    owner.release()


def test_the_key_is_in_no_lock_file(tmp_path: Path, lock_folder: Path) -> None:
    owner = Ownership(tmp_path, URL, "bgr_very_secret")
    owner.acquire()
    written = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert written
    assert all("bgr_very_secret" not in p.read_text() for p in written)
    owner.release()
