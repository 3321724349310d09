#!/usr/bin/env bash
# infra/install.sh LOCK [WHEEL]: make $VENV (default .venv) and install exactly what LOCK names into it, then Evenflow
# itself: WHEEL, or else this directory. Every file is checked against its hash; nothing is resolved, and what comes as
# source (nkeys) is built by the locked setuptools and not in isolation, for which pip would fetch tools of its own choice.
# So nothing else can come in.
set -euo pipefail

lock=$1
wheel=${2:-}
venv=${VENV:-.venv}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore PIP_REQUIRE_VIRTUALENV=1

suitable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.11 python3.12 python3.13}; do
        if suitable "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "No Python 3.11 or newer with venv and pip was found (tried: ${PYTHON:-python3 python3.11 python3.12 python3.13})." >&2
    echo "Install one (Debian: apt-get install python3 python3-venv) or name it: make PYTHON=/path/to/python3.11" >&2
    exit 2
}

# Turns pip's many lines into one that moves (a terminal) or one for every twentieth package (a log); keeps errors.
progress() {
    awk -v total="$1" -v tty="$([ -t 1 ] && echo 1 || echo 0)" '
        /^Collecting/ { n++
            if (tty) { printf "\r  %d of at most %d packages ", n, total; fflush() }
            else if (n % 20 == 0) { printf "  %d of at most %d packages\n", n, total; fflush() }
            next }
        /^Installing collected/ { if (tty) printf "\n"; print "  installing them"; fflush(); next }
        /^(  |Ignoring|Looking|Requirement already|Successfully|Obtaining|Building|Created|Using|Downloading|Processing|Saved)/ { next }
        { print; fflush() }'
}

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    echo "Making $venv with $("$python" --version) (it grows to about 400 MB; this takes some seconds)"
    "$python" -m venv --clear "$venv"
    first=" (about 100 MB to fetch, unless pip has them)"
fi

pip=("$venv/bin/python" -m pip install --no-deps --progress-bar off)
tools=$(mktemp)
trap 'rm -f "$tools"' EXIT

echo "Installing $lock${first:-}"
awk '/^[a-z0-9]/ { wanted = /^setuptools==/ } wanted' "$lock" > "$tools"
"${pip[@]}" --quiet --require-hashes --only-binary :all: -r "$tools"
"${pip[@]}" --require-hashes --no-build-isolation --use-pep517 -r "$lock" 2>&1 \
    | progress "$(grep -c '^[a-z].*==' "$lock")"
if [ -n "$wheel" ]; then
    echo "Installing ${wheel##*/}"
    "${pip[@]}" --quiet --no-index "$wheel"
else
    echo "Installing Evenflow from this directory"
    "${pip[@]}" --quiet --no-build-isolation --no-index --editable .
fi
