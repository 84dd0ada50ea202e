"""An IRC server on loopback with one bot in it: enough of the protocol to talk with a gateway."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from types import TracebackType

CHANNEL = "#notes"
BOT = "bdhbot"


class IrcServer:
    """``say`` is what a person writes; what the bot answers is in :meth:`answer`."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._lines: queue.Queue[tuple[str, str]] = queue.Queue()
        self._bot: socket.socket | None = None
        self.joined = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> IrcServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()
        if self._bot is not None:
            self._bot.close()

    def say(self, nick: str, text: str, *, channel: bool = False) -> None:
        """In private, or in the channel, addressed to the bot."""
        assert self._bot is not None
        target, said = (CHANNEL, f"{BOT}: {text}") if channel else (BOT, text)
        self._bot.sendall(f":{nick}!u@h PRIVMSG {target} :{said}\r\n".encode())

    def answer(self, target: str, wanted: str, seconds: float = 60) -> str | None:
        """What the bot writes to ``target`` until it holds ``wanted``; None if it doesn't."""
        deadline, text = time.monotonic() + seconds, ""
        while wanted not in text:
            try:
                to, line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.01))
            except queue.Empty:
                return None
            if to == target:
                text += f"{line}\n"
        return text

    def ask(self, nick: str, text: str, wanted: str, *, channel: bool = False) -> str:
        """Say ``text`` and wait for ``wanted``.

        Hermes drops a plugin's command while it is busy with the message before, its last pause
        after an answer included. So a command waits a moment, and is said again if it was lost.
        """
        with contextlib.suppress(queue.Empty):
            while True:
                self._lines.get_nowait()
        command = text.startswith("/")
        for _ in range(4 if command else 1):
            time.sleep(0.6 if command else 0)
            self.say(nick, text, channel=channel)
            answer = self.answer(CHANNEL if channel else nick, wanted, 15 if command else 60)
            if answer is not None:
                return answer
        raise AssertionError(f"{nick} said {text!r} and never got {wanted!r}")

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._bot, _ = self._listener.accept()
                threading.Thread(target=self._read, args=(self._bot,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                command, _, rest = line.rstrip("\r\n").partition(" ")
                if command == "USER":
                    connection.sendall(f":irc.test 001 {BOT} :Welcome\r\n".encode())
                elif command == "JOIN":
                    self.joined.set()
                elif command == "PRIVMSG":
                    target, _, text = rest.partition(" :")
                    self._lines.put((target, text))
