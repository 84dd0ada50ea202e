"""``--source FILE``: OTLP JSON lines, as the Collector's file exporter writes them, followed."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import IO

from bdh_otel.database import StoreError
from bdh_tui.sources import SourceError
from bdh_tui.sources.feed import FeedSource
from bdh_tui.sources.wire import Batch, from_otlp_json, from_stored_json, loads

_POLL = 0.3
#: Lines, and about how many bytes of them, that are taken in at once.
_LINES, _BYTES = 500, 4 << 20
#: Longest line that is read; what is longer is no line of spans.
_MAX_LINE = 32 << 20


class FileSource(FeedSource):
    """Also reads what the Turn screen and ``bdh-bridge spans --json`` write."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"file {path.name}")
        self.path = path
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._in_long_line = False
        self._unfinished: tuple[int, int] | None = None

    def start(self) -> None:
        if not self.path.is_file():
            self.stop()
            raise SourceError(f"{self.path} is no file")
        self._thread = threading.Thread(target=self._follow, name="bdh-tui-file", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        super().stop()

    def _follow(self) -> None:
        """Read to the end, wait for more; start over when the file is replaced or cut."""
        while not self._stop.is_set():
            try:
                with self.path.open("rb") as file:
                    self._trouble, self._in_long_line, self._unfinished = "", False, None
                    inode, head = self.path.stat().st_ino, _head(file)
                    while not self._stop.is_set() and self._same(file, inode, head):
                        if not self._read(file):
                            self._stop.wait(_POLL)
            except FileNotFoundError:
                self._trouble = f"{self.path} is gone; it is read again when it is back"
                self._stop.wait(1.0)
            except (OSError, StoreError) as error:
                self._trouble = str(error)
                self._stop.wait(1.0)

    def _same(self, file: IO[bytes], inode: int, head: bytes) -> bool:
        """Still the file that was opened, with what was read of it?"""
        status = self.path.stat()
        if status.st_ino != inode or status.st_size < file.tell():
            return False
        # Cut and written anew it may have any size; its first line tells.
        return _head(file).startswith(head)

    def _read(self, file: IO[bytes]) -> bool:
        """Take in some whole lines; False if there was none."""
        batch, begun = Batch(), file.tell()
        for _ in range(_LINES):
            start = file.tell()
            line = file.readline(_MAX_LINE)
            if not line or start - begun > _BYTES:
                file.seek(start)
                break
            if self._in_long_line:
                self._in_long_line = not line.endswith(b"\n")
            elif len(line) == _MAX_LINE:
                batch.unreadable += 1
                self._in_long_line = not line.endswith(b"\n")
            elif line.endswith(b"\n") or self._is_whole(start, line):
                _decode(line, batch)
            else:
                file.seek(start)  # somebody is still writing it
                break
        if batch.rows or batch.unreadable:
            self.take(batch)
        return file.tell() > begun

    def _is_whole(self, start: int, line: bytes) -> bool:
        """A last line that lacks its end, and lacked it at the last look, but nothing else?"""
        before, self._unfinished = self._unfinished, (start, len(line))
        if before != self._unfinished or not line.rstrip().endswith(b"}"):
            return False
        try:
            loads(line)
        except ValueError:
            return False
        return True


def _head(file: IO[bytes]) -> bytes:
    return os.pread(file.fileno(), 1_024, 0)


def _decode(line: bytes, batch: Batch) -> None:
    if not line.strip():
        return
    try:
        document = loads(line)
    except ValueError:
        batch.unreadable += 1
        return
    if not isinstance(document, dict):
        batch.unreadable += 1
        return
    found = from_stored_json(document) if "span_id" in document else from_otlp_json(document)
    batch.rows += found.rows
    batch.unreadable += found.unreadable
