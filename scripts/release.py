"""Prepare a release: ``./scripts/release VERSION [--dry-run]``.

Writes the version where it stands, dates its heading in the changelog, commits, tags, and builds
the distributions into ``dist/``. Nothing leaves the machine: it says what to push and upload.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Files that hold the version, and how.
PLACES = {
    "pyproject.toml": r'(?m)^version = "(.+)"$',
    "bdh_bridge/__init__.py": r'(?m)^__version__ = "(.+)"$',
    "plugin.yaml": r"(?m)^version: (.+)$",
}
_VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/release", description=__doc__)
    parser.add_argument("version", help="such as 1.2.0 or 1.2.0rc1")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    arguments = parser.parse_args(argv)
    version: str = arguments.version
    try:
        check(version)
        changed = edits(version, datetime.date.today())
        for name in changed:
            print(f"{'would change' if arguments.dry_run else 'changed'}: {name}")
        if arguments.dry_run:
            return 0
        for name, text in changed.items():
            (ROOT / name).write_text(text, encoding="utf-8")
        if changed:
            git("commit", "-q", "-m", f"Release {version}", "--", *changed)
        git("tag", "-a", f"v{version}", "-m", notes(version))
        build()
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"tagged v{version}, built dist/. Next:\n  ./scripts/test-release dist")
    print(f"  git push origin HEAD v{version}\n  twine upload dist/*-{version}*")
    return 0


class ReleaseError(Exception):
    """The release can't be made. ``str()`` is a sentence."""


def check(version: str) -> None:
    """Raises: ReleaseError."""
    if not _VERSION.fullmatch(version):
        raise ReleaseError(f"{version!r} is no version such as 1.2.0 or 1.2.0rc1")
    if git("status", "--porcelain", "--untracked-files=no"):
        raise ReleaseError("there are changes that are not committed")
    if git("tag", "--list", f"v{version}"):
        raise ReleaseError(f"v{version} is tagged already")


def edits(version: str, today: datetime.date) -> dict[str, str]:
    """The new text of every file that changes. Raises: ReleaseError."""
    changed = {}
    for name, pattern in PLACES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        found = re.search(pattern, text)
        if found is None:
            raise ReleaseError(f"{name} holds no version")
        changed[name] = text[: found.start(1)] + version + text[found.end(1) :]
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = rf"(?m)^## {re.escape(version)} \((.+)\)$"
    found = re.search(heading, text)
    if found is None:
        raise ReleaseError(f"CHANGELOG.md has no heading: ## {version} (unreleased)")
    if found.group(1) == "unreleased":
        text = text[: found.start(1)] + today.isoformat() + text[found.end(1) :]
    changed["CHANGELOG.md"] = text
    return {
        name: text
        for name, text in changed.items()
        if text != (ROOT / name).read_text(encoding="utf-8")
    }


def notes(version: str) -> str:
    """The changelog's section on ``version``, for the tag."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(rf"(?ms)^## {re.escape(version)}[^\n]*\n(.*?)(?=^## |\Z)", text)
    # git takes lines that begin with # for comments.
    body = section.group(1).strip() if section else ""
    return f"{version}\n\n" + re.sub(r"(?m)^#+ ", "", body)


def build() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(ROOT / "dist")],
        cwd=ROOT,
        check=False,
    )
    if done.returncode:
        raise ReleaseError("the distributions could not be built; the tag stays, see above")


def git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ReleaseError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
