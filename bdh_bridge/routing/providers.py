"""The providers of the chain, each one entry of :data:`PROVIDERS`.

Nothing here imports the host: its credentials and its model come in as callables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bdh_bridge.routing.chat import (
    ChatReply,
    ChatRequest,
    Exchange,
    Message,
    is_loopback,
    post_chat,
    retry_after,
)
from bdh_bridge.routing.hop import HopError, HopOutcome
from bdh_bridge.routing.text import clean, clip

if TYPE_CHECKING:
    from bdh_bridge.settings import Settings

#: ``(seconds) -> {"api_key": …, "base_url": …}`` or None: the host's Nous Portal login. May block
#: and may raise anything; a network error counts as one, all else as "not logged in".
NousCredentials = Callable[[float], Mapping[str, Any] | None]

#: ``(messages, seconds) -> str``, or an object with ``text``, ``model`` and ``usage``: the host's
#: own model. May block and may raise anything.
HostModel = Callable[[Sequence[Message], float], Any]


@dataclass(frozen=True, slots=True)
class Credential:
    """A key, empty where none is needed, and the endpoint that it belongs to, if it says so."""

    api_key: str = field(default="", repr=False)
    base_url: str = ""


CredentialResolver = Callable[[float], Credential | None]


@dataclass(frozen=True, slots=True)
class Provider:
    """An OpenAI-compatible endpoint, or the host's model where ``host_model`` is set (``model``
    and ``url`` are then empty: the host decides).

    ``credential`` gives None where the provider can't be asked for want of a key; a resolver
    that is ``blocking`` runs under the hop's deadline, others before it.
    """

    name: str
    model: str
    url: str
    credential: CredentialResolver
    blocking: bool = False
    json_mode: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)
    host_model: HostModel | None = None

    def ask(self, messages: Sequence[Message], seconds: float, exchange: Exchange) -> ChatReply:
        """Blocks; to be run by :func:`bdh_bridge.routing.chat.within`. Raises: HopError."""
        credential = self.credential(seconds)
        if credential is None:
            raise HopError(HopOutcome.NO_CREDENTIAL, "no key or login")
        if self.host_model is not None:
            return _ask_host(self.host_model, messages, seconds)
        request = ChatRequest(
            base_url=(credential.base_url or self.url).rstrip("/"),
            model=self.model,
            messages=messages,
            api_key=credential.api_key,
            json_mode=self.json_mode,
            headers=self.headers,
        )
        return post_chat(request, seconds, exchange)


def _ollama(settings: Settings, nous: NousCredentials | None, host: HostModel | None) -> Provider:
    url = settings.rewrite_api_url
    key = settings.rewrite_api_key.get_secret_value()
    if not key and _is_ollama_cloud(url):
        key = settings.ollama_api_key.get_secret_value()
    known = Credential(key) if key or is_loopback(url) else None
    return Provider("ollama", settings.rewrite_model, url, lambda _: known)


def _nous(settings: Settings, nous: NousCredentials | None, host: HostModel | None) -> Provider:
    url = settings.rewrite_nous_url
    own_url = url != type(settings).model_fields["rewrite_nous_url"].get_default()

    def resolve(seconds: float) -> Credential | None:
        if nous is None:
            return None
        try:
            found = nous(seconds)
        except Exception as error:
            if _is_network_error(error):
                raise HopError(
                    HopOutcome.NETWORK, f"while fetching the credential: {type(error).__name__}"
                ) from None
            raise HopError(HopOutcome.NO_CREDENTIAL, type(error).__name__) from None
        key = str((found or {}).get("api_key") or "")
        if found is None or not key or not key.isascii() or not key.isprintable():
            return None
        base_url = str(found.get("base_url") or "")
        # An endpoint that the operator set wins; else the one that the login is for.
        use_theirs = not own_url and base_url.startswith("https://")
        return Credential(key, base_url if use_theirs else "")

    return Provider(
        "nous",
        settings.rewrite_nous_model,
        url,
        resolve,
        blocking=nous is not None,
        json_mode=False,  # its API does not declare response_format
    )


def _openrouter(
    settings: Settings, nous: NousCredentials | None, host: HostModel | None
) -> Provider:
    key = settings.openrouter_api_key.get_secret_value()
    known = Credential(key) if key else None
    attribution = {
        "HTTP-Referer": settings.rewrite_http_referer,
        "X-Title": settings.rewrite_app_title,
    }
    return Provider(
        "openrouter",
        settings.rewrite_openrouter_model,
        settings.rewrite_openrouter_url,
        lambda _: known,
        headers={
            name: value
            for name, value in attribution.items()
            if value and value.isascii() and value.isprintable()
        },
    )


def _local(settings: Settings, nous: NousCredentials | None, host: HostModel | None) -> Provider:
    return Provider(
        "local", settings.rewrite_local_model, settings.rewrite_local_url, lambda _: Credential()
    )


def _hermes(settings: Settings, nous: NousCredentials | None, host: HostModel | None) -> Provider:
    known = Credential() if host is not None else None
    return Provider("hermes", "", "", lambda _: known, host_model=host)


PROVIDERS: Mapping[
    str, Callable[[Settings, NousCredentials | None, HostModel | None], Provider]
] = {
    "ollama": _ollama,
    "nous": _nous,
    "openrouter": _openrouter,
    "local": _local,
    "hermes": _hermes,
}
"""Every provider by its name in ``BDH_REWRITE_CHAIN``."""


def build_chain(
    settings: Settings, nous: NousCredentials | None = None, host: HostModel | None = None
) -> tuple[list[Provider], list[str]]:
    """The providers that ``BDH_REWRITE_CHAIN`` names, in its order, and the names unknown here."""
    wanted = [name.strip().casefold() for name in settings.rewrite_chain.split(",")]
    names = list(dict.fromkeys(name for name in wanted if name))
    chain = [PROVIDERS[name](settings, nous, host) for name in names if name in PROVIDERS]
    return chain, [name for name in names if name not in PROVIDERS]


def _is_ollama_cloud(url: str) -> bool:
    parts = urlsplit(url)
    host = parts.hostname or ""
    return parts.scheme == "https" and (host == "ollama.com" or host.endswith(".ollama.com"))


def _is_network_error(error: Exception) -> bool:
    import httpx

    return isinstance(error, httpx.TransportError | ConnectionError | TimeoutError)


def _ask_host(host: HostModel, messages: Sequence[Message], seconds: float) -> ChatReply:
    try:
        answer = host(messages, seconds)
    except Exception as error:
        raise _host_failure(error) from None
    if isinstance(answer, str):
        return ChatReply(answer)
    usage = getattr(answer, "usage", None)
    return ChatReply(
        str(getattr(answer, "text", "") or ""),
        model=str(getattr(answer, "model", "") or "") or None,
        input_tokens=getattr(usage, "input_tokens", None),
        output_tokens=getattr(usage, "output_tokens", None),
    )


def _host_failure(error: Exception) -> HopError:
    """The host wraps many SDKs; what they agree on is a status code and a telling class name."""
    name = type(error).__name__
    status = getattr(error, "status_code", None)
    status = status if isinstance(status, int) else None
    if status == 429:
        outcome = HopOutcome.RATE_LIMITED
    elif status is not None:
        outcome = HopOutcome.HTTP_ERROR
    elif "Timeout" in name:
        outcome = HopOutcome.TIMEOUT
    else:
        outcome = HopOutcome.NETWORK
    headers = getattr(getattr(error, "response", None), "headers", None)
    pause = headers.get("retry-after") if isinstance(headers, Mapping) else None
    return HopError(
        outcome,
        clip(clean(f"{name}: {error}"), 300),
        status_code=status,
        retry_after=retry_after(pause, time.time()),
    )
