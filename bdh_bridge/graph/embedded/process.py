"""The server process: its socket, its lock, its threads, its end."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

import uvicorn

from bdh_bridge.graph.embedded.encoder import Encoder
from bdh_bridge.graph.embedded.guard import is_loopback
from bdh_bridge.graph.embedded.server import create_app
from bdh_bridge.graph.embedded.service import GraphService
from bdh_bridge.graph.embedded.state import GraphState
from bdh_bridge.graph.embedded.sync import Progress

log = logging.getLogger(__name__)

#: A scan of a large vault takes its time: it may use one part in so many.
_SCAN_SHARE = 50


class ServeError(Exception):
    """The server can't start; ``str()`` is a sentence."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    vault: Path
    state: Path
    host: str = "127.0.0.1"
    port: int = 8643
    token: str = ""
    ready_file: Path | None = None
    scan_interval: float = 3.0
    """Seconds between two looks at the vault's files, at least."""


def serve(options: ServeOptions, progress: Progress) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises: ServeError; StoreError for a state file that can't be used.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_ended_by_signals())
        listener = stack.enter_context(_bind(options))
        root = options.vault.resolve()
        state = GraphState(options.state, root)
        stack.callback(state.close)
        stack.enter_context(_only_server(state))
        service = GraphService(root, state, Encoder())
        try:
            service.load(progress)
        except OSError as error:
            raise ServeError(f"the vault {root} can't be read: {error.strerror}") from error
        engine = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="graph"))
        stack.enter_context(_watching(service, engine, options.scan_interval))
        url = _url(options.host, listener)
        stack.enter_context(_ready_file(options.ready_file, url, root, len(service.index)))
        app = create_app(
            service, engine, token=options.token, loopback_only=is_loopback(options.host)
        )
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=2,
            backlog=256,
        )
        ready = f"listening on {url} ({len(service.index)} notes)"
        try:
            _Server(config, lambda: print(ready, flush=True)).run(sockets=[listener])
        except OSError as error:
            raise _in_use(options) from error


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()


class _Ended(BaseException):
    """A signal asked for the end; not an Exception, so that nothing on the way catches it."""


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """While loading, a signal unwinds; while serving, uvicorn takes it and raises it again."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        for other in (signal.SIGTERM, signal.SIGINT):
            signal.signal(other, signal.SIG_IGN)  # the end is on its way: don't interrupt it
        raise _Ended

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except _Ended:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _bind(options: ServeOptions) -> Iterator[socket.socket]:
    """A bound socket that doesn't listen yet: the port is known to be free, callers are refused."""
    if not is_loopback(options.host) and not options.token:
        raise ServeError(
            f"{options.host} is reachable from other machines: set BDH_API_TOKEN first"
        )
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ServeError(f"the host {options.host!r} is not known here") from error
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise _in_use(options, error) from error
        yield listener


def _in_use(options: ServeOptions, error: OSError | None = None) -> ServeError:
    import errno

    if error is None or error.errno == errno.EADDRINUSE:
        return ServeError(
            f"port {options.port} of {options.host} is in use; choose another one with --port"
        )
    return ServeError(f"port {options.port} of {options.host} can't be used: {error.strerror}")


def _url(host: str, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def _only_server(state: GraphState) -> Iterator[None]:
    """Two servers of one vault would each learn behind the other's back."""
    path = state.path.with_name(f"{state.path.name}.{state.vault}.lock")
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ServeError("another graph server has this vault open already") from error
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _watching(service: GraphService, engine: Executor, interval: float) -> Iterator[None]:
    """Look for changes of the vault in a thread; they are applied between queries."""
    stopped = threading.Event()

    def look() -> None:
        snapshot = engine.submit(service.snapshot).result()
        for batch in service.sync.changes(snapshot):
            if stopped.is_set():
                return
            engine.submit(service.apply, batch).result()
        if snapshot.pending:
            engine.submit(service.write_pending_files).result()

    def watch() -> None:
        pause, trouble = interval, ""
        while not stopped.wait(pause):
            started = time.monotonic()
            try:
                look()
                trouble = ""
            except Exception as error:  # the vault may be unmounted, the disk full: go on serving
                if str(error) != trouble:
                    trouble = str(error)
                    log.warning("[bdh-bridge] the vault can't be looked through: %s", error)
            pause = max(interval, (time.monotonic() - started) * _SCAN_SHARE)

    thread = threading.Thread(target=watch, name="vault", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(5)


@contextlib.contextmanager
def _ready_file(path: Path | None, url: str, vault: Path, notes: int) -> Iterator[None]:
    """Tell whoever waits where the server is; the file goes away with the server."""
    if path is None:
        yield
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.touch(mode=0o600)
        values = {"url": url, "pid": os.getpid(), "vault": str(vault), "notes": notes}
        temporary.write_text(json.dumps(values), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise ServeError(f"{path} can't be written: {error.strerror}") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
