#!/bin/bash
# The first program of a container, in namespaces of its own: makes the root folder from the image and the volumes, takes
# the pod's address, and becomes the container's command, which is process 1 as in a container.
#
#     pod.sh FOLDER      with `mounts`, `environment`, `command`, `facts` of kubelet's making; standard input is a socket
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/../dev/rootfs.sh"
cd "$1"
# HOSTNAME, ADDRESS, NETWORKS, READ_ONLY
source ./facts
mapfile -d '' -t environment <environment
mapfile -d '' -t command <command

mount --make-rprivate /
rm -rf root
mkdir root
mount --bind root root
cd root
mkdir -p dev etc proc sys tmp .old
system_folders
from_etc ca-certificates ld.so.cache ld.so.conf ld.so.conf.d localtime nsswitch.conf ssl
cat /etc/resolv.conf >etc/resolv.conf
printf '127.0.0.1 localhost\n%s %s\n' "$ADDRESS" "$HOSTNAME" >etc/hosts
printf 'root:x:0:0:root:/:/bin/bash\n' >etc/passwd
devices full null random urandom zero
# The image and the volumes.
volumes ../mounts

# The kubelet plugs the cable in, and both sides hold it before the command starts.
printf 'up\n' >&0
read -r plugged <&0
[[ $plugged == plugged ]]
hostname "$HOSTNAME"
ip link set lo up
ip address add "$ADDRESS/32" dev eth0
ip link set eth0 up
for network in $NETWORKS; do ip route add "$network" dev eth0 src "$ADDRESS"; done
exec </dev/null

[[ $READ_ONLY != yes ]] || mount -o remount,ro,bind .
pivot_root . .old
cd /
mount -t proc proc /proc
umount -l /.old
exec env -i "${environment[@]}" "${command[@]}"
