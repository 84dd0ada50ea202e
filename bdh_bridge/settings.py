"""Every setting of the bridge, in one class, read by one loader.

Plugin, worker, command line and TUI call :func:`load`, so they can't see different values.
Precedence is Hermes' own: the home's ``.env`` file, then the environment, then the default
(Hermes lets ``.env`` override what is already exported). A ``.env`` of the current directory
is never read. A value that doesn't parse becomes a warning and the default; nothing raises.
"""

from __future__ import annotations

import contextvars
import os
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as attribute
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from bdh_bridge.paths import BridgePaths, find_hermes_home

_warnings: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar(
    "bdh_settings_warnings", default=None
)
_variables: contextvars.ContextVar[Mapping[str, str] | None] = contextvars.ContextVar(
    "bdh_settings_variables", default=None
)


def _check_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an http:// or https:// URL")
    if parts.username or parts.password:
        raise ValueError("must not hold credentials; set the token or key variable instead")
    if parts.query or parts.fragment:
        raise ValueError("must have no query and no fragment")
    _ = parts.port  # raises ValueError for a port that is none
    return value.rstrip("/")


def _check_header_value(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    # A header can't carry these; saying so here beats a failure at every request.
    if any(not 0x20 < ord(char) < 0x7F for char in text):
        raise ValueError("holds a blank, a control or a non-ASCII character")
    return value


Url = Annotated[str, AfterValidator(_check_url)]
Token = Annotated[SecretStr, AfterValidator(_check_header_value)]
Names = Annotated[frozenset[str], NoDecode]


def _env(name: str, default: Any, meaning: str, **constraints: Any) -> Any:
    return Field(default, validation_alias=name, description=meaning, **constraints)


class Settings(BaseSettings):
    """One Hermes home's settings. Frozen: a change needs a restart, except where noted."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", case_sensitive=True)

    # The bridge and the graph
    enabled: bool = _env(
        "BDH_ENABLED",
        True,
        "Master switch: `false` loads the plugin but lets every turn pass untouched",
    )
    api_url: Url = _env("BDH_API_URL", "http://localhost:8643", "Base URL of the BDH graph server")
    api_token: Token = _env("BDH_API_TOKEN", SecretStr(""), "Bearer token of the graph server")
    vault_id: str = _env(
        "BDH_VAULT_ID", "", "Vault to read and write; empty: the server's default", max_length=128
    )
    answer_marker: bool = _env(
        "BDH_ANSWER_MARKER",
        False,
        "Prefix `[BDH]` to an answer for which the model called `bdh_query`",
    )

    # Gates
    deny_platforms: Names = _env(
        "BDH_DENY_PLATFORMS",
        frozenset({"subagent", "curator"}),
        "Platforms whose turns neither read nor write (comma-separated)",
    )
    read_senders: Names = _env(
        "BDH_READ_SENDERS",
        frozenset(),
        "Senders whose turns may read, as `id` or `platform:id` (comma-separated); empty: all",
    )
    write_senders: Names = _env(
        "BDH_WRITE_SENDERS",
        frozenset(),
        "Senders whose turns may teach the graph, as `id` or `platform:id` (comma-separated); empty: all",
    )
    prompt_blacklist_file: str = _env(
        "BDH_PROMPT_BLACKLIST_FILE",
        "",
        "Blacklist file; empty: beside a cloned plugin if it is there, else `bdh-bridge/prompt_blacklist.txt` in the Hermes home. Its content is read live",
    )

    # Write path
    write_timeout: float = _env(
        "BDH_WRITE_TIMEOUT", 30.0, "Seconds that one delivery to the graph may take", gt=0, le=600
    )
    outbox_max_rows: int = _env(
        "BDH_OUTBOX_MAX_ROWS",
        10_000,
        "Writes that may wait; over it the newest is refused, visibly",
        ge=1,
        le=1_000_000,
    )
    outbox_max_bytes: int = _env(
        "BDH_OUTBOX_MAX_BYTES",
        268_435_456,
        "Bytes of text that may wait; over it the newest is refused, visibly",
        ge=1_048_576,
    )
    outbox_max_age: float = _env(
        "BDH_OUTBOX_MAX_AGE", 604_800.0, "Seconds for which an undelivered write is retried", gt=0
    )
    worker: Literal["process", "thread", "off"] = _env(
        "BDH_WORKER",
        "process",
        "Where deliveries run: a `process` of their own, a `thread` of the agent, or `off` (`bdh-bridge outbox deliver` by hand)",
    )

    # Query classification and rewrite
    router: Literal["mechanical", "local", "llm", "cascade"] | None = _env(
        "BDH_ROUTER",
        None,
        "Who decides whether to read and to store: the `mechanical` gate, the `local` router (extra `local-router`), a language model (`llm`), or `cascade`: the local router, and the model where it is in doubt; automatic: `llm` with `BDH_QUERY_REWRITE_ENABLED=true`, else `mechanical`",
    )
    router_wait_ms: int | None = _env(
        "BDH_ROUTER_WAIT_MS",
        None,
        "Milliseconds for which a turn may wait for the local router to be loaded; automatic: 1500 on the command line, 0 elsewhere",
        ge=0,
        le=30_000,
    )
    rewrite_enabled: bool = _env(
        "BDH_QUERY_REWRITE_ENABLED",
        False,
        "Ask a language model before retrieval whether to read, whether to store, and for a better query",
    )
    rewrite_chain: str = _env(
        "BDH_REWRITE_CHAIN",
        "ollama,nous,openrouter,local",
        "Providers in the order in which they are asked (comma-separated); `hermes` is the host's own model",
    )
    rewrite_model: str = _env("BDH_REWRITE_MODEL", "deepseek-v4-flash:cloud", "Ollama Cloud model")
    rewrite_timeout: float = _env(
        "BDH_REWRITE_TIMEOUT", 15.0, "Seconds for one provider", gt=0, le=120
    )
    rewrite_total_timeout: float = _env(
        "BDH_REWRITE_TOTAL_TIMEOUT", 20.0, "Seconds for the whole provider chain", gt=0, le=300
    )
    rewrite_api_url: Url = _env(
        "BDH_REWRITE_API_URL", "https://ollama.com/v1", "Ollama Cloud endpoint"
    )
    rewrite_api_key: Token = _env(
        "BDH_REWRITE_API_KEY", SecretStr(""), "Key for the rewrite endpoint"
    )
    ollama_api_key: Token = _env(
        "OLLAMA_API_KEY",
        SecretStr(""),
        "Ollama key, used if `BDH_REWRITE_API_KEY` is empty, and sent to Ollama's own cloud only",
    )
    rewrite_nous_model: str = _env(
        "BDH_REWRITE_NOUS_MODEL", "upstage/solar-pro4:free", "Nous Portal model"
    )
    rewrite_nous_url: Url = _env(
        "BDH_REWRITE_NOUS_URL", "https://inference-api.nousresearch.com/v1", "Nous Portal endpoint"
    )
    rewrite_openrouter_model: str = _env(
        "BDH_REWRITE_OPENROUTER_MODEL", "nvidia/nemotron-3-ultra-550b-a55b:free", "OpenRouter model"
    )
    rewrite_openrouter_url: Url = _env(
        "BDH_REWRITE_OPENROUTER_URL", "https://openrouter.ai/api/v1", "OpenRouter endpoint"
    )
    openrouter_api_key: Token = _env("OPENROUTER_API_KEY", SecretStr(""), "OpenRouter key")
    rewrite_local_model: str = _env(
        "BDH_REWRITE_LOCAL_MODEL", "qwen3.8-27b-oq4e-mtp", "Local oMLX model"
    )
    rewrite_local_url: Url = _env(
        "BDH_REWRITE_LOCAL_URL", "http://127.0.0.1:8083/v1", "Local oMLX endpoint"
    )
    rewrite_http_referer: str = _env(
        "BDH_REWRITE_HTTP_REFERER", "", "OpenRouter attribution: referer"
    )
    rewrite_app_title: str = _env(
        "BDH_REWRITE_APP_TITLE", "BDH Hermes Bridge", "OpenRouter attribution: title"
    )
    rewrite_prompt_file: str = _env(
        "BDH_REWRITE_PROMPT_FILE",
        "",
        "Markdown file that replaces the built-in prompt; read again on every call",
    )
    rewrite_max_variants: int = _env(
        "BDH_REWRITE_MAX_VARIANTS",
        10,
        "Most query variants taken from an answer (never over 3 for schema version 2)",
        ge=1,
        le=50,
    )
    context_messages_n: int = _env(
        "BDH_CONTEXT_MESSAGES_N", 6, "Messages of the history given to the router", ge=0, le=50
    )
    context_msg_max_chars: int = _env(
        "BDH_CONTEXT_MSG_MAX_CHARS", 200, "Most characters of each of them", ge=20, le=4_000
    )

    # Session synthesis
    session_synth_enabled: bool = _env(
        "BDH_SESSION_SYNTH_ENABLED", False, "Summarise a finished session into durable knowledge"
    )
    session_synth_min_turns: int = _env(
        "BDH_SESSION_SYNTH_MIN_TURNS", 3, "Written turns a session needs for that", ge=1, le=1_000
    )
    session_synth_max_chars: int = _env(
        "BDH_SESSION_SYNTH_MAX_CHARS",
        6_000,
        "Most characters of transcript given to the model",
        ge=500,
        le=100_000,
    )

    # Telemetry
    otel_content: Literal["off", "preview", "full"] = _env(
        "BDH_OTEL_CONTENT",
        "preview",
        "How much of messages, titles and rules the local span store keeps",
    )
    otel_export_content: bool = _env(
        "BDH_OTEL_EXPORT_CONTENT",
        False,
        "Let content leave the machine with exported spans; needs `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true` as well",
    )
    otel_store_max_rows: int = _env(
        "BDH_OTEL_STORE_MAX_ROWS", 1_000_000, "Most spans kept on this machine", ge=1_000
    )
    otel_store_max_bytes: int = _env(
        "BDH_OTEL_STORE_MAX_BYTES", 1_073_741_824, "Most bytes of the span store", ge=1_048_576
    )
    otel_endpoint: str = _env(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "",
        "Where the worker sends traces (OTLP); empty: nowhere. The other `OTEL_EXPORTER_OTLP_*` variables apply too",
    )
    otel_traces_endpoint: str = _env(
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "", "The same for traces alone: the full URL"
    )
    otel_endpoints: str = _env(
        "BDH_OTEL_ENDPOINTS",
        "",
        "Further OTLP endpoints, separated by blanks: `http://…`, `https://…`, `grpc://…`, `grpcs://…`, each with a name before it (`name=http://…`) if it needs settings of its own, such as `BDH_OTEL_ENDPOINT_NAME_HEADERS`",
    )
    otel_sdk_disabled: bool = _env(
        "OTEL_SDK_DISABLED", False, "Stops the export; the local store goes on"
    )

    # Terminal UI
    tui_trace_url: str = _env(
        "BDH_TUI_TRACE_URL",
        "http://localhost:16686/trace/{trace_id}",
        "Page of a trace in Jaeger or Grafana, for the terminal UI's `o` key; `{trace_id}` is filled in",
    )

    @property
    def router_mode(self) -> Literal["mechanical", "local", "llm", "cascade"]:
        """Who routes: what ``BDH_ROUTER`` says, or else what follows from the rewrite's switch."""
        if self.router is not None:
            return self.router
        return "llm" if self.rewrite_enabled else "mechanical"

    @property
    def asks_model(self) -> bool:
        """May a turn ask a language model?"""
        return self.router_mode in ("llm", "cascade")

    @field_validator("*", mode="wrap")
    @classmethod
    def _fall_back(
        cls, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> Any:
        collected = _warnings.get()
        if collected is None:  # built in code, not loaded: a wrong value is a programming error
            return handler(value)
        try:
            return handler(value)
        except (ValidationError, ValueError) as error:
            name = variable(info.field_name or "")
            collected.append(_explain(name, value, error))
            return cls.model_fields[info.field_name or ""].get_default()

    @field_validator("deny_platforms", "read_senders", "write_senders", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            return frozenset(part.strip() for part in value.split(",") if part.strip())
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        variables = _variables.get()
        if variables is None:
            return (init_settings,)
        return (_Variables(settings_cls, variables),)


class _Variables(EnvSettingsSource):
    """The loader's own merged variables instead of the process environment."""

    def __init__(self, settings_cls: type[BaseSettings], variables: Mapping[str, str]) -> None:
        self._merged = variables
        super().__init__(settings_cls, case_sensitive=True, env_ignore_empty=True)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return dict(self._merged)


Origin = Literal["default", "environment", ".env"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings with where they came from. ``warnings`` are sentences for the log."""

    settings: Settings
    paths: BridgePaths
    warnings: tuple[str, ...]
    origins: Mapping[str, Origin]
    environment: Mapping[str, str] = attribute(repr=False)
    """The merged variables, for what is not ours (``OTEL_*``). Holds secrets: never log it."""


def load(
    home: Path | None = None,
    *,
    profile: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """Read the settings of one Hermes home.

    ``home`` wins over ``HERMES_HOME``; ``profile`` is one of its profiles. ``environ`` stands in
    for the process environment. Never raises for a bad value; raises ValueError for a bad profile
    name.
    """
    paths = BridgePaths(find_hermes_home(profile, home).absolute())
    exported = dict(os.environ if environ is None else environ)
    warnings: list[str] = []
    from_file = _read_env_file(paths.env_file, warnings)
    merged = {**exported, **from_file}
    given = {name: value for name, value in merged.items() if value.strip()}
    warnings_token, variables_token = _warnings.set(warnings), _variables.set(given)
    try:
        settings = Settings()
    finally:
        _warnings.reset(warnings_token)
        _variables.reset(variables_token)
    origins: dict[str, Origin] = {}
    for field in Settings.model_fields:
        name = variable(field)
        origins[name] = (
            ".env" if from_file.get(name) else "environment" if exported.get(name) else "default"
        )
    return Loaded(settings, paths, tuple(warnings), origins, merged)


def variable(field: str) -> str:
    """The environment variable of a field of :class:`Settings`."""
    return str(Settings.model_fields[field].validation_alias)


def _read_env_file(path: Path, warnings: list[str]) -> dict[str, str]:
    from dotenv import dotenv_values

    try:
        if not path.is_file():
            return {}
        try:
            values = dotenv_values(path, encoding="utf-8-sig")
        except UnicodeDecodeError:
            values = dotenv_values(path, encoding="latin-1")  # as Hermes does
    except (OSError, ValueError) as error:
        warnings.append(
            f"{path} can't be read ({type(error).__name__}); only the environment is used"
        )
        return {}
    return {name: value for name, value in values.items() if value is not None}


def _explain(name: str, value: Any, error: Exception) -> str:
    field = next(f for f in Settings.model_fields if variable(f) == name)
    info = Settings.model_fields[field]
    default = info.get_default()
    if isinstance(error, ValidationError):
        problem = "; ".join(
            detail["msg"].removeprefix("Value error, ")
            for detail in error.errors(include_input=False)
        )
    else:
        problem = str(error)
    # The value of a secret, or of something that was meant to be one, is never repeated.
    secret = isinstance(default, SecretStr) or "URL" in name or "ENDPOINT" in name
    shown = "the value" if secret else repr(str(value))[:80]
    if isinstance(default, SecretStr):
        default_text = "none"
    elif default is None:
        default_text = "automatic"
    elif isinstance(default, frozenset):
        default_text = ",".join(sorted(default)) or "empty"
    else:
        default_text = repr(default)
    return f"{name}: {shown} is not usable ({problem}); using the default, {default_text}"
