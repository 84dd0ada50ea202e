"""What doctor says of Hermes and of how it sees the plugin, each case made for real."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bdh_bridge.operator import hermes
from tests.operator.conftest import TOKEN, Home
from tests.support.embedded_graph import EmbeddedGraph

OURS = ("bdh-hermes-bridge", "1.0.0", "bdh-hermes-bridge = bdh_bridge\nborgee = hermes_borgee")
HERMES = ("hermes-agent", "0.19.0", "")


def clone(home: Home, folder: str = "bdh-hermes-bridge", *, ours: bool) -> Path:
    path = home.path / "plugins" / folder
    path.mkdir(parents=True)
    version = "1.0.0" if ours else "0.8.0"
    (path / "plugin.yaml").write_text(f"name: bdh-hermes-bridge\nversion: {version}\n")
    if ours:
        (path / "bdh_bridge").mkdir()
        (path / "bdh_bridge" / "__init__.py").touch()
    return path


def test_all_is_well(home: Home, graph: EmbeddedGraph) -> None:
    home.set(BDH_API_URL=graph.url, BDH_API_TOKEN=TOKEN)
    done = home.doctor()
    levels = {check["name"]: check["level"] for check in done.json["checks"]}
    assert set(levels.values()) == {"ok"}, done.out
    assert (done.status, done.json["level"]) == (0, "ok")
    assert {"hermes", "home", "plugin", "enabled", "dependencies", "graph", "clock"} <= set(levels)
    assert "8 notes" in done.checks("graph")[0][1]


def test_for_people_it_is_a_line_a_check_without_colours_in_a_pipe(home: Home) -> None:
    home.set(BDH_API_URL="http://127.0.0.1:1")
    done = home.run("doctor")
    assert done.status == 2
    assert "\x1b" not in done.out
    assert all(line.split()[0] in ("ok", "warning", "failed") for line in done.out.splitlines())
    assert "→ start the server" in done.out


@pytest.mark.parametrize(
    ("distributions", "level", "said"),
    [
        ([], "failed", "has no hermes-agent"),
        ([("hermes-agent", "0.17.3", "")], "failed", "too old"),
        ([("hermes-agent", "0.18.2", "")], "ok", "0.18.2"),
        ([("hermes-agent", "0.25.0", "")], "warning", "newer than what was tested"),
    ],
)
def test_versions_of_hermes(
    home: Home,
    python_with: Callable[..., str],
    distributions: list[tuple[str, str, str]],
    level: str,
    said: str,
) -> None:
    python = python_with(*distributions, OURS)
    done = home.doctor("--hermes-python", python)
    assert done.checks("hermes")[0][0] == level
    assert said in done.checks("hermes")[0][1]


def test_a_python_that_can_not_be_run(home: Home, tmp_path: Path) -> None:
    done = home.doctor("--hermes-python", str(tmp_path / "python"))
    assert done.status == 2
    assert done.checks("hermes")[0][0] == "failed"
    assert "can't be asked" in done.checks("hermes")[0][1]


def test_hermes_is_found_by_its_script_on_the_path(
    home: Home,
    python_with: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As from an environment of its own: `uv tool install bdh-hermes-bridge`."""
    monkeypatch.setitem(sys.modules, "hermes_cli", None)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(hermes.HermesNotFoundError, match="on the PATH"):
        hermes.find(home.path)
    assert home.doctor().checks("hermes")[0][2].startswith("install hermes-agent")
    python = python_with(HERMES, OURS)
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "hermes"
    script.write_text(f"#!{python}\n")
    script.chmod(0o755)
    found = hermes.find(home.path)
    assert (found.python, found.version) == (python, "0.19.0")
    assert found.installed("borgee")
    assert not found.is_this_python


def test_hermes_own_installer_puts_it_into_the_home(
    home: Home, python_with: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hermes_cli", None)
    monkeypatch.setenv("PATH", "")
    python = python_with(HERMES, OURS)
    (home.path / "hermes-agent").mkdir()
    (home.path / "hermes-agent" / "venv").symlink_to(Path(python).parents[1])
    assert hermes.find(home.path).version == "0.19.0"


def test_a_home_that_is_not_there_or_has_no_usable_config(home: Home, tmp_path: Path) -> None:
    assert "has no config.yaml" not in home.doctor().checks("home")[0][1]
    config = home.path / "config.yaml"
    config.write_text("plugins: [\n")
    level, text, _ = home.doctor().checks("home")[0]
    assert (level, "no valid YAML (line 2)" in text) == ("failed", True)
    config.unlink()
    assert home.doctor().checks("home")[0][0] == "warning"
    missing = home.run("--home", str(tmp_path / "none"), "doctor", "--json")
    assert "does not exist" in missing.checks("home")[0][1]


def test_not_visible_not_enabled_disabled(home: Home, python_with: Callable[..., str]) -> None:
    python = python_with(HERMES)
    done = home.doctor("--hermes-python", python)
    level, text, mend = done.checks("plugin")[0]
    assert (level, "does not see the plugin" in text) == ("failed", True)
    assert mend == f"run: uv pip install --python {python} bdh-hermes-bridge"

    home.enable("something-else")
    assert home.doctor().checks("enabled")[0][0] == "failed"
    assert home.doctor().checks("enabled")[0][2] == "run: bdh-bridge install"

    home.enable("bdh-hermes-bridge")
    with (home.path / "config.yaml").open("a") as config:
        config.write("  disabled: [bdh-hermes-bridge]\n")
    assert "which wins" in home.doctor().checks("enabled")[0][1]


def test_dependencies_that_are_missing(home: Home, python_with: Callable[..., str]) -> None:
    done = home.doctor("--hermes-python", python_with(HERMES, OURS))
    level, text, mend = done.checks("dependencies")[0]
    assert level == "failed"
    assert "httpx" in text
    assert "'pydantic-settings'" in mend


def test_package_and_clone_together(home: Home) -> None:
    path = clone(home, ours=True)
    level, text, _ = home.doctor().checks("plugin")[0]
    assert (level, str(path) in text) == ("warning", True)


def test_a_clone_alone(home: Home, python_with: Callable[..., str]) -> None:
    clone(home, "my-bridge", ours=True)
    done = home.doctor("--hermes-python", python_with(HERMES))
    assert done.checks("plugin")[0][:2] == ("ok", f"clone 1.0.0 in {home.path}/plugins/my-bridge")


def test_the_published_bridge_is_still_there(home: Home) -> None:
    clone(home, ours=False)
    level, text, mend = home.doctor().checks("rival")[0]
    assert (level, "published bridge 0.8.0" in text) == ("warning", True)
    assert "--migrate" in mend


def test_a_bridge_of_another_name_that_is_enabled_too(home: Home) -> None:
    path = home.path / "plugins" / "bdh-bridge"
    path.mkdir(parents=True)
    (path / "plugin.yaml").write_text("name: my-bridge\nprovides_tools: [bdh_query, other]\n")
    assert not home.doctor().checks("rival")  # it lies there and is not loaded
    home.enable("bdh-hermes-bridge", "my-bridge")
    level, text, mend = home.doctor().checks("rival")[0]
    assert (level, f"{path} is another bridge" in text) == ("failed", True)
    assert mend == "run: hermes plugins disable my-bridge"


@pytest.mark.parametrize("name", ["bdh-hermes-bridge", "borgee"])
def test_another_distribution_owns_the_name(
    home: Home, python_with: Callable[..., str], name: str
) -> None:
    python = python_with(HERMES, OURS, ("someones-plugin", "3.1", f"{name} = someone"))
    level, text, _ = home.doctor("--hermes-python", python).checks("rival")[0]
    assert level == "failed"
    assert f"someones-plugin 3.1 registers the plugin name {name}" in text
