#!/usr/bin/env bash
# Makes .venv from requirements.txt, as venv.sh says. Harmless when repeated.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=infra/dev/venv.sh
source infra/dev/venv.sh

requirements=infra/dev/requirements.txt
# The oldest Python that all of them are made for.
python_minor=11

say() { printf 'setup: %s\n' "$*"; }
missing=()
lacks() { missing+=("$1"); }

python_works() { "$1" -c "import sys; sys.exit(sys.version_info < (3, $python_minor))" 2>/dev/null; }

# The first python3 that is new enough: the one on the path, or a numbered one beside it.
find_python() {
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null && python_works "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

check_machine() {
    command -v cargo >/dev/null || lacks "cargo (Rust 1.89 or newer): https://rustup.rs"
    command -v c++ >/dev/null || lacks "a C++ compiler: sudo infra/dev/apt.sh, or apt-get install g++"
    python=$(find_python) || lacks "python3 (3.$python_minor or newer): sudo infra/dev/apt.sh, or apt-get install python3"
    if [[ -n ${python:-} ]] && ! command -v uv >/dev/null && ! "$python" -c 'import ensurepip' 2>/dev/null; then
        lacks "python3-venv: sudo infra/dev/apt.sh, or apt-get install python3-venv"
    fi
    if ((${#missing[@]})); then
        say "this machine lacks:"
        printf '  - %s\n' "${missing[@]}"
        exit 1
    fi
}

if venv_is_made .venv $requirements; then exit; fi
check_machine
say "making .venv (torch is large: about 5 GB on disk, a minute or more)"
make_venv .venv $requirements "$python"
