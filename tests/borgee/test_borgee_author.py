"""What the graph is asked about a channel's message: the message, without its author's name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.borgee import Model, make_home, running_gateway
from tests.support.bpp_server import BppServer
from tests.support.http_peer import answering, json_response, peer

pytestmark = [pytest.mark.hermes, pytest.mark.timeout(240)]

QUESTION = "What does the outbox do when the agent crashes?"
BRACKETS = "[Ada] is in brackets: what does the outbox do with that?"
NOTE = {"id": "n", "title": "Durable Outbox", "score": 0.9, "excerpt": "Every write is durable."}


def test_hermes_shows_the_author_to_the_model_and_the_graph_is_asked_without(
    tmp_path: Path, server: BppServer
) -> None:
    model = Model()
    found = json_response({"response": "", "activated_notes": [NOTE]})
    with peer(answering(found)) as graph:
        home = make_home(tmp_path / "h", server.url, model_url=model.url)
        environment = {
            "BDH_API_URL": graph.url,
            "BDH_WORKER": "off",
            "BDH_REWRITE_ENABLED": "false",
        }

        def asked() -> list[str]:
            bodies = [request.partition(b"\r\n\r\n")[2] for request in list(graph.requests)]
            return [json.loads(body)["query"] for body in bodies if b'"query"' in body]

        try:
            with running_gateway(home, server, **environment) as gateway:
                server.push(QUESTION, channel_id="shared")
                gateway.wait(lambda: gateway.statuses(QUESTION) == ["completed"])
                assert any(f"[Ada] {QUESTION}" in text for text in model.asked)
                assert asked() == [QUESTION]
                # In private Hermes adds nothing, so what looks like a name is the person's own.
                server.push(BRACKETS, channel_id="alone", channel_type="dm")
                gateway.wait(lambda: gateway.statuses(BRACKETS) == ["completed"])
                assert asked() == [QUESTION, BRACKETS]
        finally:
            model.close()
