#!/bin/bash
# The first process of a fake machine, in namespaces of its own: makes the machine's root folder, sees that the network
# is up, hands the listening socket of the metadata service to the cloud, and becomes init.py.
#
#     boot.sh ROOT PYTHON_PREFIX    with the machine's folder as working directory; standard input is a socket
set -euo pipefail
root=$1 prefix=$2
here=$(dirname "$(readlink -f "$0")")
source "$here/../../dev/rootfs.sh"

mount --make-rprivate /
mkdir -p "$root"
mount --bind "$root" "$root"
cd "$root"
mkdir -p etc opt/fakecloud/bin proc run/lock run/disks sys dev tmp var/log var/lib var/tmp srv mnt root usr/local
chmod 1777 tmp var/tmp

# The system's programs and libraries are this machine's, and cannot be written.
system_folders
[[ $prefix == /usr || $prefix == /usr/* ]] || read_only "$prefix"
mount --rbind /sys sys
# A folder, so that the cloud can add disks to it.
devices full null random tty urandom zero
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr

# The rest is the machine's own. Nobody but this user exists in its namespace: millrace is another name of it.
from_etc alternatives ca-certificates debian_version default hosts ld.so.cache ld.so.conf ld.so.conf.d localtime \
    nsswitch.conf os-release protocols services ssl terminfo
mkdir -p etc/systemd/system
printf 'root:x:0:0:root:/root:/bin/bash\n' >etc/passwd
printf 'root:x:0:\n' >etc/group
cp "$here"/bin/* opt/fakecloud/bin/
cp "$here"/*.py opt/fakecloud/
cp "$OLDPWD/machine.json" opt/fakecloud/machine.json
# What the image of the machine has inside, and the cloud's disks.
volumes "$OLDPWD/mounts"

mkdir .old
pivot_root . .old
cd /
mount -t proc proc /proc
umount -l /.old
rmdir /.old
export PATH=/opt/fakecloud/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
exec "$prefix/bin/python3" -u /opt/fakecloud/init.py
