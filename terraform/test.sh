#!/usr/bin/env bash
# Everything about terraform/ that can be checked without a cloud: format, validity, the modules'
# tests on mock providers, the user data on a bash, a metadata service and an S3 server, the rules
# of checkov and our own, and that each rule refuses what it names. Takes two to five minutes. Exits
# with 3 if this machine lacks something, and says what.
#
# The provider comes from the registry, or from where TF_CLI_CONFIG_FILE says, or from the folder
# MILLRACE_TF_MIRROR.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=infra/dev/venv.sh
source infra/dev/venv.sh

requirements=terraform/tests/requirements.txt
venv=target/terraform/venv
passed=0
failed=()

say() { printf 'terraform: %s\n' "$*"; }

lacks() {
    printf '\n\e[1mterraform: NOT TESTED: %s\e[0m\n' "$1" >&2
    printf '  %s\n' "${@:2}" >&2
    exit 3
}

check_machine() {
    local version
    command -v terraform >/dev/null || lacks "there is no terraform on the path" \
        "Get 1.11 or newer: https://developer.hashicorp.com/terraform/install, one file for the path."
    version=$(terraform version -json | sed -n 's/.*"terraform_version": "\([^"]*\)".*/\1/p')
    [[ $(printf '%s\n' 1.11.0 "$version" | sort -V | head -n 1) == 1.11.0 ]] || lacks "terraform is $version" \
        "1.11 or newer is needed for arguments that are written and not kept."
    command -v uv >/dev/null || python3 -c 'import ensurepip' 2>/dev/null ||
        lacks "python3 makes no virtual environment" "apt-get install python3-venv"
    command -v curl >/dev/null || lacks "there is no curl" "apt-get install curl"
}

# A copy, since terraform writes beside what it reads.
make_work() {
    mkdir -p target/terraform
    work=$(mktemp -d "$PWD/target/terraform/work.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    cp -r terraform "$work/"
    if [[ -n ${MILLRACE_TF_MIRROR:-} ]]; then
        printf 'provider_installation {\n  filesystem_mirror { path = "%s" }\n}\n' "$MILLRACE_TF_MIRROR" >"$work/cli.tfrc"
        export TF_CLI_CONFIG_FILE=$work/cli.tfrc
    fi
    export TF_IN_AUTOMATION=1 TF_INPUT=0 CHECKPOINT_DISABLE=1
    unset TF_DATA_DIR
}

# Fetches modules and provider for the folder $1.
init() {
    local log
    log=$(terraform -chdir="$1" init -no-color -backend=false 2>&1) && return
    printf '%s\n' "$log" >&2
    lacks "the provider hashicorp/aws cannot be had" \
        "With a network: unset MILLRACE_TF_MIRROR and TF_CLI_CONFIG_FILE. Without one: fetch it elsewhere with" \
        "\`terraform -chdir=terraform/tests providers mirror FOLDER\`, and set MILLRACE_TF_MIRROR to that folder."
}

# A check with its name; what it prints is shown if it fails.
check() {
    local name=$1 log start=$SECONDS
    shift
    if log=$("$@" 2>&1); then
        passed=$((passed + 1))
        say "ok      $name ($((SECONDS - start)) s)"
    else
        failed+=("$name")
        printf '%s\n' "$log"
        say "FAILED  $name"
    fi
}

validates() { terraform -chdir="$work/terraform/examples/$1" validate -no-color; }

module_tests() {
    local log
    # Each file has a state of its own, so that all run at once would do; a provider takes a
    # processor.
    log=$(terraform -chdir="$work/terraform/tests" test -no-color 2>&1) || { grep -v '\.\.\. pass$' <<<"$log"; return 1; }
    grep -E '^Success! [1-9][0-9]* passed, 0 failed' <<<"$log"
}

render_user_data() {
    mkdir "$work/render"
    cat >"$work/render/main.tf" <<TF
module "user_data" {
  source   = "../terraform/modules/user_data"
  bucket   = "millrace-bucket"
  release  = "$(sha256sum </dev/null | cut -c1-64)"
  settings = { MILLRACE_ROLE = "worker", AWS_REGION = "us-east-1" }
  extra    = file("../terraform/modules/nats/disk_report.sh")
}

output "script" {
  value = module.user_data.script
}
TF
    terraform -chdir="$work/render" init -no-color && terraform -chdir="$work/render" apply -no-color -auto-approve &&
        terraform -chdir="$work/render" output -raw script >"$work/user_data.sh"
}

user_data_is_bash() { bash -n "$work/user_data.sh" && $venv/bin/shellcheck -x "$work/user_data.sh" terraform/test.sh; }

run_checkov() { (cd "$work/terraform" && "$OLDPWD/$venv/bin/checkov" --config-file checkov.yaml "$@"); }

# Each file of tests/refused names the checks that must refuse it.
refuses_the_faulty() {
    local file wanted found id
    found=$($venv/bin/checkov --directory terraform/tests/refused --framework terraform --compact --quiet --skip-download \
        --external-checks-dir terraform/tests/checks 2>/dev/null |
        awk '/^Check: / { id = $2; sub(":", "", id) } $1 == "File:" { sub(":.*", "", $2); print $2, id }')
    for file in terraform/tests/refused/*.tf; do
        wanted=$(sed -n '1s/^# refused by: //p' "$file")
        [[ -n $wanted ]] || { echo "$file names no check in its first line"; return 1; }
        for id in $wanted; do
            grep -qx "/$(basename "$file") $id" <<<"$found" || { printf '%s\n%s is not refused by %s\n' "$found" "$file" "$id"; return 1; }
        done
    done
}

check_machine
venv_is_made $venv $requirements || say "making $venv (checkov and shellcheck, 400 MB)"
make_venv $venv $requirements python3
make_work
for example in minimal production; do init "$work/terraform/examples/$example"; done
init "$work/terraform/tests"
check "format" terraform fmt -check -recursive -diff terraform
check "examples/minimal is valid" validates minimal
check "examples/production is valid" validates production
check "tests of the modules on mock providers" module_tests
check "user data renders" render_user_data
check "user data is bash (bash -n, shellcheck)" user_data_is_bash
check "user data installs a release" python3 terraform/tests/user_data_test.py "$work/user_data.sh"
check "checkov" run_checkov --directory .
check "checkov refuses what is faulty" refuses_the_faulty
check "rights and paths fit" python3 terraform/tests/paths_test.py schemas/src/blob/paths.rs \
    terraform/modules/instance_role/main.tf

for name in "${failed[@]}"; do say "failed: $name"; done
printf '%d passed, %d failed\n' "$passed" "${#failed[@]}"
((${#failed[@]} == 0))
