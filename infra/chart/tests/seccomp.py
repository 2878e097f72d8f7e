"""A seccomp profile, as container runtimes read it, over a process of this machine (x86-64): which calls it lets through.
What it says of arguments is not played: a call that any entry permits is permitted."""

import ctypes
import json
import pathlib
import re
import struct
import subprocess

NUMBERS = pathlib.Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7FFF_0000, 0x0005_0000
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2


def names(profile):
    """The calls that a profile permits."""
    return {name for entry in json.loads(profile.read_text())["syscalls"] if entry["action"] == "SCMP_ACT_ALLOW"
            for name in entry["names"]}


def run_under(permitted, command, line):
    """What a program under a filter of these calls writes for one line of input, up to the first line that ends it."""
    numbers = dict(re.findall(r"#define __NR_(\w+) (\d+)", NUMBERS.read_text()))
    code = [(LOAD, 0, 0, 0)]
    for name in sorted(permitted & numbers.keys()):
        code += [(EQUAL, 0, 1, int(numbers[name])), (RETURN, 0, 0, ALLOW)]
    code.append((RETURN, 0, 0, ERRNO | 1))
    filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(filters)))
    libc = ctypes.CDLL(None, use_errno=True)

    def confine():
        assert libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
        assert libc.prctl(SECCOMP, FILTER, ctypes.byref(program), 0, 0) == 0

    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=confine) as process:
        # Its input stays open: who closes it no longer waits for an answer.
        process.stdin.write(line + "\n")
        process.stdin.flush()
        said = []
        for answer in process.stdout:
            said.append(json.loads(answer))
            if isinstance(said[-1], dict) and said[-1].keys() & {"failed", "ran"}:
                break
        process.kill()
    return said
