"""How the scripts find a Python and keep their environments fresh."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: What the scripts call besides an interpreter and uv.
TOOLS = ("bash", "dirname", "cksum", "cat", "mktemp", "tail", "rm", "mkdir", "ln")
HELPERS = f'. "{ROOT}/scripts/_environment.sh"; '


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    """A folder that is the whole PATH: the shell's tools, no Python and no uv."""
    directory = tmp_path / "tools of this test"
    directory.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found, tool
        (directory / tool).symlink_to(found)
    return directory


def program(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def python_like(path: Path, version: str, *, missing: str = "") -> None:
    """An interpreter that runs, but says it is ``version`` and hides the modules ``missing``."""
    program(
        path,
        f"""#!{shutil.which("bash")}
[ "$1" = -c ] || exit 9
code=$2; shift 2
exec "{sys.executable}" -c '
import sys, importlib.util
sys.version_info = ({version.replace(".", ",")}, 0, "final", 0)
sys._base_executable = "{path}"
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name in "{missing}".split() else find(name, *a)
code = sys.argv.pop(1)
exec(code)
' "$code" "$@"
""",
    )


def shell(code: str, bin_dir: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-uc", HELPERS + code],
        env={"PATH": str(bin_dir), "HOME": str(bin_dir), **variables},
        cwd=bin_dir,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_a_fitting_python_is_found_under_any_of_its_names(bin_dir: Path, version: str) -> None:
    for name in (f"python{version}", "python3"):
        interpreter = bin_dir / name
        python_like(interpreter, version)
        assert shell("require_python", bin_dir).stdout.strip() == str(interpreter)
        interpreter.unlink()


@pytest.mark.parametrize("version", ["2.7", "3.10", "3.14"])
def test_other_versions_are_refused_with_the_ways_to_get_one(bin_dir: Path, version: str) -> None:
    python_like(bin_dir / "python3", version)
    result = shell("require_python", bin_dir)
    assert result.returncode == 2
    assert "no Python 3.11, 3.12 or 3.13 was found" in result.stderr
    for way in ("brew install", "apt install", "dnf install", "uv python install"):
        assert way in result.stderr


def test_a_shim_that_fails_when_run_is_passed_over(bin_dir: Path) -> None:
    program(
        bin_dir / "python3.13", f"#!{shutil.which('bash')}\necho 'no such version' >&2\nexit 127\n"
    )
    python_like(bin_dir / "python3.11", "3.11")
    assert shell("require_python", bin_dir).stdout.strip() == str(bin_dir / "python3.11")


def test_a_python_without_venv_is_passed_over_for_one_that_has_it(bin_dir: Path) -> None:
    python_like(bin_dir / "python3.13", "3.13", missing="ensurepip")
    python_like(bin_dir / "python3.12", "3.12")
    assert shell("require_python", bin_dir).stdout.strip() == str(bin_dir / "python3.12")


def test_no_python_with_venv_says_which_package_brings_it(bin_dir: Path) -> None:
    python_like(bin_dir / "python3.13", "3.13", missing="venv ensurepip")
    result = shell("require_python", bin_dir)
    assert result.returncode == 2
    assert "apt install python3-venv" in result.stderr
    assert str(bin_dir / "python3.13") in result.stderr


def test_venv_is_not_needed_where_uv_is(bin_dir: Path) -> None:
    program(bin_dir / "uv", f"#!{shutil.which('bash')}\necho uv 1.0\n")
    python_like(bin_dir / "python3.13", "3.13", missing="venv ensurepip")
    assert shell("require_python", bin_dir).stdout.strip() == str(bin_dir / "python3.13")


def test_a_python_that_uv_manages_is_found_and_none_is_downloaded(bin_dir: Path) -> None:
    managed = bin_dir / "managed python"
    python_like(managed, "3.12")
    program(
        bin_dir / "uv",
        f"""#!{shutil.which("bash")}
case "$1" in
--version) echo uv 1.0 ;;
python) [ "$UV_PYTHON_DOWNLOADS" = never ] && echo "{managed}" ;;
esac
""",
    )
    assert shell("require_python", bin_dir).stdout.strip() == str(managed)


def test_without_any_python_uv_is_named_as_the_way_to_get_one(bin_dir: Path) -> None:
    program(
        bin_dir / "uv", f'#!{shutil.which("bash")}\n[ "$1" = --version ] && echo uv 1.0 || exit 1\n'
    )
    result = shell("require_python", bin_dir)
    assert result.returncode == 2
    assert "uv python install 3.13" in result.stderr


def test_bdh_python_is_taken_or_refused_but_never_replaced(bin_dir: Path) -> None:
    python_like(bin_dir / "python3.13", "3.13")
    python_like(bin_dir / "chosen", "3.11")
    chosen = shell("require_python", bin_dir, BDH_PYTHON=str(bin_dir / "chosen"))
    assert chosen.stdout.strip() == str(bin_dir / "chosen")
    refused = shell("require_python", bin_dir, BDH_PYTHON=str(bin_dir / "absent"))
    assert refused.returncode == 2
    assert "BDH_PYTHON" in refused.stderr


def environment_script(installs: Path, *, fails: bool = False) -> str:
    """Replace the installers by one that makes a tiny environment and notes that it ran."""
    install = f"""
        mkdir -p "$1/bin"
        [ -e "$1/bin/python" ] || ln -s "$2" "$1/bin/python"
        echo ran >>"{installs}"
    """
    return f"""
        have_uv() {{ true; }}
        install_with_uv() {{ {"return 1" if fails else install}
        }}
        install_with_pip() {{ return 1; }}
    """


@pytest.fixture
def checkout(tmp_path: Path, bin_dir: Path) -> Path:
    """A copy of the scripts in a folder with a blank in its name."""
    root = tmp_path / "a checkout"
    shutil.copytree(ROOT / "scripts", root / "scripts")
    (root / "pyproject.toml").write_text("[project]\n", encoding="utf-8")
    (bin_dir / "python3").symlink_to(sys.executable)
    return root


def make(
    checkout: Path, bin_dir: Path, code: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-uc", f'. scripts/_environment.sh; {code} make_environment "$ROOT/.venv" wanted'],
        env={"PATH": str(bin_dir), **variables},
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_an_environment_is_installed_once_and_again_when_the_project_changes(
    checkout: Path, bin_dir: Path, tmp_path: Path
) -> None:
    installs = tmp_path / "installs"
    for expected, content in ((1, "[project]\n"), (1, "[project]\n"), (2, "[project] # new\n")):
        (checkout / "pyproject.toml").write_text(content, encoding="utf-8")
        result = make(checkout, bin_dir, environment_script(installs))
        assert result.returncode == 0, result.stderr
        assert len(installs.read_text().split()) == expected


def test_an_install_that_fails_says_so_and_is_tried_again_next_time(
    checkout: Path, bin_dir: Path, tmp_path: Path
) -> None:
    installs = tmp_path / "installs"
    failed = make(checkout, bin_dir, environment_script(installs, fails=True))
    assert failed.returncode == 2
    assert "could not be installed" in failed.stderr
    log = Path(failed.stderr.partition("the whole log: ")[2].splitlines()[0])
    assert log.is_file()
    log.unlink()
    assert make(checkout, bin_dir, environment_script(installs)).returncode == 0
    assert installs.exists()


@pytest.mark.parametrize("fails", [False, True])
def test_on_a_terminal_an_install_is_one_line_that_counts(
    checkout: Path, bin_dir: Path, tmp_path: Path, fails: bool
) -> None:
    for tool in ("sleep", "seq"):
        (bin_dir / tool).symlink_to(str(shutil.which(tool)))
    chatty = environment_script(tmp_path / "installs", fails=fails).replace(
        "install_with_uv() {",
        "install_with_uv() { seq -f 'package %.0f' 200; while [ ! -e seen ]; do sleep 0.1; done;",
    )
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["bash", "-uc", f'. scripts/_environment.sh; {chatty} make_environment "$ROOT/.venv" x'],
        env={"PATH": str(bin_dir)},
        cwd=checkout,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown, deadline = b"", time.monotonic() + 60
    with contextlib.suppress(OSError):  # the terminal's end is an error on Linux
        while time.monotonic() < deadline and (piece := os.read(ours, 65536)):
            shown += piece
            if re.search(rb"\r\x1b\[K +\d+ s  package 200", shown):
                (checkout / "seen").touch()
    os.close(ours)
    assert (checkout / "seen").exists(), shown
    assert process.wait(60) == (2 if fails else 0)
    # A failure shows how it ended; else there is what is being made, and nothing stays below it.
    assert shown.count(b"\n") == (25 + 3 if fails else 1), shown.decode()
    if fails:
        Path(shown.decode().partition("the whole log: ")[2].split()[0]).unlink()
    else:
        assert shown.endswith(b"\r\x1b[K")


def test_a_broken_environment_is_made_anew(checkout: Path, bin_dir: Path, tmp_path: Path) -> None:
    gone = checkout / ".venv" / "bin" / "python"
    gone.parent.mkdir(parents=True)
    gone.symlink_to(tmp_path / "an interpreter that was removed")
    result = make(checkout, bin_dir, environment_script(tmp_path / "installs"))
    assert result.returncode == 0, result.stderr
    assert os.access(gone, os.X_OK)


def test_another_python_that_is_asked_for_gets_an_environment_of_its_own(
    checkout: Path, bin_dir: Path, tmp_path: Path
) -> None:
    install = environment_script(tmp_path / "installs")
    assert make(checkout, bin_dir, install).returncode == 0
    python_like(bin_dir / "chosen", "3.12")
    for expected in (2, 2):
        again = make(checkout, bin_dir, install, BDH_PYTHON=str(bin_dir / "chosen"))
        assert again.returncode == 0, again.stderr
        assert (checkout / ".venv" / "bin" / "python").readlink() == bin_dir / "chosen"
        assert len((tmp_path / "installs").read_text().split()) == expected


def test_a_given_environment_is_used_as_it_is(bin_dir: Path, tmp_path: Path) -> None:
    given = tmp_path / "given"
    (given / "bin").mkdir(parents=True)
    python_like(given / "bin" / "python", "3.12")
    used = shell('use_environment; echo "$PYTHON"', bin_dir, BDH_VENV=str(given))
    assert used.stdout.strip() == str(given / "bin" / "python")
    assert not (given / ".bdh-environment").exists()
    refused = shell("use_environment", bin_dir, BDH_VENV=str(tmp_path / "absent"))
    assert refused.returncode == 2
    assert "BDH_VENV" in refused.stderr
