"""The application in a browser: the real server, its page and its socket."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.tui.test_tui_command import COMMAND, environment, run

PATIENCE = 90.0


def test_without_the_extra_it_says_what_to_install(home: Path, tmp_path: Path) -> None:
    (tmp_path / "textual_serve.py").write_text("raise ImportError('not here')\n", encoding="utf-8")
    result = subprocess.run(
        [*COMMAND, "--home", str(home), "--serve"], capture_output=True, text=True, timeout=90,
        env={**environment(home), "PYTHONPATH": str(tmp_path)}, check=False,
    )  # fmt: skip
    assert result.returncode == 2
    assert "pip install 'bdh-hermes-bridge[serve]'" in result.stderr
    assert "Traceback" not in result.stderr


pytest.importorskip("textual_serve", reason="needs the extra serve")


@contextlib.contextmanager
def served(home: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The server, and the address that it tells."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [*COMMAND, "--home", str(home), "--serve", str(port), *arguments],
        env=environment(home.parent), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.search(r"http://127\.0\.0\.1:\d+/\S+/", line)
        assert match is not None, line
        yield process, match[0]
    finally:
        process.kill()
        process.wait(10)


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def children(process: subprocess.Popen[str]) -> list[int]:
    """Every process that descends from this one."""
    found, parents = [], {process.pid}
    stats = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            after = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            stats.append((int(path.parent.name), int(after[1])))
    for _ in range(4):
        new = [pid for pid, parent in stats if parent in parents and pid not in parents]
        found += new
        parents |= set(new)
    return found


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def shown(address: str, wanted: str, keys: str = "") -> str:
    """What a page gets until ``wanted`` is drawn; it tells its size twice, as browsers do."""
    aiohttp = pytest.importorskip("aiohttp")
    seen, deadline = "", time.monotonic() + PATIENCE
    url = f"{address.replace('http', 'ws', 1)}ws?width=100&height=30"
    async with aiohttp.ClientSession() as session, session.ws_connect(url) as page:
        await page.send_json(["resize", {"width": 120, "height": 36}])
        await page.send_json(["resize", {"width": 120, "height": 40}])
        while wanted not in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen):
            assert time.monotonic() < deadline, seen[-2_000:]
            message = await page.receive(PATIENCE)
            assert message.type == aiohttp.WSMsgType.BINARY, message
            seen += message.data.decode()
            if keys and "following" in seen:
                await page.send_json(["stdin", keys])
                keys = ""
        # The last size that was told is the one that is drawn.
        while "\x1b[40;1H" not in seen:
            assert time.monotonic() < deadline, seen[-2_000:]
            seen += (await page.receive(PATIENCE)).data.decode()
    return seen


async def test_a_page_shows_the_home_that_was_named_and_takes_keys(home: Path) -> None:
    with served(home) as (process, address):
        async with httpx.AsyncClient(trust_env=False) as http:
            page = await http.get(address)
        assert page.status_code == 200
        assert "https://" not in page.text.replace("http://www.w3.org", "")
        assert "bdh-bridge-tui" in page.text
        await shown(address, "Which alert level closes")
        await shown(address, "Why turns were stopped", keys="3")
        # Closed pages leave no program behind.
        until(lambda: not children(process), "a program that outlives its page")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
async def test_the_end_of_the_server_is_the_end_of_its_pages(
    home: Path, how: signal.Signals
) -> None:
    aiohttp = pytest.importorskip("aiohttp")
    with served(home, "--screen", "live") as (process, address):
        url = f"{address.replace('http', 'ws', 1)}ws?width=100&height=30"
        async with aiohttp.ClientSession() as session, session.ws_connect(url) as page:
            await page.receive(PATIENCE)
            programs = children(process)
            assert programs
            process.send_signal(how)
            process.wait(PATIENCE)
        until(lambda: not any(alive(pid) for pid in programs), "a program that stays")


def test_it_listens_on_the_loopback_and_answers_those_who_know_the_key(home: Path) -> None:
    with served(home, "--source", "local") as (process, address):
        port = int(address.split(":")[2].split("/")[0])
        listening = [
            line.split()[1].split(":")
            for table in ("/proc/net/tcp", "/proc/net/tcp6")
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]
            if line.split()[3] == "0A"
        ]
        assert [host for host, at in listening if int(at, 16) == port] == ["0100007F"]
        root = f"http://127.0.0.1:{port}"
        for path in ("/", "/ws", "/static/js/textual.js", "/wrong/", "/download/x"):
            assert httpx.get(root + path, trust_env=False).status_code == 404, path
        with contextlib.closing(socket.create_connection(("127.0.0.1", port))):
            pass
        assert process.poll() is None
        taken = run(home, "--serve", str(port))
        assert (taken.returncode, taken.stdout) == (2, "")
        assert f"port {port} of 127.0.0.1 can't be used" in taken.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["--source", "nowhere"], "is no source"), (["--profile", "../up"], "is not a profile name")],
)
def test_what_is_wrong_is_said_before_a_page_is_opened(
    home: Path, arguments: list[str], told: str
) -> None:
    result = run(home, "--serve", "8765", *arguments)
    assert result.returncode == 2
    assert told in result.stderr


def test_every_page_runs_this_command_with_the_same_options() -> None:
    from bdh_tui.serve import without_serve

    given = ["--home", "/x", "--serve", "9000", "--screen", "graph", "--source", "otlp:4400"]
    wanted = ["--home", "/x", "--screen", "graph", "--source", "otlp:4400"]
    assert without_serve(given)[4:] == wanted
    assert without_serve(["--serve", "--profile", "work"])[4:] == ["--profile", "work"]
    assert without_serve(["--serve=9000"])[4:] == []
