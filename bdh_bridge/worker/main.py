"""The worker's entry, run as a file: ``python -P main.py --home HOME``.

It detaches itself from its parent and takes the lock before it imports anything heavy: of ten
processes started at the same moment, nine are gone again after some twenty milliseconds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

#: Seconds for the lock: a probe holds it for microseconds, a worker that ends for a moment.
LOCK_WAIT = 0.5
#: Seconds for systemd to give us a scope.
SCOPE_WAIT = 10.0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bdh-bridge-worker")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--in-scope", action="store_true", help="systemd gave it a scope already")
    arguments = parser.parse_args(argv)
    _detach()
    if not arguments.in_scope and _moved_to_scope(argv):
        return 0
    _find_packages()
    return _serve(arguments.home)


def _detach() -> None:
    """Become nobody's child and leave every session, so that no host's clean-up finds us."""
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
    os.chdir("/")
    os.umask(0o077)


def _moved_to_scope(argv: list[str]) -> bool:
    """Under a systemd unit, start over in a scope of our own: at the unit's stop systemd kills
    every process of its control group, detached or not. False where that is not possible."""
    if "INVOCATION_ID" not in os.environ:
        return False
    systemd_run = shutil.which("systemd-run")
    if systemd_run is None:
        return False
    command = [
        systemd_run, "--user", "--scope", "--quiet", "--collect", "--",
        sys.executable, "-P", __file__, *argv, "--in-scope",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=SCOPE_WAIT,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def _find_packages() -> None:
    """Make the packages importable. Installed, they all lie beside ``bdh_bridge``; in a checkout
    (a cloned plugin) each has its folder."""
    root = Path(__file__).resolve().parents[2]
    for folder in (root, root / "otel", root / "tui", root / "borgee"):
        if folder.is_dir() and str(folder) not in sys.path:
            # In front: the worker has to be of the same version as the file that was started.
            sys.path.insert(0, str(folder))


def _serve(home: Path) -> int:
    from bdh_bridge import __version__
    from bdh_bridge.paths import BridgePaths
    from bdh_bridge.worker.lock import WorkerLock
    from bdh_otel.database import make_private_directory

    paths = BridgePaths(home.absolute())
    if not home.is_dir():  # removed since we were started: not to be made again
        return 0
    make_private_directory(paths.directory)
    lock = WorkerLock(paths.worker_lock)
    if not lock.acquire(wait=LOCK_WAIT, version=__version__, mode="process"):
        return 0

    from bdh_bridge.worker.service import run_process

    return run_process(paths.hermes_home, lock)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
