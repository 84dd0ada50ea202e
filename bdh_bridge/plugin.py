"""Registration with Hermes: the only file that knows its plugin API."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bdh_bridge
from bdh_bridge.bridge import Bridge
from bdh_bridge.homes import Homes
from bdh_bridge.hooks import Hooks
from bdh_bridge.host import job_prompt, nous_credentials, plugin_enabled
from bdh_bridge.paths import find_hermes_home
from bdh_bridge.settings import Loaded, Settings, load, variable
from bdh_bridge.tools import QUERY_SCHEMA, STATS_SCHEMA, TOOLSET
from bdh_otel.logs import carry_ids

if TYPE_CHECKING:
    from bdh_bridge.routing.rewrite import Rewriter
    from bdh_bridge.state import SharedState
    from bdh_otel.tracer import Tracer

log = logging.getLogger(__name__)

TOOLS = ("bdh_query", "bdh_stats")

_lock = threading.Lock()
#: What registered in this process, as ``source:path`` of Hermes' manifest.
_registered: str | None = None
_homes: Homes | None = None


def register(ctx: Any) -> None:
    """Register hooks, tools and commands once per process. Never raises."""
    global _registered, _homes
    try:
        who = _identity(ctx)
        with _lock:
            if _registered is not None and _registered != who:
                log.warning(
                    "[bdh-bridge] loaded twice (%s and %s): the second one is ignored; uninstall "
                    "the package or remove the folder below plugins/",
                    _registered,
                    who,
                )
                return
            _registered = who
            previous, _homes = _homes, _register(ctx, who)
            if previous is not None:  # the host discovers its plugins again
                _homes.take_over(previous)
    except Exception:
        log.exception("[bdh-bridge] could not be loaded; Hermes goes on without it")


def _register(ctx: Any, who: str) -> Homes:
    carry_ids("bdh_bridge", "bdh_otel", "hermes_borgee")
    own_home = _hermes_home()
    loaded = load(own_home)
    _warn_of_ignored_clone(loaded, who)

    def make(home: Path) -> Bridge | None:
        return _open(ctx, loaded if home == own_home else _load_other(ctx, home))

    homes = Homes(make, _hermes_home)
    homes.of(own_home)
    hooks = Hooks(homes.bridge, _is_background_review)
    for name in Hooks.NAMES:
        ctx.register_hook(name, getattr(hooks, name))
    ctx.register_tool("bdh_query", TOOLSET, QUERY_SCHEMA, homes.bdh_query)
    ctx.register_tool("bdh_stats", TOOLSET, STATS_SCHEMA, homes.bdh_stats)
    _register_command(ctx)
    _register_slash_command(ctx, homes)
    log.info(
        "[bdh-bridge] %s registered: hooks=[%s], tools=[%s], api=%s, telemetry=%s%s",
        bdh_bridge.__version__,
        ", ".join(Hooks.NAMES),
        ", ".join(TOOLS),
        loaded.settings.api_url,
        telemetry_targets(loaded),
        "" if loaded.settings.enabled else " (switched off by BDH_ENABLED)",
    )
    return homes


def _open(ctx: Any, loaded: Loaded | None) -> Bridge | None:
    if loaded is None:
        return None
    for warning in loaded.warnings:
        log.warning("[bdh-bridge] %s", warning)
    return Bridge(
        loaded,
        job_prompt=job_prompt,
        resource=_resource(),
        make_rewriter=_rewriter_factory(ctx, loaded.settings),
    )


def _load_other(ctx: Any, home: Path) -> Loaded | None:
    """Settings of a profile that is served by another one's process, if it enables the bridge.

    Its own ``.env`` alone counts: what this process has in its environment may come from the
    ``.env`` of the profile that started it, tokens included.
    """
    manifest = getattr(ctx, "manifest", None)
    names = {bdh_bridge.DISTRIBUTION, getattr(manifest, "key", ""), getattr(manifest, "name", "")}
    if not plugin_enabled(home, names):
        log.info("[bdh-bridge] not enabled in %s: its turns pass untouched", home)
        return None
    ours = {variable(field) for field in Settings.model_fields}
    environ = {
        name: value
        for name, value in os.environ.items()
        if name not in ours and not name.startswith(("BDH_", "OTEL_"))
    }
    return load(home, environ={**environ, "HERMES_HOME": str(home)})


def telemetry_targets(loaded: Loaded) -> str:
    """Where spans go: always the local store, and the OTLP endpoints if there are any."""
    from bdh_otel.endpoints import disabled, endpoints

    targets = [] if disabled(loaded.environment) else endpoints(loaded.environment)
    return " + ".join([str(loaded.paths.spans), *(target.shown for target in targets)])


def _register_command(ctx: Any) -> None:
    if not hasattr(ctx, "register_cli_command"):
        return
    from bdh_bridge import cli

    ctx.register_cli_command(
        "bdh", "See and steer the BDH bridge", cli.add_commands, cli.run_and_exit
    )


def _register_slash_command(ctx: Any, homes: Homes) -> None:
    if not hasattr(ctx, "register_command"):
        return
    from bdh_bridge import slash

    command = slash.SlashCommand(lambda home: homes.of(home) if home else homes.bridge())
    ctx.register_command(slash.NAME, command.run, "See and steer the BDH bridge", slash.HINT)


def _rewriter_factory(ctx: Any, settings: Settings) -> Any:
    if not settings.asks_model:
        return None

    def make(state: SharedState, tracer: Tracer) -> Rewriter:
        from bdh_bridge.routing.rewrite import Rewriter

        return Rewriter(
            settings,
            state,
            tracer,
            nous_credentials=nous_credentials,
            host_llm=lambda messages, seconds: ctx.llm.complete(
                list(messages), timeout=seconds, temperature=0.0, purpose="bdh-bridge routing"
            ),
        )

    return make


def _identity(ctx: Any) -> str:
    manifest = getattr(ctx, "manifest", None)
    source = getattr(manifest, "source", "") or "unknown"
    return f"{source}:{getattr(manifest, 'path', '') or ''}"


def _warn_of_ignored_clone(loaded: Loaded, who: str) -> None:
    """Hermes prefers an installed package to a clone of the same name, without a word."""
    clone = loaded.paths.hermes_home / "plugins" / bdh_bridge.DISTRIBUTION
    if not who.startswith("entrypoint") or not (clone / "plugin.yaml").is_file():
        return
    code = Path(bdh_bridge.__file__).resolve()
    if not code.is_relative_to(clone.resolve()):
        log.warning(
            "[bdh-bridge] both the installed package (%s) and the clone %s are there: the package "
            "is used; remove one of them",
            code.parent,
            clone,
        )


def _hermes_home() -> Path:
    """The home of the running turn: a profile's, where one process serves several."""
    try:
        from hermes_constants import get_hermes_home

        return Path(get_hermes_home()).absolute()
    except Exception:
        return find_hermes_home().absolute()


def _resource() -> dict[str, str]:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return {"bdh.hermes.version": metadata.version("hermes-agent")}
    return {}


def _is_background_review() -> bool:
    try:
        from tools.skill_provenance import is_background_review

        return bool(is_background_review())
    except Exception:
        return False
