"""The graph, the model providers and the telemetry backends: do they answer?"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bdh_bridge.graph.client import (
    GraphAnswerError,
    GraphClient,
    GraphError,
    GraphStatusError,
    GraphTimeoutError,
    GraphUnauthorizedError,
    GraphUnreachableError,
    GraphVaultError,
)
from bdh_bridge.operator.doctor.checks import Check, Subject, failed, ok, warning

if TYPE_CHECKING:
    from bdh_bridge.routing.providers import Provider
    from bdh_bridge.settings import Loaded, Settings
    from bdh_otel.endpoints import Endpoint

#: Seconds for an answer, and those from which it is too slow for a turn, which waits for two.
GRAPH_SECONDS, GRAPH_SLOW = 10.0, 1.0
CONNECT_SECONDS = 3.0
OTLP_SECONDS = 5.0
MODEL_SECONDS = 15.0


def graph(subject: Subject) -> Iterator[Check]:
    settings = subject.loaded.settings
    url = settings.api_url
    client = GraphClient(url, settings.api_token, settings.vault_id)
    try:
        client.prepare()
        started = time.monotonic()
        stats = client.stats(timeout=GRAPH_SECONDS)
        took = time.monotonic() - started
    except GraphError as error:
        yield failed("graph", *_trouble(error, settings))
        return
    finally:
        client.close()
    neurons = stats.get("neurons")
    if not isinstance(neurons, int):
        yield failed("graph", f"{url} answers, but not like a BDH graph", "check BDH_API_URL")
        return
    vault = f", vault {settings.vault_id}" if settings.vault_id else ""
    text = f"{url}{vault}: {neurons:,} notes, answered in {took * 1000:.0f} ms"
    if took > GRAPH_SLOW:
        yield warning("graph", f"{text}; a turn waits for 2 s at most", "see what loads the server")
    else:
        yield ok("graph", text)
    if url.startswith("http://") and settings.api_token.get_secret_value() and not _local(url):
        yield warning(
            "graph", f"the token goes to {url} unencrypted", "put the server behind https"
        )
    yield from _circuit(subject.loaded)


def _trouble(error: GraphError, settings: Settings) -> tuple[str, str]:
    """What is wrong, and its mend."""
    url = settings.api_url
    if isinstance(error, GraphUnauthorizedError):
        given = (
            "the token is refused" if settings.api_token.get_secret_value() else "no token given"
        )
        return f"{url}: {given} (HTTP {error.status})", "set BDH_API_TOKEN to the server's token"
    if isinstance(error, GraphVaultError):
        listed = ", ".join(error.available) or "none"
        return (
            f"{url} has no vault {settings.vault_id!r}; it has: {listed}",
            "set BDH_VAULT_ID to one of them, or remove it",
        )
    if isinstance(error, GraphUnreachableError):
        start = (
            "start the server, or: bdh-bridge graph start" if _local(url) else "start the server"
        )
        return f"{url} can't be reached ({error})", f"{start}; check BDH_API_URL"
    if isinstance(error, GraphTimeoutError):
        return f"{url} gives no answer ({error})", "it may be busy learning; try again"
    if isinstance(error, GraphStatusError | GraphAnswerError):
        return f"{url} answers, but not like a BDH graph ({error})", "check BDH_API_URL"
    return f"{url}: {error}", "check the server's log"


def _circuit(loaded: Loaded) -> Iterator[Check]:
    from bdh_bridge.state import SharedState
    from bdh_otel.database import StoreError

    if not loaded.paths.state.exists():
        return
    state = SharedState(loaded.paths.state, busy_timeout=2.0)
    try:
        broken = [breaker for breaker in state.breakers() if breaker.open]
        paused = state.pauses()
    except StoreError:
        return  # the check of the stores says it
    finally:
        state.close()
    for breaker in broken:
        yield warning(
            "circuit",
            f"{breaker.key} failed {breaker.failures} times and is left alone for a while",
            "it is tried again by itself",
        )
    for pause in paused:
        until = (
            f" until {time.strftime('%H:%M', time.localtime(pause.until))}" if pause.until else ""
        )
        what = "the bridge" if pause.scope == "all" else f"session {pause.scope}"
        yield warning("pause", f"{what} is paused{until}", "say /bdh resume in a chat")


def local_router(subject: Subject) -> Iterator[Check]:
    """Where ``BDH_ROUTER`` asks for it: can it be loaded?"""
    if subject.loaded.settings.router_mode not in ("local", "cascade"):
        return
    from bdh_bridge.routing.local.loading import LocalRouterLoader

    loader = LocalRouterLoader(subject.loaded.paths.personal_head)
    loader.load()
    router = loader.get()
    if router is None:
        yield failed(
            "local router",
            f"it can't be loaded ({loader.problem}); the mechanical gate decides",
            "install the `local-router` extra where Hermes runs, or unset BDH_ROUTER",
        )
    else:
        yield ok("local router", f"head {router.head.version}")


def providers(subject: Subject) -> Iterator[Check]:
    from bdh_bridge.host import nous_credentials_of
    from bdh_bridge.routing.providers import build_chain

    settings = subject.loaded.settings
    if not settings.asks_model and not settings.session_synth_enabled:
        yield ok("providers", "not used (BDH_QUERY_REWRITE_ENABLED is off)")
        return
    # The host's own model can be asked within Hermes only.
    chain, unknown = build_chain(settings, nous_credentials_of(subject.loaded.paths.hermes_home))
    for name in unknown:
        yield failed(
            "providers",
            f"BDH_REWRITE_CHAIN names {name!r}, which is no provider",
            "use ollama, nous, openrouter, local or hermes",
        )
    able = 0
    for provider in chain:
        if provider.name == "hermes":
            able += 1
            yield ok("provider hermes", "the model that Hermes itself uses")
            continue
        check = _provider(provider, subject.online)
        able += check.level == "ok"
        yield check
    if not able:
        yield failed(
            "providers",
            "no provider can be asked: every turn falls back to the mechanical gate",
            "give one a key, or run a local model",
        )


def _provider(provider: Provider, online: bool) -> Check:
    name = f"provider {provider.name}"
    what = f"{provider.model} at {_address(provider.url)}"
    if provider.blocking and not online:
        return ok(name, f"{what}: its login is looked at with --online")
    if not provider.blocking and provider.credential(0.0) is None:
        return warning(name, f"{what}: no key", f"set {_key_of(provider.name)}, or leave it out")
    if not online:
        if not _local(provider.url):
            return ok(name, f"{what}: key present; asked with --online")
        trouble = _connect(provider.url)
        if trouble:
            return warning(name, f"{what}: {trouble}", "start it, or leave it out of the chain")
        return ok(name, f"{what}: listening; asked with --online")
    return _asked(provider, name, what)


def _asked(provider: Provider, name: str, what: str) -> Check:
    from bdh_bridge.routing.chat import within
    from bdh_bridge.routing.hop import HopError, HopOutcome

    messages = [{"role": "user", "content": 'Reply with this JSON only: {"ok": true}'}]
    started = time.monotonic()
    try:
        within(MODEL_SECONDS, lambda exchange: provider.ask(messages, MODEL_SECONDS, exchange))
    except HopError as error:
        code = f" {error.status_code}" if error.status_code else ""
        text = f"{what}: {error.outcome.replace('_', ' ')}{code} ({error.detail})"
        if error.outcome is HopOutcome.NO_CREDENTIAL:
            return warning(name, text, f"set {_key_of(provider.name)}, or leave it out")
        return failed(name, text, "check its key, its model and its URL")
    return ok(name, f"{what}: answered in {time.monotonic() - started:.1f} s")


def _key_of(provider: str) -> str:
    return {
        "ollama": "OLLAMA_API_KEY or BDH_REWRITE_API_KEY",
        "openrouter": "OPENROUTER_API_KEY",
        "nous": "a login (hermes model)",
    }.get(provider, "its key")


def telemetry(subject: Subject) -> Iterator[Check]:
    from bdh_otel.endpoints import disabled, endpoints

    environment = subject.loaded.environment
    targets = endpoints(environment)
    if disabled(environment):
        yield ok("telemetry", "kept on this machine (OTEL_SDK_DISABLED)")
        return
    if not targets:
        configured = subject.loaded.settings.otel_endpoint
        configured = configured or subject.loaded.settings.otel_traces_endpoint
        if configured:
            yield failed(
                "telemetry",
                "the OTLP endpoint is no http:// or https:// URL",
                "set OTEL_EXPORTER_OTLP_ENDPOINT, for example http://localhost:4318",
            )
        else:
            yield ok("telemetry", "kept on this machine (no OTLP endpoint)")
    for endpoint in (*targets, *endpoints(environment, "metrics")):
        trouble, mend = _export(endpoint)
        what = f"{endpoint.signal} to {endpoint.shown}"
        if trouble:
            yield failed("telemetry", f"{what}: {trouble}; it waits here", mend)
        else:
            yield ok("telemetry", f"{what} ({endpoint.protocol}): answers")


def _export(endpoint: Endpoint) -> tuple[str, str]:
    """Send an export of nothing. What is wrong, and its mend."""
    import httpx

    start = "start the backend, or correct OTEL_EXPORTER_OTLP_ENDPOINT"
    if endpoint.protocol == "grpc":
        return _connect(endpoint.url), start
    try:
        certificates = _certificates(endpoint)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        return f"a certificate file can't be used ({reason})", _CERTIFICATES
    try:
        # An empty body is a valid request without spans.
        response = httpx.post(
            endpoint.url,
            content=b"",
            headers={**endpoint.headers, "Content-Type": "application/x-protobuf"},
            timeout=OTLP_SECONDS,
            verify=certificates,
        )
    except (httpx.HTTPError, OSError, ValueError) as error:
        return f"can't be reached ({type(error).__name__})", start
    if response.status_code in (401, 403):
        return f"HTTP {response.status_code}", "set OTEL_EXPORTER_OTLP_HEADERS"
    if not response.is_success:
        return f"HTTP {response.status_code}", "check its path; the base URL ends before /v1/traces"
    return "", ""


_CERTIFICATES = "correct OTEL_EXPORTER_OTLP_CERTIFICATE, …_CLIENT_CERTIFICATE, …_CLIENT_KEY"


def _certificates(endpoint: Endpoint) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=endpoint.certificate or None)
    if endpoint.client_certificate:
        context.load_cert_chain(endpoint.client_certificate, endpoint.client_key or None)
    return context


def _connect(url: str) -> str:
    """Why nothing listens at ``url``; empty if something does."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), CONNECT_SECONDS).close()
    except OSError as error:
        return f"nothing listens there ({error.strerror or type(error).__name__})"
    return ""


def _address(url: str) -> str:
    parts = urlsplit(url)
    return parts.hostname or url if parts.port is None else f"{parts.hostname}:{parts.port}"


def _local(url: str) -> bool:
    from bdh_bridge.routing.chat import is_loopback

    return is_loopback(url)
