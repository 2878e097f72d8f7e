# shellcheck shell=bash
# Read by other scripts: virtual environments of requirements in which each package has its hash. What an index serves under
# a name and version is what was tried, or it is not installed. A stamp of the requirements' hash says what is done already.

# venv_is_made FOLDER REQUIREMENTS
venv_is_made() {
    local stamp=$1/requirements.sha256
    [[ -f $stamp && $(<"$stamp") == "$(sha256sum <"$2")" && -x $1/bin/python ]]
}

# find_python3_11: sets `python` to a Python 3.11, or to nothing.
find_python3_11() {
    local candidate
    python=$(command -v python3.11 || true)
    for candidate in python3 python; do
        if [[ -z $python ]] && "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            python=$(command -v "$candidate")
        fi
    done
}

# make_venv FOLDER REQUIREMENTS PYTHON [OPTION...]: by uv where it is, with further options of the installer. Harmless when
# repeated.
make_venv() {
    local venv=$1 requirements=$2 python=$3
    if venv_is_made "$venv" "$requirements"; then return; fi
    if command -v uv >/dev/null; then
        [[ -x $venv/bin/python ]] || uv venv --quiet --python "$python" "$venv" || return
        uv pip install --quiet --require-hashes "${@:4}" --python "$venv/bin/python" -r "$requirements" || return
    else
        [[ -x $venv/bin/python ]] || "$python" -m venv "$venv" || return
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes "${@:4}" \
            -r "$requirements" || return
    fi
    # Last, so that a run that was cut short is done again.
    sha256sum <"$requirements" >"$venv/requirements.sha256"
}
