"""What the bridge asks of an installed Hermes outside of its hooks: logins and job records.

Hermes is imported here lazily and may be missing: the command line and the terminal UI also run
on machines without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Any


def nous_credentials(timeout: float) -> dict[str, Any] | None:
    """The Nous Portal login of the current home; None if there is none. Blocks, takes file locks;
    raises raw network errors."""
    from hermes_cli.auth import AuthError, resolve_nous_runtime_credentials

    try:
        return dict(resolve_nous_runtime_credentials(timeout_seconds=timeout))
    except AuthError:
        return None


def nous_credentials_of(home: Path) -> Callable[[float], dict[str, Any] | None]:
    """The same for a process outside of Hermes that works for ``home``."""

    def resolve(timeout: float) -> dict[str, Any] | None:
        try:
            with _working_for(home):
                return nous_credentials(timeout)
        except ImportError:
            return None

    return resolve


def job_prompt(job_id: str) -> str | None:
    """The prompt in a scheduled job's own record in the current home."""
    from cron.jobs import get_job

    job = get_job(job_id)
    prompt = job.get("prompt") if isinstance(job, dict) else None
    return prompt if isinstance(prompt, str) else None


def job_prompt_of(home: Path) -> Callable[[str], str | None]:
    """The same for a process outside of Hermes that works for ``home``."""

    def resolve(job_id: str) -> str | None:
        try:
            with _working_for(home):
                return job_prompt(job_id)
        except ImportError:
            return None

    return resolve


def plugin_enabled(home: Path, names: Set[str]) -> bool:
    """Whether the configuration of ``home`` enables a plugin under one of its ``names``; False
    where that can't be told."""
    try:
        with _working_for(home):
            from hermes_cli.config import load_config

            plugins = load_config().get("plugins")
        enabled, disabled = plugins.get("enabled") or (), plugins.get("disabled") or ()
        return not names.isdisjoint(enabled) and names.isdisjoint(disabled)
    except Exception:
        return False


@contextlib.contextmanager
def _working_for(home: Path) -> Iterator[None]:
    from hermes_constants import reset_hermes_home_override, set_hermes_home_override

    token = set_hermes_home_override(home)
    try:
        yield
    finally:
        reset_hermes_home_override(token)
