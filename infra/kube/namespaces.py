"""Runs a program as process 1 of namespaces of its own, and ends with its exit code: 128 and the signal's number for a signal.

    namespaces.py PROGRAM ARGUMENTS

What runs inside ends with this process. (unshare of util-linux 2.38 ends with 1 where SIGKILL ended its child.)"""

import ctypes
import os
import signal
import sys

MOUNTS, UTS, IPC, PIDS, NETWORK = 0x00020000, 0x04000000, 0x08000000, 0x20000000, 0x40000000
PR_SET_PDEATHSIG = 1


def main() -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(MOUNTS | UTS | IPC | PIDS | NETWORK):
        print(f"unshare: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
        return 1
    child = os.fork()
    if child == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.execv(sys.argv[1], sys.argv[1:])
    # The socket at standard input is the program's alone.
    os.close(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main())
