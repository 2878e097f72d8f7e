"""Drives the service by E2B's own client, as its users would: the environment says where it is."""

import asyncio
import hashlib
import io
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from datetime import datetime, timedelta, timezone

import e2b
from e2b import AsyncSandbox, CommandExitException, Sandbox, SandboxQuery, SandboxState
from e2b.exceptions import (
    AuthenticationException,
    FileNotFoundException,
    InvalidArgumentException,
    NotFoundException,
    RateLimitException,
    SandboxException,
    SandboxNotFoundException,
    SandboxNotRunningException,
    TimeoutException,
)

from e2b_terminal import terminal
from patience import PATIENCE, fails, sleeping, until

OTHER = sys.argv[1]


def foreground(sandbox):
    ran = sandbox.commands.run("echo out; echo err >&2; pwd")
    assert (ran.exit_code, ran.stdout, ran.stderr, ran.error) == (0, "out\n/home/user\n", "err\n", None), ran
    error = fails(CommandExitException, "3", lambda: sandbox.commands.run("echo x; echo y >&2; exit 3"))
    assert (error.exit_code, error.stdout, error.stderr) == (3, "x\n", "y\n"), error
    ran = sandbox.commands.run('echo "$A $B $E2B_SANDBOX_ID"; pwd', envs={"A": "it's"}, cwd="/tmp")
    assert ran.stdout == f"it's of all {sandbox.sandbox_id}\n/tmp\n", ran
    out, err = [], []
    ran = sandbox.commands.run(
        "for i in 1 2 3; do echo $i; echo -$i >&2; done", on_stdout=out.append, on_stderr=err.append
    )
    assert ("".join(out), "".join(err)) == ("1\n2\n3\n", "-1\n-2\n-3\n") == (ran.stdout, ran.stderr)
    # What is no text, and what is cut in the middle of a letter.
    assert sandbox.commands.run("printf 'h\\303'; sleep 0.1; printf '\\244\\377'").stdout == "hä\ufffd"
    ran = sandbox.commands.run("head -c 8000000 /dev/zero | tr '\\0' x")
    assert ran.stdout == "x" * 8_000_000
    # A command has no input unless it asks for one.
    assert sandbox.commands.run("cat; echo end").stdout == "end\n"
    assert sandbox.commands.run("whoami", user="user").stdout == "user\n"
    began = time.monotonic()
    late = "trap '' TERM; (setsid sleep 3000) & sleep 3000"
    fails(TimeoutException, "", lambda: sandbox.commands.run(late, timeout=1))
    assert time.monotonic() - began < PATIENCE
    until(lambda: not sandbox.commands.list(), "a command that is late is killed")
    assert sleeping(sandbox) == 0
    fails(InvalidArgumentException, "/none", lambda: sandbox.commands.run("true", cwd="/none"))
    fails(InvalidArgumentException, "NUL", lambda: sandbox.commands.run("true", envs={"A": "\0"}))
    fails(InvalidArgumentException, "bytes", lambda: sandbox.commands.run("true " + "x" * 2_000_000))
    fails(AuthenticationException, "one user", lambda: sandbox.commands.run("true", user="nobody"))
    # Absurd, and no reason to fail: it takes no longer than it takes.
    assert sandbox.commands.run("echo 1", timeout=10**9).stdout == "1\n"
    assert sandbox.commands.run("echo 1", timeout=0).stdout == "1\n"


def background(sandbox):
    one = sandbox.commands.run("read a; echo got $a; read b; echo and $b; cat", background=True, stdin=True)
    (listed,) = sandbox.commands.list()
    assert (listed.pid, listed.cmd, listed.args[0]) == (one.pid, "/bin/bash", "-l"), listed
    again = sandbox.commands.connect(one.pid)
    sandbox.commands.send_stdin(one.pid, "first\n")
    one.send_stdin(b"second\n")
    sandbox.commands.stream_input(one.pid, [b"a", "b" * 100_000, b"\n"])
    one.close_stdin()
    text = "got first\nand second\na" + "b" * 100_000 + "\n"
    assert one.wait().stdout == again.wait().stdout == text
    assert sandbox.commands.list() == []
    for call in [
        lambda: sandbox.commands.connect(one.pid),
        lambda: sandbox.commands.send_stdin(one.pid, "x"),
        lambda: sandbox.commands.close_stdin(one.pid),
        lambda: sandbox.commands.stream_input(one.pid, ["x"]),
    ]:
        fails(NotFoundException, "runs", call)
    assert sandbox.commands.kill(one.pid) is False and sandbox.commands.kill(2**32 - 1) is False
    silent = sandbox.commands.run("sleep 3000", background=True)
    fails(SandboxException, "stdin=true", lambda: sandbox.commands.send_stdin(silent.pid, "x"))
    # Who stops listening leaves the command alone.
    silent.disconnect()
    (listed,) = sandbox.commands.list()
    assert listed.pid == silent.pid
    same = sandbox.commands.connect(silent.pid)
    assert sandbox.commands.kill(silent.pid) is True
    error = fails(CommandExitException, "", same.wait)
    assert error.exit_code == -1 and "signal=9" in error.error, error
    # All that it started goes with it, whatever it does with signals and sessions.
    stubborn = sandbox.commands.run("trap '' TERM HUP; setsid sleep 3001 & sleep 3001", background=True)
    assert stubborn.kill() is True
    fails(CommandExitException, "", stubborn.wait)
    assert sleeping(sandbox) == 0
    many = [sandbox.commands.run(f"sleep 0.1; echo {n}", background=True) for n in range(30)]
    assert [one.wait().stdout for one in many] == [f"{n}\n" for n in range(30)]


def files(sandbox):
    text = "häm\n" * 50_000
    written = sandbox.files.write("/tmp/a/b.txt", text)
    assert (written.name, written.path, written.type.value) == ("b.txt", "/tmp/a/b.txt", "file"), written
    assert sandbox.files.read("/tmp/a/b.txt") == text
    blob = bytes(range(256)) * 20_000
    assert sandbox.files.write("rel/data.bin", io.BytesIO(blob)).path == "/home/user/rel/data.bin"
    assert bytes(sandbox.files.read("~/rel/data.bin", format="bytes")) == blob
    assert b"".join(sandbox.files.read("rel/data.bin", format="stream")) == blob
    sandbox.files.write("zipped.bin", blob, gzip=True)
    digest = sandbox.commands.run("sha256sum zipped.bin").stdout.split()[0]
    assert digest == hashlib.sha256(blob).hexdigest()
    assert sandbox.files.write("empty", "").path == "/home/user/empty" and sandbox.files.read("empty") == ""
    odd = "/tmp/a/o d\"d\\ ä%22;.txt"
    assert sandbox.files.write(odd, "odd").path == odd and sandbox.files.read(odd) == "odd"

    info = sandbox.files.get_info("rel/data.bin")
    assert (info.name, info.size, info.permissions) == ("data.bin", len(blob), "-rw-r--r--"), info
    assert (info.type.value, info.mode, info.symlink_target) == ("file", 0o644, None), info
    assert abs(datetime.now(timezone.utc) - info.modified_time) < timedelta(minutes=10), info
    # A moment that no client can read is told as the last one that it can.
    sandbox.commands.run("mkdir far && touch -d @9000000000000 far/away")
    (far,) = sandbox.files.list("far")
    assert far.modified_time.year == 9999 == sandbox.files.get_info("far/away").modified_time.year, far
    sandbox.commands.run("ln -s data.bin rel/link")
    link = sandbox.files.get_info("rel/link")
    assert (link.type.value, link.symlink_target) == ("symlink", "data.bin"), link
    assert sandbox.files.exists("rel") and not sandbox.files.exists("rel/none")
    assert sandbox.files.make_dir("deep/er/est") is True and sandbox.files.make_dir("deep/er/est") is False
    fails(InvalidArgumentException, "no folder", lambda: sandbox.files.make_dir("rel/data.bin"))
    fails(InvalidArgumentException, "", lambda: sandbox.files.make_dir("rel/data.bin/x"))
    assert [entry.name for entry in sandbox.files.list("rel")] == ["data.bin", "link"]
    names = {entry.path for entry in sandbox.files.list("deep", depth=9)}
    assert names == {"/home/user/deep/er", "/home/user/deep/er/est"}, names
    moved = sandbox.files.rename("rel/data.bin", "/tmp/new/place.bin")
    assert (moved.path, moved.size) == ("/tmp/new/place.bin", len(blob)), moved
    fails(FileNotFoundException, "rel/data.bin", lambda: sandbox.files.rename("rel/data.bin", "x"))
    sandbox.files.remove("/tmp/new")
    # As with E2B, nothing is as good as removed.
    sandbox.files.remove("/tmp/new")
    assert not sandbox.files.exists("/tmp/new/place.bin")

    for call in [sandbox.files.read, sandbox.files.get_info, sandbox.files.list]:
        fails(FileNotFoundException, "none", lambda: call("/tmp/none"))
    fails(InvalidArgumentException, "", lambda: sandbox.files.list("/tmp/a/b.txt"))
    fails(InvalidArgumentException, "regular file", lambda: sandbox.files.read("/tmp/a"))
    fails(InvalidArgumentException, "regular file", lambda: sandbox.files.read("/dev/zero"))
    fails(InvalidArgumentException, "Read-only", lambda: sandbox.files.write("/usr/bin/planted", ""))
    fails(InvalidArgumentException, "below it", lambda: sandbox.files.remove("/tmp/.."))
    fails(SandboxException, "not watched", lambda: sandbox.files.watch_dir("/tmp"))
    # `../` leads no further than the sandbox's own root.
    outside = "../" * 30 + os.path.abspath(__file__)[1:]
    fails(FileNotFoundException, "", lambda: sandbox.files.read(outside))
    assert sandbox.files.write("../" * 30 + "tmp/up.txt", "up").path == "/tmp/up.txt"
    entries = [{"path": f"many/{n % 50}/{n}.txt", "data": str(n)} for n in range(3_000)]
    assert [one.name for one in sandbox.files.write_files(entries)] == [f"{n}.txt" for n in range(3_000)]
    listed = sandbox.files.list("many", depth=2)
    assert len(listed) == 3_050 and sandbox.files.read("many/49/2999.txt") == "2999"
    sandbox.commands.run("mkdir crowd && cd crowd && seq 10001 | xargs touch")
    fails(InvalidArgumentException, "10000 entries", lambda: sandbox.files.list("crowd"))


def full():
    """A disk that is full: what was there stays."""
    sandbox = Sandbox.create()
    sandbox.files.write("kept", "kept")
    big = bytes(100_000_000)
    fails(e2b.NotEnoughSpaceException, "", lambda: [sandbox.files.write(f"b{n}", big) for n in range(20)])
    assert sandbox.files.read("kept") == "kept"
    assert sandbox.kill() is True


def signed(sandbox):
    """A signed address needs no token, and opens one file for one purpose."""
    host = f"{e2b.ConnectionConfig.envd_port}-{sandbox.sandbox_id}.sandboxes.example"

    def fetch(url, host=host, data=None):
        kind = {"Content-Type": "application/octet-stream"}
        request = urllib.request.Request(url, data=data, headers={"Host": host, **kind})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    sandbox.files.write("signed", "text")
    url = sandbox.download_url("signed", use_signature_expiration=600)
    assert fetch(url) == (200, b"text")
    assert fetch(url, data=b"written")[0] == 401
    assert fetch(url.replace("=signed", "=other"))[0] == 401
    assert fetch(url.split("&")[0])[0] == 401
    assert fetch(sandbox.download_url("signed", use_signature_expiration=-5))[0] == 401
    assert fetch(sandbox.upload_url("signed"), data=b"written")[0] == 200
    assert sandbox.files.read("signed") == "written"
    assert fetch(url, host=f"8000-{sandbox.sandbox_id}.sandboxes.example")[0] == 403


def life():
    metadata = {"of": "me & you", "n": "1"}
    sandbox = Sandbox.create("python:3.11", timeout=600, metadata=metadata, envs={"B": "of all"})
    assert sandbox.is_running()
    info = sandbox.get_info()
    told = (info.template_id, info.metadata, info.state)
    assert told == ("python:3.11", metadata, SandboxState.RUNNING), info
    assert abs((info.end_at - info.started_at).total_seconds() - 600) < 5, info
    foreground(sandbox)
    background(sandbox)
    terminal(sandbox)
    files(sandbox)
    signed(sandbox)

    def left():
        return (sandbox.get_info().end_at - datetime.now(timezone.utc)).total_seconds()

    sandbox.set_timeout(3_000)
    assert 2_900 < left() < 3_010
    sandbox.set_timeout(100)
    assert 50 < left() < 110
    same = Sandbox.connect(sandbox.sandbox_id, timeout=10)
    assert 50 < left(), "connecting makes no end earlier"
    Sandbox.connect(sandbox.sandbox_id, timeout=500)
    assert 450 < left() < 510
    assert same.files.read("/tmp/up.txt") == "up"
    for timeout in [-1, 10**6, 2**62]:
        fails(SandboxException, "86400", lambda: sandbox.set_timeout(timeout))
    fails(SandboxException, "", lambda: sandbox.set_timeout(2**80))
    assert 400 < left() < 510
    for call in [sandbox.pause, sandbox.create_snapshot, sandbox.get_metrics, sandbox.fork]:
        fails(SandboxException, "501", call)

    # It ends while a command runs.
    waiting = sandbox.commands.run("sleep 3000", background=True)
    assert sandbox.kill() is True and sandbox.kill() is False
    fails(SandboxNotRunningException, "was not found", waiting.wait)
    gone(sandbox)


def gone(sandbox):
    assert sandbox.is_running() is False
    fails(SandboxNotFoundException, "not found", sandbox.get_info)
    fails(SandboxNotFoundException, "not found", lambda: sandbox.set_timeout(60))
    fails(SandboxNotFoundException, "not found", lambda: Sandbox.connect(sandbox.sandbox_id))
    fails(SandboxNotRunningException, "was not found", lambda: sandbox.commands.run("true"))
    fails(SandboxNotRunningException, "was not found", lambda: sandbox.files.read("x"))
    fails(SandboxNotRunningException, "was not found", lambda: sandbox.files.list("/"))


def end_of_life():
    """It ends at its time, although its state is asked for and a command runs; and not before."""
    began = time.monotonic()
    short, moved = Sandbox.create(timeout=3), Sandbox.create(timeout=600)
    longer = Sandbox.create(timeout=3)
    longer.set_timeout(600)
    waiting = short.commands.run("sleep 3000", background=True, timeout=0)
    until(lambda: not short.is_running(), "its time is over")
    assert time.monotonic() - began >= 3
    fails(SandboxNotRunningException, "", waiting.wait)
    gone(short)
    moved.set_timeout(1)
    until(lambda: not moved.is_running(), "its time was made shorter")
    assert longer.commands.run("echo on").stdout == "on\n"
    assert longer.kill()
    over = Sandbox.create(timeout=0)
    until(lambda: not over.is_running(), "it had no time at all")


def ports():
    sandbox = Sandbox.create()
    sandbox.files.write("health", "its own")
    sandbox.commands.run("python3 -m http.server 3000 --bind 127.0.0.1", background=True)

    def ask(path, port=3000, **headers):
        headers = {"Host": sandbox.get_host(port), **headers}
        request = urllib.request.Request(os.environ["E2B_SANDBOX_URL"] + path, headers=headers)
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    token = {"e2b-traffic-access-token": sandbox.traffic_access_token}
    until(lambda: ask("/", **token)[0] == 200, "its server does not answer")
    # A path that the service has, too, is the server's here.
    assert ask("/health", **token) == (200, "its own")
    for port, headers, status, words in [
        (3000, {}, 403, "E2b-Traffic-Access-Token"),
        (3000, {"e2b-traffic-access-token": "x" * 64}, 403, "token"),
        (3001, token, 502, "nothing answers"),
        (0, token, 400, "65535"),
        (99999, token, 400, "65535"),
    ]:
        found, said = ask("/health", port, **headers)
        assert (found, words in said) == (status, True), (port, found, said)
    sandbox.kill()
    found, said = ask("/health", **token)
    assert (found, "was not found" in said) == (502, True), (found, said)


def owners():
    mine = Sandbox.create()
    stranger = {"api_key": OTHER}
    fails(SandboxNotFoundException, "", lambda: Sandbox.connect(mine.sandbox_id, **stranger))
    assert Sandbox.kill(mine.sandbox_id, **stranger) is False
    fails(SandboxNotFoundException, "", lambda: Sandbox.get_info(mine.sandbox_id, **stranger))
    fails(SandboxNotFoundException, "", lambda: Sandbox.set_timeout(mine.sandbox_id, 0, **stranger))
    assert mine.sandbox_id not in [one.sandbox_id for one in Sandbox.list(**stranger).next_items()]
    fails(AuthenticationException, "401", lambda: Sandbox.create(api_key="x" * 20))
    fails(AuthenticationException, "401", lambda: Sandbox.list(api_key="x" * 20).next_items())
    theirs = Sandbox.create(**stranger)
    # Another sandbox's token does not open this one.
    mixed = Sandbox(
        sandbox_id=mine.sandbox_id,
        sandbox_domain=None,
        envd_version=mine._envd_version,
        envd_access_token=theirs._envd_access_token,
        connection_config=e2b.ConnectionConfig(
            extra_sandbox_headers={
                "E2b-Sandbox-Id": mine.sandbox_id,
                "X-Access-Token": theirs._envd_access_token,
            }
        ),
    )
    for call in [
        lambda: mixed.commands.run("true"),
        lambda: mixed.commands.list(),
        lambda: mixed.files.read("x"),
        lambda: mixed.files.write("x", "x"),
        # More than fits between the two: what is refused is read to its end.
        lambda: mixed.files.write("x", os.urandom(2**23)),
        lambda: mixed.files.list("/"),
    ]:
        fails(AuthenticationException, "token", call)
    assert theirs.kill() and mine.is_running() and mine.kill()


def wrong():
    for fields, words in [
        ({"template": "no/such"}, "no template"),
        ({"timeout": -5}, "timeout"),
        ({"timeout": 10**9}, "86400"),
        ({"envs": {"A=B": "x"}}, "env"),
        ({"allow_internet_access": True}, "allowOut"),
        ({"network": {"allow_out": ["pypi.org"]}}, "--network"),
        ({"network": {"deny_out": ["0.0.0.0/0"]}}, "allowOut"),
        ({"network": {"allow_out": ["pypi.org"], "deny_out": ["1.1.1.1"]}}, "denyOut"),
        ({"network": {"allow_out": ["pypi.org"], "allow_public_traffic": True}}, "allowOut"),
        ({"lifecycle": {"on_timeout": "pause"}}, "autoPause"),
        ({"volume_mounts": {"/data": "volume"}}, "volumes"),
    ]:
        fails(SandboxException, words, lambda: Sandbox.create(**fields))
    for name in ["../x", "", "none", "a/b"]:
        fails(SandboxNotFoundException, "not found", lambda: Sandbox.connect(name))
    fails(SandboxException, "501", lambda: Sandbox.list_snapshots().next_items())


def lists():
    def all_of(**fields):
        paginator, pages = Sandbox.list(**fields), []
        while paginator.has_next:
            pages.append([one.sandbox_id for one in paginator.next_items()])
        return pages

    run = {"run": "a=b&c%", "é": "+ "}
    made = [Sandbox.create(metadata={**run, "n": str(n)}) for n in range(5)]
    names = [one.sandbox_id for one in made]
    mine = SandboxQuery(metadata=run)
    assert all_of(query=mine) == [names[::-1]]
    assert all_of(query=mine, order="asc", limit=2) == [names[:2], names[2:4], names[4:]]
    assert all_of(query=mine, limit=2) == [[names[4], names[3]], [names[2], names[1]], [names[0]]]
    assert all_of(query=SandboxQuery(metadata={**run, "n": "3"})) == [[names[3]]]
    assert all_of(query=SandboxQuery(metadata={"run": "a"})) == [[]]
    assert all_of(query=SandboxQuery(metadata=run, state=[SandboxState.PAUSED])) == [[]]
    both = [SandboxState.PAUSED, SandboxState.RUNNING]
    assert all_of(query=SandboxQuery(metadata=run, state=both)) == [names[::-1]]
    third = made[2].get_info().started_at
    assert all_of(query=SandboxQuery(metadata=run, started_after=third)) == [[names[4], names[3]]]
    # A page goes on where it was, whatever ended meanwhile.
    paginator = Sandbox.list(query=mine, limit=2, order="asc")
    paginator.next_items()
    made[1].kill()
    made[2].kill()
    assert [one.sandbox_id for one in paginator.next_items()] == names[3:]
    fails(SandboxException, "nextToken", lambda: Sandbox.list(next_token="x").next_items())
    fails(SandboxException, "limit", lambda: Sandbox.list(limit=10**6).next_items())
    one = Sandbox.create(metadata=run, idempotency_key="a-key-of-mine")
    assert Sandbox.create(metadata=run, idempotency_key="a-key-of-mine").sandbox_id == one.sandbox_id
    for other in [{}, {"metadata": run, "envs": {"A": "1"}}, {"metadata": run, "timeout": 61}]:
        fails(SandboxException, "409", lambda: Sandbox.create(**other, idempotency_key="a-key-of-mine"))
    at_once = []
    threads = [
        threading.Thread(target=lambda: at_once.append(Sandbox.create(idempotency_key="another").sandbox_id))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(at_once) == 8 and len(set(at_once)) == 1, at_once
    for name in [one.sandbox_id, at_once[0], names[0], names[3], names[4]]:
        assert Sandbox.kill(name) is True


async def asynchronous():
    sandboxes = await asyncio.gather(*(AsyncSandbox.create(timeout=60) for _ in range(8)))

    async def use(n, sandbox):
        await sandbox.files.write("n", str(n))
        handle = await sandbox.commands.run("cat n; cat", background=True, stdin=True)
        await handle.send_stdin(f"+{n}")
        await handle.close_stdin()
        assert (await handle.wait()).stdout == f"{n}+{n}"
        try:
            await sandbox.commands.run("sleep 3000", timeout=0.5)
        except TimeoutException:
            return await sandbox.kill()
        raise AssertionError("it is late")

    assert all(await asyncio.gather(*(use(n, one) for n, one in enumerate(sandboxes))))


TUNNEL = """
import http.client, sys
proxy = http.client.HTTPConnection("127.0.0.1", 4181, timeout=60)
proxy.set_tunnel(sys.argv[1], int(sys.argv[2]))
try:
    proxy.request("GET", "/")
    print(proxy.getresponse().read().decode())
except OSError as error:
    print(error)
"""

HOLD = """
import os, socket, sys, time
proxy = socket.create_connection(("127.0.0.1", 4181))
proxy.sendall(f"CONNECT localhost:{sys.argv[1]} HTTP/1.1\\r\\n\\r\\n".encode())
answer = proxy.recv(12).decode()
open("held.part", "w").write(answer)
os.rename("held.part", "held")
time.sleep(3000)
"""


def network():
    """A server at SERVER_PORT of this machine, which the operator allows under two names."""
    port = os.environ["SERVER_PORT"]
    opened = Sandbox.create(network={"allow_out": [f"localhost:{port}"], "deny_out": lambda ctx: [ctx.all_traffic]})

    def asked(sandbox, *of):
        sandbox.files.write("tunnel.py", TUNNEL)
        return sandbox.commands.run(f"python3 tunnel.py {' '.join(of)}", timeout=PATIENCE).stdout.strip()

    assert asked(opened, "localhost", port) == "page", asked(opened, "localhost", port)
    for host in ["other.test", "127.0.0.1", "169.254.169.254"]:
        assert "403" in asked(opened, host, port), asked(opened, host, port)
    assert opened.commands.run("echo $https_proxy $NO_PROXY").stdout == "http://127.0.0.1:4181 127.0.0.1,localhost\n"
    # The operator allows it, and this sandbox did not ask.
    closed = Sandbox.create()
    assert "refused" in asked(closed, "localhost", port), asked(closed, "localhost", port)
    assert closed.commands.run("echo $https_proxy").stdout == "\n"
    fails(SandboxException, "--network", lambda: Sandbox.create(network={"allow_out": ["other.test"]}))
    # A connection that is open ends with its sandbox.
    opened.files.write("hold.py", HOLD)
    opened.commands.run(f"python3 hold.py {port}", background=True)
    until(lambda: opened.files.exists("held"), "the connection is open")
    assert "200" in opened.files.read("held")
    assert opened.kill() is True and closed.kill() is True


PARTS = {
    "network": [network],
    "life": [life, full],
    "end": [end_of_life, ports, owners, wrong],
    "lists": [lists, lambda: asyncio.run(asynchronous())],
}
for part in PARTS[sys.argv[2]]:
    part()
print("done", flush=True)
# The client's own threads may crash while the interpreter ends, after all that is tested.
os._exit(0)
