"""Hermes is started while the Borgee server is down, and the server comes up later."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.support.borgee import Gateway, Model, make_home
from tests.support.bpp_server import BppServer

pytestmark = [pytest.mark.hermes, pytest.mark.slow, pytest.mark.timeout(400)]


def test_the_gateway_starts_without_its_server_and_finds_it_later(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    model = Model()
    home = make_home(tmp_path / "h", f"http://127.0.0.1:{port}", model_url=model.url)
    gateway = Gateway(home, BDH_API_URL="http://127.0.0.1:9", BDH_WORKER="off")
    try:
        gateway.start()
        gateway.wait(lambda: "the server can't be reached" in gateway.log(), 120)
        with BppServer(port) as server:
            # Hermes' own first pause before it tries again is half a minute.
            server.wait(lambda: server.is_online(), 240)
            gateway.wait(
                lambda: (
                    (rows := gateway.rows("SELECT state FROM health"))
                    and rows[0]["state"] == "online"
                ),
            )
            server.push("are you there?")
            gateway.wait(lambda: gateway.statuses("are you there?") == ["completed"])
            assert "Answer to: are you there?" in server.contents("chan-1")
    finally:
        gateway.close()
        model.close()
