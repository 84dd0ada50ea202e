"""How a new row wakes the worker: one byte through a FIFO in the owner-only folder.

A FIFO rather than a socket, since its path may be of any length (a socket's ends at 104 bytes on
macOS, and Hermes homes lie deep), because a full one already means "awake", and because opening
it for writing tells at once whether somebody listens. It costs the agent some ten microseconds
and the waiting worker nothing. A file system that can't hold a FIFO, or a byte that was lost
while the worker changed, costs at most the safety poll of :data:`SAFETY_POLL` seconds.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import threading
from pathlib import Path

SAFETY_POLL = 5.0


def ring(path: Path) -> bool:
    """Wake the worker that listens at ``path``; False if nobody does. Never blocks or raises."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return False
        os.write(descriptor, b"!")
    except BlockingIOError:
        pass  # full of rings that it has not heard yet
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


class Bell:
    """The worker's end. Without a FIFO it is just a slow clock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileExistsError):
                os.mkfifo(path, 0o600)
            # Open for writing, too: else select() would report "end of file" for ever once the
            # first ringer has gone.
            descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
            if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                self._descriptor = descriptor
            else:
                os.close(descriptor)
        # Other threads of this process ring here: it works without a file system.
        self._lock = threading.Lock()
        self._closed = False
        self._inner_read, self._inner_write = os.pipe()
        os.set_blocking(self._inner_read, False)
        os.set_blocking(self._inner_write, False)

    def ring(self) -> None:
        """Wake the waiting thread of this process."""
        with self._lock:
            # Once closed, the number may belong to any other file of the process.
            if not self._closed:
                with contextlib.suppress(OSError):
                    os.write(self._inner_write, b"!")

    def wait(self, seconds: float) -> bool:
        """Sleep until a ring, or for ``seconds``, or the safety poll; True if it rang."""
        timeout = max(0.0, min(seconds, SAFETY_POLL))
        sources = [self._inner_read]
        if self._descriptor is not None:
            sources.append(self._descriptor)
        ready, _, _ = select.select(sources, [], [], timeout)
        for descriptor in ready:
            with contextlib.suppress(BlockingIOError):
                while len(os.read(descriptor, 4096)) == 4096:
                    pass
        return bool(ready)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for descriptor in (self._descriptor, self._inner_read, self._inner_write):
                if descriptor is not None:
                    os.close(descriptor)
