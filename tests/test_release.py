"""What is released: contents of wheel and sdist, and the script that prepares a release."""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "bdh_bridge": ROOT / "bdh_bridge",
    "bdh_otel": ROOT / "otel" / "bdh_otel",
    "bdh_tui": ROOT / "tui" / "bdh_tui",
    "hermes_borgee": ROOT / "borgee" / "hermes_borgee",
}
#: What looks like a credential, and paths of the machine that it was built on.
SECRETS = re.compile(
    rb"sk-[A-Za-z0-9]{16,}|ghp_[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16}|bgr_[A-Za-z0-9]{20,}"
    rb"|BEGIN [A-Z ]*PRIVATE KEY-----\n|" + re.escape(str(ROOT).encode()) + rb"/"
)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=100,
    )
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Iterator[zipfile.ZipFile]:
    (path,) = dist.glob("*.whl")
    assert path.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.fixture(scope="module")
def sdist(dist: Path) -> dict[str, bytes]:
    (path,) = dist.glob("*.tar.gz")
    found = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            if file is not None:
                found[member.name.partition("/")[2]] = file.read()
    return found


def tracked(folder: Path) -> set[str]:
    """Files of a package that git would take, by their paths in it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard", "."],
        cwd=folder,
        capture_output=True,
        check=True,
    )
    return {name for name in listed.stdout.decode().split("\0") if (folder / name).is_file()}


def test_the_wheel_holds_the_four_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    wanted = {f"{package}/{name}" for package, path in PACKAGES.items() for name in tracked(path)}
    wanted.add("bdh_bridge/prompt_blacklist.example.txt")
    packed = {name for name in names if ".dist-info/" not in name}
    assert packed == wanted
    for package in PACKAGES:
        assert f"{package}/py.typed" in packed
    assert any(name.endswith(".tcss") for name in packed)


def test_neither_tests_nor_secrets_are_released(
    wheel: zipfile.ZipFile, sdist: dict[str, bytes]
) -> None:
    contents = {name: wheel.read(name) for name in wheel.namelist()} | sdist
    for name, content in contents.items():
        parts = Path(name).parts
        assert not {"tests", "benchmarks", "__pycache__", ".git", ".venv"} & set(parts), name
        assert Path(name).suffix not in (".pyc", ".sqlite3", ".log", ".jsonl"), name
        assert Path(name).name not in (".env", "prompt_blacklist.txt"), name
        assert not SECRETS.search(content), name


def test_licence_and_metadata(wheel: zipfile.ZipFile, sdist: dict[str, bytes]) -> None:
    (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    info = email.message_from_bytes(wheel.read(metadata))
    folder = metadata.rpartition("/")[0]
    licence = (ROOT / "LICENSE").read_bytes()
    assert wheel.read(f"{folder}/licenses/LICENSE") == licence
    assert sdist["LICENSE"] == licence
    assert info["License-Expression"] == "MIT"
    assert info["Requires-Python"].replace(" ", "") in ("<3.14,>=3.11", ">=3.11,<3.14")
    points = wheel.read(f"{folder}/entry_points.txt").decode()
    assert "[hermes_agent.plugins]" in points
    assert "bdh-hermes-bridge = bdh_bridge" in points
    assert "borgee = hermes_borgee" in points
    assert "bdh-bridge = bdh_bridge.cli:main" in points


def test_the_sdist_builds_loads_as_a_clone_and_can_be_read(sdist: dict[str, bytes]) -> None:
    wanted = ("pyproject.toml", "plugin.yaml", "__init__.py", "README.md", "CHANGELOG.md")
    for name in (*wanted, "docs/configuration.md", "prompt_blacklist.example.txt"):
        assert sdist[name] == (ROOT / name).read_bytes()
    for package, path in PACKAGES.items():
        place = path.relative_to(ROOT).as_posix()
        assert {f"{place}/{name}" for name in tracked(path)} <= set(sdist), package


def test_the_example_of_a_blacklist_is_found_in_an_installed_package(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    wheel.extractall(tmp_path)
    shown = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
            "from bdh_bridge.operator.install.plan import example_blacklist\n"
            "import bdh_bridge; print(bdh_bridge.__file__); print(example_blacklist())",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown.startswith(str(tmp_path))
    assert "Review the conversation above" in shown


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with what the release script touches."""
    path = tmp_path / "checkout"
    for name in (
        "pyproject.toml", "plugin.yaml", "CHANGELOG.md", "LICENSE", "README.md", "__init__.py",
        "prompt_blacklist.example.txt", "scripts/release.py",
    ):  # fmt: skip
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, path / name)
    for package in PACKAGES.values():
        folder = path / package.relative_to(ROOT)
        folder.mkdir(parents=True)
        shutil.copy(package / "__init__.py", folder)
    git(path, "init", "-q")
    git(path, "add", "-A")
    git(path, "commit", "-q", "-m", "all")
    return path


def git(path: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Release Test", "-c", "user.email=release@example.com"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=path, capture_output=True, text=True, check=True
    )
    return done.stdout


def release(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    identity = {
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "Release Test"), ("EMAIL", "release@example.com"))
    }
    return subprocess.run(
        [sys.executable, "-P", str(path / "scripts" / "release.py"), *arguments],
        env={"PATH": "/usr/bin:/bin", **identity},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_a_release_sets_version_changelog_commit_tag_and_builds(checkout: Path) -> None:
    log = checkout / "CHANGELOG.md"
    log.write_text(
        "# Changelog\n\n## 7.1.0 (unreleased)\n\n### New\n- A thing.\n\n## 1.0.0 (x)\n- Old.\n"
    )
    git(checkout, "commit", "-qam", "notes")
    dry = release(checkout, "7.1.0", "--dry-run")
    assert dry.stdout.count("would change") == 4
    assert git(checkout, "status", "--porcelain") == ""

    done = release(checkout, "7.1.0")
    assert done.returncode == 0, done.stderr
    assert 'version = "7.1.0"' in (checkout / "pyproject.toml").read_text()
    assert "version: 7.1.0" in (checkout / "plugin.yaml").read_text()
    assert '__version__ = "7.1.0"' in (checkout / "bdh_bridge" / "__init__.py").read_text()
    assert re.search(r"^## 7\.1\.0 \(\d{4}-\d\d-\d\d\)$", log.read_text(), re.MULTILINE)
    told = git(checkout, "tag", "-n9", "--list", "v7.1.0")
    assert "- A thing." in told
    assert "Old" not in told
    assert {path.suffix for path in (checkout / "dist").iterdir()} >= {".whl", ".gz"}
    assert git(checkout, "status", "--porcelain", "--untracked-files=no") == ""
    again = release(checkout, "7.1.0")
    assert (again.returncode, "tagged already" in again.stderr) == (2, True)


@pytest.mark.parametrize(
    ("version", "said"), [("7", "is no version"), ("9.9.9", "has no heading: ## 9.9.9")]
)
def test_a_release_that_can_not_be_made(checkout: Path, version: str, said: str) -> None:
    done = release(checkout, version)
    assert (done.returncode, said in done.stderr) == (2, True)
    assert git(checkout, "status", "--porcelain") == ""


def test_no_release_of_what_is_not_committed(checkout: Path) -> None:
    (checkout / "README.md").write_text("changed")
    done = release(checkout, "1.0.0")
    assert "not committed" in done.stderr
    assert git(checkout, "tag") == ""
