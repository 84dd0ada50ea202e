"""A stream of messages through the real gateway, while its connection breaks and it is killed.

``benchmarks/borgee_soak.py --gateway`` does the same with a thousand messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.borgee import Gateway, Model, make_home, running_gateway
from tests.support.borgee_adapter import Bench
from tests.support.borgee_storm import Storm
from tests.support.bpp_server import BppServer

pytestmark = [pytest.mark.hermes, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def borgee() -> Iterator[BppServer]:
    with BppServer() as running:
        yield running


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    found = Model()
    yield found
    found.close()


@pytest.fixture(scope="module")
def gateway(
    tmp_path_factory: pytest.TempPathFactory, model: Model, borgee: BppServer
) -> Iterator[Gateway]:
    home = make_home(tmp_path_factory.mktemp("storm") / "h", borgee.url, model_url=model.url)
    environment = {"BDH_API_URL": "http://127.0.0.1:9", "BDH_WORKER": "off"}
    with running_gateway(home, borgee, **environment) as running:
        yield running


@pytest.mark.parametrize("home", ["the same", "another"])
async def test_a_second_gateway_is_told_who_has_the_home_or_the_agent(
    gateway: Gateway,
    borgee: BppServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    home: str,
) -> None:
    place = gateway.home if home == "the same" else make_home(tmp_path / "h", borgee.url)
    monkeypatch.setenv("HERMES_HOME", str(place))
    monkeypatch.setenv("XDG_STATE_HOME", gateway.environ["XDG_STATE_HOME"])
    monkeypatch.delenv("HERMES_GATEWAY_LOCK_DIR", raising=False)
    before = borgee.connections
    second = Bench(place)
    assert not await second.start()
    assert second.adapter.fatal_error_code == "borgee_lock"
    assert second.adapter.fatal_error_retryable
    assert gateway.process is not None
    what = "the Hermes home" if home == "the same" else "the Borgee agent"
    assert what in second.adapter.fatal_error_message
    assert str(gateway.process.pid) in second.adapter.fatal_error_message
    await second.adapter.disconnect()
    assert borgee.connections == before


def test_a_stream_through_disconnects_and_a_kill(
    gateway: Gateway, borgee: BppServer, model: Model
) -> None:
    storm = Storm(gateway, borgee, model, sessions=8, seed=11)
    for number in range(60):
        storm.push()
        if number in (12, 25, 50):
            storm.disconnect()
        elif number == 37:
            storm.kill()
            storm.decide()
    tally = storm.finish()
    assert tally.whole, tally
    assert sum(storm.disconnects.values()) == 3
    # Doubtful is at most what ran at the kill; all else ran, once, in order.
    assert tally.doubtful <= 4, tally
    assert tally.outcomes.get("discarded", 0) == tally.doubtful
