"""Taking over from the published bridge and from the published Borgee plugin.

Both use the names that this project uses, so they can't stay beside it. Nothing of theirs is
deleted: it moves to ``bdh-bridge/migrated/``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bdh_bridge.gates.blacklist import resolve_blacklist
from bdh_bridge.gates.blacklist_edit import append_rule
from bdh_bridge.gates.blacklist_rules import parse
from bdh_bridge.operator.hermes import Clone, Installation
from bdh_bridge.operator.install.plan import (
    NAME,
    InstallError,
    Plan,
    example_blacklist,
)
from bdh_bridge.operator.install.record import Record, private_directory, read_file
from bdh_bridge.operator.install.steps import FileStep, MoveStep
from bdh_bridge.settings import Loaded

_TAKEN_OVER = "# Taken over from the published bridge"


def rivals(found: Installation) -> list[str]:
    """Distributions of others that register one of our plugin names."""
    return sorted({point.distribution for point in found.entry_points if not point.ours})


def migrate(loaded: Loaded, found: Installation, plan: Plan) -> dict[str, str]:
    """Add to ``plan`` what the take-over needs. Returns settings for the block of ``.env``.

    Raises: InstallError.
    """
    if others := rivals(found):
        packages = " ".join(others)
        raise InstallError(
            f"{' and '.join(others)} registers the same plugin name: stop the gateway, then run "
            f"{found.python} -m pip uninstall {packages} and this command again"
        )
    variables: dict[str, str] = {}
    for clone in found.clones_of(NAME):
        if not clone.ours:
            variables |= _bridge(loaded, clone, plan)
    _borgee(loaded, found, plan)
    return variables


def _bridge(loaded: Loaded, clone: Clone, plan: Plan) -> dict[str, str]:
    paths = loaded.paths
    target = _free(paths.directory / "migrated" / f"{clone.path.name}-{clone.version or 'old'}")
    configured = resolve_blacklist(loaded.settings, paths)
    inside = clone.path in configured.parents
    old = configured if inside and configured.exists() else clone.path / "prompt_blacklist.txt"
    step = _blacklist_step(paths.blacklist, old)
    if step is not None:
        plan.steps.append(step)
    plan.steps.append(
        MoveStep(
            clone.path,
            target,
            f"{clone.path}: the published bridge {clone.version} moves to {target}",
        )
    )
    if loaded.settings.prompt_blacklist_file and inside:
        return {"BDH_PROMPT_BLACKLIST_FILE": str(paths.blacklist.relative_to(paths.hermes_home))}
    return {}


def _blacklist_step(path: Path, old: Path) -> FileStep | None:
    """The rules of the published bridge's file that ours does not hold yet."""
    try:
        theirs = old.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InstallError(
            f"{old} can't be read ({type(error).__name__}); mend it first"
        ) from error
    before = read_file(path)
    text = example_blacklist() if before is None else before.decode("utf-8")
    known = {rule.source for rule in parse(text)}
    missing = [rule for rule in parse(theirs) if rule.source not in known]
    if not missing:
        return None
    if not text.endswith("\n"):
        text += "\n"
    text += f"\n{_TAKEN_OVER}\n\n"
    for rule in missing:
        text = append_rule(text, rule.source, rule.comment)
    what = f"{path}: {len(missing)} rules are taken over from {old}"
    if unusable := sum(bool(rule.error) for rule in missing):
        what += f"; {unusable} can't be used here, doctor says why"
    return FileStep(path, before, text.encode(), 0o600, what)


@dataclass(frozen=True, slots=True)
class InboxStep:
    """Replace the published Borgee plugin's inbox by one of ours with the same receipts."""

    inbox: Path
    target: Path
    what: str

    def apply(self, record: Record) -> None:
        """Raises: OSError, sqlite3.Error, StoreError. A failure leaves the old inbox in place."""
        from hermes_borgee.legacy import settle, take_over

        private_directory(self.target.parent)
        settle(self.inbox)
        fresh = self.inbox.with_name(f"{self.inbox.name}.new")
        fresh.unlink(missing_ok=True)
        take_over(self.inbox, fresh)
        settle(fresh)
        record.note_move(self.inbox, self.target)
        self.inbox.rename(self.target)
        record.note_file(self.inbox, None, fresh.read_bytes())
        fresh.rename(self.inbox)


def _borgee(loaded: Loaded, found: Installation, plan: Plan) -> None:
    from hermes_borgee.config import inbox_path
    from hermes_borgee.legacy import is_legacy

    home = loaded.paths.hermes_home
    inbox = inbox_path(home)
    if not is_legacy(inbox):
        return
    if _gateway_runs(home):
        raise InstallError("the gateway is running: stop it first (hermes gateway stop)")
    target = _free(loaded.paths.directory / "migrated" / "borgee-inbox.sqlite3")
    plan.steps.append(
        InboxStep(
            inbox, target, f"{inbox}: receipts are taken over; the old file moves to {target}"
        )
    )
    if "borgee" not in found.enabled:
        plan.notes.append("borgee is not enabled; set it up with: bdh-bridge borgee setup")
    plan.notes.append(
        "what was being processed is quarantined: bdh-bridge borgee inbox list --status quarantined"
    )


def _gateway_runs(home: Path) -> bool:
    try:
        from gateway.status import is_gateway_runtime_lock_active
    except ImportError:
        return False
    return bool(is_gateway_runtime_lock_active(home / "gateway.lock"))


def _free(path: Path) -> Path:
    """``path``, or one beside it that isn't taken."""
    candidate, number = path, 1
    while candidate.exists() or candidate.is_symlink():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
