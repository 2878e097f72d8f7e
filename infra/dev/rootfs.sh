# Parts of a root folder for a first program in namespaces of its own. Sourced; the working directory is the new root.

# FOLDER: this machine's, which cannot be written.
read_only() {
    mkdir -p ".$1"
    mount --rbind "$1" ".$1"
    mount -o remount,ro,bind ".$1"
}

# The system's programs and libraries.
system_folders() {
    local folder
    for folder in /usr /bin /sbin /lib /lib32 /lib64 /libx32; do
        if [[ -L $folder ]]; then
            ln -s "$(readlink "$folder")" ".$folder"
        elif [[ -d $folder ]]; then
            read_only "$folder"
        fi
    done
}

# NAME...: copies of these from /etc, where they exist.
from_etc() {
    local name
    for name in "$@"; do
        [[ ! -e /etc/$name ]] || cp -a --no-preserve=ownership "/etc/$name" etc/ 2>/dev/null || true
    done
}

# NAME...: these devices, and shared memory.
devices() {
    local device
    for device in "$@"; do
        touch "dev/$device"
        mount --bind "/dev/$device" "dev/$device"
    done
    mkdir dev/shm
    mount -t tmpfs shm dev/shm
}

# FILE: what it names is mounted, `ro|rw SOURCE TARGET` a line.
volumes() {
    local how source target
    while read -r how source target; do
        mkdir -p ".$target"
        mount --rbind "$source" ".$target"
        [[ $how == rw ]] || mount -o remount,ro,bind ".$target"
    done <"$1"
}
