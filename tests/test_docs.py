"""What is written down is what the code does."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

import bdh_bridge
from bdh_bridge import docs
from bdh_bridge.cli import make_parser
from bdh_bridge.cli.completion import levels
from bdh_bridge.hooks import Hooks
from bdh_bridge.plugin import TOOLS
from bdh_bridge.settings import Settings, variable

ROOT = Path(__file__).resolve().parents[1]


def test_the_configuration_tables_are_made_from_the_settings() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert docs.updated(text) == text, "run: python -m bdh_bridge.docs docs/configuration.md"
    for field in Settings.model_fields:
        assert f"`{variable(field)}`" in text
        assert Settings.model_fields[field].description, f"{field} has no meaning"


def test_the_manifest_is_true() -> None:
    manifest = yaml.safe_load((ROOT / "plugin.yaml").read_text(encoding="utf-8"))
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert manifest["name"] == bdh_bridge.DISTRIBUTION
    assert manifest["kind"] == "standalone"
    assert manifest["version"] == bdh_bridge.__version__
    assert f'version = "{bdh_bridge.__version__}"' in pyproject
    assert tuple(manifest["provides_hooks"]) == Hooks.NAMES
    assert tuple(manifest["provides_tools"]) == TOOLS


def test_the_changelog_names_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(bdh_bridge.__version__)}\b", changelog, re.MULTILINE)


def test_links_between_documents_lead_somewhere() -> None:
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = document.read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", text):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_documents_name_only_settings_that_exist() -> None:
    known = {variable(field) for field in Settings.model_fields}
    known |= {"BDH_TEST_HERMES_0182", "BDH_OTEL_STRICT", "BDH_VENV", "BDH_PYTHON"}  # of the tests
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for name in re.findall(r"\bBDH_[A-Z_]+\b", document.read_text(encoding="utf-8")):
            if name.startswith("BDH_OTEL_ENDPOINT_"):
                continue  # of an endpoint that the operator names
            assert name in known, f"{document.name} names {name}"


def test_documents_name_only_commands_that_exist() -> None:
    tree = {level.path: level for level in levels(make_parser())}
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = document.read_text(encoding="utf-8")
        for first, second in re.findall(
            r"(?:bdh-bridge|hermes bdh) ([a-z]+)(?: ([a-z]+)\b)?", text
        ):
            assert first in tree[()].commands, f"{document.name} names bdh-bridge {first}"
            below = tree[(first,)].commands
            if below and second:
                assert second in below, f"{document.name} names bdh-bridge {first} {second}"


def test_the_embedded_extra_is_the_same_in_code_and_package() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extra = pyproject["project"]["optional-dependencies"]["embedded"]
    assert tuple(extra) == bdh_bridge.EMBEDDED_REQUIREMENTS
