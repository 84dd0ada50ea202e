"""The embedded graph as a process in the background: one a home, whoever started it.

The server holds a lock for as long as it lives, as the worker does, so that its id in a file
can't be taken for another process's. What it prints goes to ``bdh-bridge/graph.log``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bdh_bridge.settings import Loaded
from bdh_bridge.worker.environment import minimal_environment
from bdh_bridge.worker.lock import is_held, read_holder
from bdh_otel.database import make_private_directory

DEFAULT_PORT = 8643
#: Seconds for a server that was told to end.
STOP_SECONDS = 20.0
_LOG_BYTES = 1_000_000


class BackgroundError(Exception):
    """``str()`` is a sentence."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. ``url`` is empty while it still reads its notes."""

    pid: int | None
    since: float
    url: str
    notes: int
    """How many there were when it started."""
    vault: str = ""


def lock_path(loaded: Loaded) -> Path:
    return loaded.paths.directory / "graph.lock"


def ready_path(loaded: Loaded) -> Path:
    return loaded.paths.directory / "graph.json"


def log_path(loaded: Loaded) -> Path:
    return loaded.paths.directory / "graph.log"


def running(loaded: Loaded) -> Server | None:
    """The home's background server. Raises: OSError."""
    if not is_held(lock_path(loaded)):
        return None
    holder = read_holder(lock_path(loaded))
    pid = holder.pid if holder else None
    since = holder.since if holder else time.time()
    try:
        ready = json.loads(ready_path(loaded).read_text(encoding="utf-8"))
        if ready["pid"] == pid:
            return Server(
                pid, since, str(ready["url"]), int(ready["notes"]), str(ready.get("vault", ""))
            )
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return Server(pid, since, "", 0)


def last_vault(loaded: Loaded) -> Path | None:
    """The folder that the server was last started with, None if it was never given one.

    Raises: OSError.
    """
    try:
        return Path(_vault_path(loaded).read_text(encoding="utf-8", errors="surrogateescape"))
    except FileNotFoundError:
        return None


def _remember(loaded: Loaded, vault: Path) -> None:
    path = _vault_path(loaded)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.touch(mode=0o600)
    temporary.write_text(str(vault.absolute()), encoding="utf-8", errors="surrogateescape")
    temporary.replace(path)


def _vault_path(loaded: Loaded) -> Path:
    return loaded.paths.directory / "graph.vault"


def port_of(loaded: Loaded) -> int:
    """The port that ``BDH_API_URL`` names, if it names this machine."""
    from bdh_bridge.routing.chat import is_loopback

    url = loaded.settings.api_url
    if not is_loopback(url):
        return DEFAULT_PORT
    return urlsplit(url).port or (443 if url.startswith("https:") else 80)


def serve_command(loaded: Loaded, vault: Path | None, port: int) -> list[str]:
    """How the server is started, from an installed package and from a clone alike."""
    import bdh_bridge
    import bdh_otel
    import hermes_borgee

    folders = {
        str(Path(str(package.__file__)).parents[1])
        for package in (bdh_bridge, bdh_otel, hermes_borgee)
    }
    start = f"import sys; sys.path[:0] = {sorted(folders)!r}; "
    start += "from bdh_bridge.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-P", "-c", start, "--home", str(loaded.paths.hermes_home)]
    command += ["graph", "serve", "--port", str(port), "--background"]
    command += ["--ready-file", str(ready_path(loaded))]
    return command if vault is None else [*command, "--vault", str(vault.absolute())]


def start(
    loaded: Loaded,
    vault: Path | None,
    port: int,
    progress: Callable[[str], None] | None = None,
) -> Server:
    """Start the server and wait until it answers; ``progress`` is told its last line now and then.

    Raises: BackgroundError if it ends instead; OSError.
    """
    make_private_directory(loaded.paths.directory)
    if vault is not None:
        _remember(loaded, vault)
    log = log_path(loaded)
    if log.exists() and log.stat().st_size > _LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
    begin = os.fstat(descriptor).st_size
    try:
        process = subprocess.Popen(
            serve_command(loaded, vault, port),
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            cwd="/",
            env=minimal_environment(os.environ),
            start_new_session=True,
            close_fds=True,
        )
    finally:
        os.close(descriptor)
    while True:
        ended = process.poll() is not None
        server = running(loaded)
        if server is not None and server.url:
            return server
        if ended:
            said = _last_line(log, begin) or "it says nothing"
            raise BackgroundError(f"the graph did not start: {said}")
        if progress is not None:
            progress(_last_line(log, begin))
        time.sleep(0.05)


def stop(loaded: Loaded) -> int | None:
    """End the server; its process id, None if none runs. Raises: BackgroundError, OSError."""
    server = running(loaded)
    if server is None:
        return None
    if server.pid is None:
        raise BackgroundError("the graph's process is not known here; was it started elsewhere?")
    try:
        os.kill(server.pid, signal.SIGTERM)
    except PermissionError as error:
        raise BackgroundError(f"the graph (pid {server.pid}) belongs to another user") from error
    except ProcessLookupError:
        pass
    deadline = time.monotonic() + STOP_SECONDS
    while is_held(lock_path(loaded)):
        if time.monotonic() > deadline:
            raise BackgroundError(f"the graph (pid {server.pid}) did not end in time")
        time.sleep(0.02)
    return server.pid


def boot_unit(loaded: Loaded, vault: Path | None, port: int) -> tuple[Path, str, str]:
    """What starts the server at boot: a file, its content, and the command that enables it."""
    command = serve_command(loaded, vault, port)
    if sys.platform == "darwin":
        label = "io.github.bdh-hermes-bridge.graph"
        path = Path.home() / "Library" / "LaunchAgents" / f"{label}.plist"
        return path, _plist(label, command, log_path(loaded)), f"launchctl load {path}"
    path = Path.home() / ".config" / "systemd" / "user" / "bdh-graph.service"
    enable = "systemctl --user enable --now bdh-graph && loginctl enable-linger"
    return path, _unit(command), enable


def _unit(command: list[str]) -> str:
    quoted = " ".join(
        '"' + one.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'
        for one in command
    ).replace("$", "$$")
    return (
        "[Unit]\nDescription=BDH embedded graph for Hermes Agent\n\n"
        f"[Service]\nExecStart={quoted}\nRestart=on-failure\nUMask=0077\n\n"
        "[Install]\nWantedBy=default.target\n"
    )


def _plist(label: str, command: list[str], log: Path) -> str:
    import plistlib

    values = {
        "Label": label,
        "ProgramArguments": command,
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "StandardErrorPath": str(log),
        "Umask": 0o077,
    }
    return plistlib.dumps(values).decode()


def _last_line(log: Path, begin: int) -> str:
    from bdh_otel.escape import one_line

    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode("utf-8", "replace").split("\n")
    written = [line for line in lines if line.strip()]
    return one_line(written[-1].removeprefix("error: "), 300) if written else ""
