# Sourced by the scripts beside it: finds a Python, makes virtual environments, keeps them fresh.
#
# Written for the bash 3.2 that macOS ships. Variables that a user may set:
#   BDH_PYTHON  the interpreter to build environments with, instead of looking for one
#   BDH_VENV    a ready environment to use as it is: nothing is installed into it

readonly HERMES_VERSION=0.19.0
readonly HERMES_OLDER_VERSION=0.18.2 # the oldest release that the plugin must load on

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
readonly ROOT

say() { printf '%s\n' "$*" >&2; }

die() {
    say "error: $1"
    shift
    local line
    for line in "$@"; do say "       $line"; done
    exit 2
}

# uv is used where it really runs: a version manager's shim may exist and still fail.
have_uv() { uv --version >/dev/null 2>&1; }

# Prints the real path of interpreter $1 if it is a Python 3.11 to 3.13 that has the modules in $2.
probe_python() {
    "$1" -c '
import importlib.util, sys
missing = [name for name in sys.argv[1].split() if importlib.util.find_spec(name) is None]
if not (3, 11) <= sys.version_info[:2] <= (3, 13) or missing:
    raise SystemExit(1)
print(getattr(sys, "_base_executable", None) or sys.executable)
' "$2" 2>/dev/null </dev/null
}

# Prints the first fitting interpreter that has the modules in $1; fails if there is none.
find_python() {
    local candidate
    if [ -n "${BDH_PYTHON:-}" ]; then
        probe_python "$BDH_PYTHON" "$1"
        return
    fi
    for candidate in python3.13 python3.12 python3.11 python3 python; do
        command -v "$candidate" >/dev/null 2>&1 && probe_python "$candidate" "$1" && return
    done
    # One that uv has installed already; it must not download a new one behind the user's back.
    candidate=$(UV_PYTHON_DOWNLOADS=never uv python find --no-project '>=3.11,<3.14' 2>/dev/null) &&
        [ -n "$candidate" ] && probe_python "$candidate" "$1"
}

# Prints the interpreter to build with, or explains what is missing and ends the script.
require_python() {
    local modules="sqlite3 ssl" python
    have_uv || modules="$modules venv ensurepip"
    if python=$(find_python "$modules"); then
        printf '%s\n' "$python"
        return
    fi
    if [ -n "${BDH_PYTHON:-}" ]; then
        die "BDH_PYTHON ($BDH_PYTHON) does not fit: it must run, be 3.11, 3.12 or 3.13, and have the modules: $modules." \
            "Unset it to let the script look for another one."
    fi
    if python=$(find_python ""); then
        die "$python fits, but lacks one of the modules: $modules." \
            "Debian, Ubuntu:  sudo apt install python3-venv" \
            "or install uv, which needs no venv module: https://docs.astral.sh/uv/"
    fi
    if have_uv; then
        die "no Python 3.11, 3.12 or 3.13 was found. Get one with:  uv python install 3.13"
    fi
    die "no Python 3.11, 3.12 or 3.13 was found. Get one, for example:" \
        "macOS:           brew install python@3.13" \
        "Debian, Ubuntu:  sudo apt install python3 python3-venv   (Debian 12, Ubuntu 24.04 or later)" \
        "Fedora:          sudo dnf install python3.13" \
        "any system:      install uv (https://docs.astral.sh/uv/), then: uv python install 3.13"
}

# Prints what environment $1 was made from, so that a later run can tell whether it still holds.
fingerprint() {
    local directory=$1
    shift
    "$directory/bin/python" -c 'import sys; print("python", sys.version)' 2>/dev/null || return
    printf '%s\n' "$ROOT" "${BDH_PYTHON:-}" "$@" # an editable install holds the checkout's path
    cksum <"$ROOT/pyproject.toml"
}

# Both return the installer's status; $1 is the environment, the rest are requirements.
install_with_uv() {
    local directory=$1 python=$2
    shift 2
    if [ ! -x "$directory/bin/python" ]; then
        UV_PYTHON_DOWNLOADS=never uv venv --quiet --python "$python" "$directory" || return
    fi
    # Compiled now, like pip does it: else the first run pays for it.
    uv pip install --compile-bytecode --python "$directory/bin/python" "$@"
}

install_with_pip() {
    local directory=$1 python=$2
    shift 2
    if ! "$directory/bin/python" -m pip --version >/dev/null 2>&1; then
        "$python" -m venv --clear "$directory" || return
    fi
    "$directory/bin/python" -m pip install --disable-pip-version-check "$@"
}

# make_environment DIRECTORY REQUIREMENT…: fast when nothing changed, else installs what is asked for.
make_environment() {
    local directory=$1 python log
    shift
    local stamp="$directory/.bdh-environment"
    if [ -f "$stamp" ] && [ "$(fingerprint "$directory" "$@")" = "$(cat "$stamp")" ]; then
        return
    fi
    if [ -z "${BDH_PYTHON:-}" ] && python=$(probe_python "$directory/bin/python" ""); then
        say "updating ${directory#"$ROOT"/}"
    else
        # Anew: there is none, its Python is gone, or another Python is asked for.
        python=$(require_python) || exit
        rm -rf "$directory"
        say "making ${directory#"$ROOT"/} with $python (downloads and compiles packages: a minute or so)"
    fi
    rm -f "$stamp"
    log=$(mktemp) || exit
    if ! install_logged "$log" install_with_uv "$directory" "$python" "$@" &&
        ! install_logged "$log" install_with_pip "$directory" "$python" "$@"; then
        tail -n 25 "$log" >&2
        die "the packages could not be installed into $directory; the whole log: $log" \
            "Is the package index reachable? Run this again when it is; what was made so far is used."
    fi
    rm -f "$log"
    fingerprint "$directory" "$@" >"$stamp" || die "$directory has no working Python after the install."
}

# Runs an installer, which fills the log $1; a terminal shows one line that counts.
install_logged() {
    local log=$1 installer=$2
    shift
    case $installer in
    install_with_uv) have_uv || return ;;
    install_with_pip) "$3" -c 'import venv, ensurepip' 2>/dev/null || return ;;
    esac
    if [ ! -t 2 ]; then
        "$@" >>"$log" 2>&1
        return
    fi
    local counting status=0
    count_seconds "$log" &
    counting=$!
    "$@" >>"$log" 2>&1 || status=$?
    kill "$counting" 2>/dev/null
    wait "$counting" 2>/dev/null
    printf '\r\033[K' >&2
    return "$status"
}

# Shows how long it takes, and the last line of the log $1, until it is ended with the script.
count_seconds() {
    local began=$SECONDS line
    while kill -0 $$ 2>/dev/null; do
        line=$(tail -n 1 "$1")
        line=${line//[^[:print:]]/}
        printf '\r\033[K%4d s  %s' $((SECONDS - began)) "${line:0:60}" >&2
        sleep 1
    done
}

# Sets PYTHON to the interpreter of the environment that demo and tests share.
use_environment() {
    local directory=$ROOT/.venv
    if [ -n "${BDH_VENV:-}" ]; then
        directory=$BDH_VENV
        probe_python "$directory/bin/python" "bdh_bridge" >/dev/null ||
            die "BDH_VENV ($BDH_VENV) is no environment in which bdh_bridge is installed."
    else
        make_environment "$directory" \
            --editable "$ROOT[embedded,borgee,dev]" "hermes-agent[messaging]==$HERMES_VERSION"
    fi
    PYTHON=$directory/bin/python
}
