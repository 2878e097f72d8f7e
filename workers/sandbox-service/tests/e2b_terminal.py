"""Terminals, as E2B's own client has them."""

import e2b
from e2b import CommandExitException
from e2b.exceptions import InvalidArgumentException, NotFoundException, SandboxException

from patience import PATIENCE, fails, sleeping, until


def terminal(sandbox):
    one = sandbox.pty.create(e2b.PtySize(rows=24, cols=80), cwd="/tmp", envs={"A": "b"}, timeout=PATIENCE)
    shown = bytearray()
    output = iter(one)

    def shows(words):
        while words not in shown:
            shown.extend(next(output)[2])
        shown.clear()

    # It is a terminal of its own: with a size, an echo, and jobs.
    sandbox.pty.send_stdin(one.pid, b"tty; stty size; pwd; echo $A$((40 + 2))\n")
    shows(b"/dev/pts/0\r\n24 80\r\n/tmp\r\nb42\r\n")
    sandbox.pty.resize(one.pid, e2b.PtySize(rows=50, cols=120))
    sandbox.pty.send_stdin(one.pid, b"stty size\n")
    shows(b"50 120\r\n")
    sandbox.pty.send_stdin(one.pid, b"sleep 3000\n")
    until(lambda: sleeping(sandbox) == 1, "it runs")
    # As people do: until it helps. A terminal throws away what was typed before a ^C.

    def interrupted():
        sandbox.pty.send_stdin(one.pid, b"\x03")
        sandbox.pty.send_stdin(one.pid, b"echo $? >> /tmp/codes\n")
        return sandbox.commands.run("cat /tmp/codes; true").stdout

    until(interrupted, "^C ends what runs")
    assert sandbox.files.read("/tmp/codes").startswith("130\n")
    # Another listens to the same.
    again = sandbox.pty.connect(one.pid)
    sandbox.pty.stream_input(one.pid, [b"echo both", b" of us\n"])
    shows(b"both of us\r\n")
    sandbox.pty.send_stdin(one.pid, b"exit 3\n")
    for handle in [one, again]:
        fails(CommandExitException, "3", handle.wait)
    assert not sandbox.pty.kill(one.pid)
    fails(NotFoundException, "", lambda: sandbox.pty.resize(one.pid, e2b.PtySize(rows=1, cols=1)))
    plain = sandbox.commands.run("cat", background=True, stdin=True)
    fails(SandboxException, "no terminal", lambda: sandbox.pty.resize(plain.pid, e2b.PtySize(rows=1, cols=1)))
    fails(InvalidArgumentException, "input.stdin", lambda: sandbox.pty.send_stdin(plain.pid, b"x"))
    assert plain.kill()
    killed = sandbox.pty.create(e2b.PtySize(rows=2, cols=2))
    assert sandbox.pty.kill(killed.pid)
    until(lambda: not sandbox.pty.kill(killed.pid), "it is gone")
    for _ in range(8):
        many = [sandbox.pty.create(e2b.PtySize(rows=2, cols=2)) for _ in range(8)]
        assert all(sandbox.pty.kill(each.pid) for each in many)
    until(lambda: sandbox.commands.run("ls /dev/pts").stdout == "ptmx\n", "terminals go with their programs")
