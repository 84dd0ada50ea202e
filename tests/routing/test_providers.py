"""The chain as a list: who is asked, where, with which key."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from bdh_bridge.routing.chat import Exchange
from bdh_bridge.routing.hop import HopError, HopOutcome
from bdh_bridge.routing.providers import Provider, build_chain
from bdh_bridge.settings import Settings
from tests.routing.conftest import MakeServer

MESSAGES = [{"role": "user", "content": "m"}]


def chain(nous: Any = None, host: Any = None, **variables: Any) -> dict[str, Provider]:
    providers, _ = build_chain(Settings(**variables), nous, host)
    return {provider.name: provider for provider in providers}


def failure(provider: Provider) -> HopError:
    with pytest.raises(HopError) as caught:
        provider.ask(MESSAGES, 10.0, Exchange())
    return caught.value


def test_the_default_chain_is_the_four_providers_with_their_models() -> None:
    assert [(p.name, p.model, p.url) for p in chain().values()] == [
        ("ollama", "deepseek-v4-flash:cloud", "https://ollama.com/v1"),
        ("nous", "upstage/solar-pro4:free", "https://inference-api.nousresearch.com/v1"),
        ("openrouter", "nvidia/nemotron-3-ultra-550b-a55b:free", "https://openrouter.ai/api/v1"),
        ("local", "qwen3.8-27b-oq4e-mtp", "http://127.0.0.1:8083/v1"),
    ]


def test_the_setting_orders_and_unknown_names_are_told() -> None:
    settings = Settings(BDH_REWRITE_CHAIN=" local, Hermes ,zork,ollama,local,, ")
    providers, unknown = build_chain(settings)
    assert [provider.name for provider in providers] == ["local", "hermes", "ollama"]
    assert unknown == ["zork"]


def test_without_keys_only_the_local_model_can_be_asked() -> None:
    reachable = [p.name for p in chain().values() if p.credential(0.0) is not None]
    assert reachable == ["local"]


@pytest.mark.parametrize(
    ("variables", "key"),
    [
        ({"BDH_REWRITE_API_KEY": "own", "OLLAMA_API_KEY": "shared"}, "own"),
        ({"OLLAMA_API_KEY": "shared"}, "shared"),
        (
            {"OLLAMA_API_KEY": "shared", "BDH_REWRITE_API_URL": "https://api.ollama.com/v1"},
            "shared",
        ),
        # Ollama's key goes to Ollama alone
        ({"OLLAMA_API_KEY": "shared", "BDH_REWRITE_API_URL": "https://example.com/v1"}, None),
        ({"OLLAMA_API_KEY": "shared", "BDH_REWRITE_API_URL": "https://notollama.com/v1"}, None),
        ({"OLLAMA_API_KEY": "shared", "BDH_REWRITE_API_URL": "https://ollama.com.evil.org"}, None),
        ({"OLLAMA_API_KEY": "shared", "BDH_REWRITE_API_URL": "http://ollama.com/v1"}, None),
        # A loopback server needs none, and gets Ollama's neither
        ({"OLLAMA_API_KEY": "shared", "BDH_REWRITE_API_URL": "http://localhost:11434/v1"}, ""),
        ({"BDH_REWRITE_API_URL": "http://127.0.0.1:11434/v1"}, ""),
        ({"BDH_REWRITE_API_KEY": "own", "BDH_REWRITE_API_URL": "http://10.0.0.7/v1"}, "own"),
        ({}, None),
    ],
)
def test_the_key_for_ollama(variables: dict[str, str], key: str | None) -> None:
    credential = chain(**variables)["ollama"].credential(0.0)
    assert (None if credential is None else credential.api_key) == key


def test_openrouter_gets_its_key_and_attribution(server: MakeServer) -> None:
    peer = server()
    variables = {
        "BDH_REWRITE_OPENROUTER_URL": peer.url,
        "OPENROUTER_API_KEY": "or-key",
        "BDH_REWRITE_HTTP_REFERER": "https://example.org/bridge",
    }
    chain(**variables)["openrouter"].ask(MESSAGES, 30.0, Exchange())
    headers = peer.requests[0].headers
    assert headers["authorization"] == "Bearer or-key"
    assert headers["http-referer"] == "https://example.org/bridge"
    assert headers["x-title"] == "BDH Hermes Bridge"
    assert peer.requests[0].body["response_format"] == {"type": "json_object"}


def test_an_attribution_that_no_header_can_carry_is_left_out(server: MakeServer) -> None:
    peer = server()
    variables = {
        "BDH_REWRITE_OPENROUTER_URL": peer.url,
        "OPENROUTER_API_KEY": "or-key",
        "BDH_REWRITE_APP_TITLE": "Brücke\r\nX-Evil: 1",
    }
    chain(**variables)["openrouter"].ask(MESSAGES, 30.0, Exchange())
    assert {"x-title", "http-referer", "x-evil"}.isdisjoint(peer.requests[0].headers)


def test_the_local_model_gets_no_key(server: MakeServer) -> None:
    peer = server()
    variables = {
        "BDH_REWRITE_LOCAL_URL": peer.url,
        "BDH_REWRITE_API_KEY": "a",
        "OLLAMA_API_KEY": "b",
        "OPENROUTER_API_KEY": "c",
    }
    chain(**variables)["local"].ask(MESSAGES, 30.0, Exchange())
    assert "authorization" not in peer.requests[0].headers


class TestNous:
    def test_the_hosts_login_is_used_without_response_format(self, server: MakeServer) -> None:
        peer = server()
        asked: list[float] = []

        def login(seconds: float) -> dict[str, str]:
            asked.append(seconds)
            return {"api_key": "nous-jwt", "base_url": "https://elsewhere.example/v1"}

        provider = chain(login, BDH_REWRITE_NOUS_URL=peer.url)["nous"]
        assert provider.blocking, "a login may take its time, so it runs under the deadline"
        provider.ask(MESSAGES, 30.0, Exchange())
        assert peer.requests[0].headers["authorization"] == "Bearer nous-jwt"
        assert "response_format" not in peer.requests[0].body
        assert asked == [30.0]

    def test_the_logins_own_endpoint_is_used_unless_the_operator_set_one(self) -> None:
        def login(seconds: float) -> dict[str, str]:
            return {"api_key": "k", "base_url": "https://staging.example/v1"}

        default = chain(login)["nous"].credential(1.0)
        assert default is not None
        assert default.base_url == "https://staging.example/v1"
        own = chain(login, BDH_REWRITE_NOUS_URL="https://own.example/v1")["nous"].credential(1.0)
        assert own is not None
        assert own.base_url == ""

    @pytest.mark.parametrize(
        ("error", "outcome"),
        [
            (httpx.ConnectError("down"), HopOutcome.NETWORK),
            (httpx.ReadTimeout("slow"), HopOutcome.NETWORK),
            (ConnectionResetError(), HopOutcome.NETWORK),
            (RuntimeError("not logged in"), HopOutcome.NO_CREDENTIAL),
            (KeyError("token"), HopOutcome.NO_CREDENTIAL),
        ],
    )
    def test_a_login_that_fails(self, error: Exception, outcome: HopOutcome) -> None:
        def login(seconds: float) -> Any:
            raise error

        assert failure(chain(login)["nous"]).outcome is outcome

    @pytest.mark.parametrize("answer", [None, {}, {"api_key": ""}, {"api_key": "a\r\nb"}])
    def test_a_login_without_a_usable_key(self, answer: Any) -> None:
        assert failure(chain(lambda seconds: answer)["nous"]).outcome is HopOutcome.NO_CREDENTIAL

    def test_a_host_without_nous_needs_no_call(self) -> None:
        provider = chain()["nous"]
        assert not provider.blocking
        assert provider.credential(0.0) is None


class TestHostModel:
    def provider(self, host: Any) -> Provider:
        return chain(host=host, BDH_REWRITE_CHAIN="hermes")["hermes"]

    def test_it_answers_with_text_or_with_a_result(self) -> None:
        assert self.provider(lambda messages, seconds: "hi").ask(
            MESSAGES, 1.0, Exchange()
        ).text == ("hi")
        result = SimpleNamespace(
            text="hello", model="m-1", usage=SimpleNamespace(input_tokens=3, output_tokens=4)
        )
        seen: list[Any] = []

        def host(messages: Any, seconds: float) -> Any:
            seen.append((list(messages), seconds, threading.current_thread()))
            return result

        reply = self.provider(host).ask(MESSAGES, 2.5, Exchange())
        assert (reply.text, reply.model) == ("hello", "m-1")
        assert (reply.input_tokens, reply.output_tokens) == (3, 4)
        assert seen[0][:2] == (MESSAGES, 2.5)

    def test_there_is_none_outside_the_host(self) -> None:
        assert self.provider(None).credential(0.0) is None

    @pytest.mark.parametrize(
        ("error", "outcome", "status"),
        [
            (type("RateLimitError", (Exception,), {"status_code": 429})(), "rate_limited", 429),
            (type("ServerError", (Exception,), {"status_code": 503})(), "http_error", 503),
            (type("APITimeoutError", (Exception,), {})(), "timeout", None),
            (TimeoutError(), "timeout", None),
            (RuntimeError("no model configured"), "network", None),
        ],
    )
    def test_its_failures_are_told_apart(
        self, error: Exception, outcome: str, status: int | None
    ) -> None:
        def host(messages: Any, seconds: float) -> Any:
            raise error

        found = failure(self.provider(host))
        assert (found.outcome, found.status_code) == (outcome, status)


def test_keys_do_not_show_in_a_provider() -> None:
    made = chain(OPENROUTER_API_KEY="or-secret", BDH_REWRITE_API_KEY="own-secret")
    assert "secret" not in repr(made) + json.dumps(str([p.credential(0) for p in made.values()]))
