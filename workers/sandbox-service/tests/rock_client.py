"""Drives the service by ROCK's own client, as its users would. The address and a key are arguments."""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from rock.actions import (
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    WriteFileRequest,
)
from rock.actions.sandbox.request import BashAction
from rock.sdk.sandbox.client import Sandbox, SandboxGroup
from rock.sdk.sandbox.config import SandboxConfig, SandboxGroupConfig

ADDRESS, KEY, OTHER = sys.argv[1:4]


def config(key=KEY, **fields):
    return SandboxConfig(base_url=ADDRESS, extra_headers={"Authorization": f"Bearer {key}"}, **fields)


async def fails(awaitable, words):
    try:
        result = await awaitable
    except Exception as error:
        assert words in str(error), f"{words!r} is not in {error}"
        return
    raise AssertionError(f"it must fail with {words!r}, and is {result!r}")


async def commands(sandbox):
    ran = await sandbox.execute(Command(command=["python3", "-c", "import sys; print(input); sys.exit(3)"]))
    assert (ran.exit_code, ran.stdout) == (3, "<built-in function input>\n"), ran
    ran = await sandbox.execute(Command(command="echo $A; pwd >&2", env={"A": "b"}, cwd="/tmp"))
    assert (ran.exit_code, ran.stdout, ran.stderr) == (0, "b\n", "/tmp\n"), ran
    await fails(sandbox.execute(Command(command="sleep 100", timeout=0.3)), "longer than")
    await fails(sandbox.execute(Command(command="true", timeout=-1)), "above 0")


async def sessions(sandbox):
    await sandbox.create_session(CreateBashSessionRequest(session="main", env={"A": "it's"}))
    await fails(sandbox.create_session(CreateBashSessionRequest(session="main")), "already exists")

    async def run(command, **fields):
        return await sandbox._run_in_session(BashAction(session="main", command=command, **fields))

    assert (await run("cd /tmp && B=2")).exit_code == 0
    ran = await run("echo \"$A $B\" 'quo'\"'\"'ted'; pwd; echo err >&2")
    assert ran.output == "it's 2 quo'ted\n/tmp\nerr", ran
    ran = await run("for i in 1 2; do\n  echo $i\ndone\ncat <<EOF\nhere $B\nEOF")
    assert ran.output == "1\n2\nhere 2", ran
    # It reads nothing that is meant for the shell, and what it leaves unquoted is its own failure.
    assert (await run("cat; read x; echo \"[$x]\"", check="silent")).output == "[]"
    ran = await run("echo 'open", check="silent")
    assert ran.exit_code != 0 and "unexpected EOF" in ran.output, ran
    await fails(run("ls /no/such"), "No such file")
    ran = await run("false", check="silent")
    assert ran.exit_code == 1, ran
    assert (await run("false", check="ignore")).exit_code is None
    assert (await run("echo still here")).output == "still here"
    started = time.monotonic()
    ran = await sandbox.arun("sleep 1; echo slow", session="main", mode="nohup", wait_interval=5)
    assert (ran.output.strip(), ran.exit_code) == ("slow", 0), ran
    assert time.monotonic() - started < 60
    # Each makes a session that nobody closes, and the one that has a state stays.
    for _ in range(100):
        assert (await sandbox.arun("echo x")).output == "x"
    assert (await run("echo $B")).output == "2"
    # A command that is late takes its session along: nothing it writes later is taken for another's.
    await sandbox.create_session(CreateBashSessionRequest(session="late"))
    late = BashAction(session="late", command="trap '' TERM; (sleep 2; echo stale) & sleep 100", timeout=1)
    await fails(sandbox._run_in_session(late), "")
    await fails(sandbox._run_in_session(BashAction(session="late", command="echo next")), "create it again")
    await sandbox.create_session(CreateBashSessionRequest(session="late"))
    assert (await sandbox._run_in_session(BashAction(session="late", command="echo next"))).output == "next"
    ran = await sandbox.execute(Command(command="grep -las ^sleep /proc/[0-9]*/cmdline | wc -l"))
    assert ran.stdout.strip() == "0", ran
    await sandbox.close_session(CloseBashSessionRequest(session="late"))
    await fails(sandbox._run_in_session(BashAction(session="late", command="echo")), "create it")


async def files(sandbox):
    text = "häm\n" * 50_000
    assert (await sandbox.write_file(WriteFileRequest(path="/tmp/a/b.txt", content=text))).success
    assert (await sandbox.read_file(ReadFileRequest(path="/tmp/a/b.txt"))).content == text
    await sandbox.write_file_by_path("x", "relative.txt")
    assert (await sandbox.execute(Command(command=["cat", "/home/user/relative.txt"]))).stdout == "x"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "data.bin"
        source.write_bytes(bytes(range(256)) * 8_000)
        sent = await sandbox.upload_by_path(source, "/data/in/data.bin")
        assert sent.success, sent
    ran = await sandbox.execute(Command(command="stat -c %s /data/in/data.bin; head -c 300 /data/in/data.bin | tail -c 1 | od -An -tx1"))
    assert ran.stdout == "2048000\n 2b\n", ran
    latin = await sandbox.read_file(ReadFileRequest(path="/data/in/data.bin", encoding="latin-1"))
    assert len(latin.content) == 2_048_000
    # `../` leads no further than the sandbox's own root.
    outside = "../" * 30 + str(Path(__file__).resolve())[1:]
    refused = await sandbox.write_file(WriteFileRequest(path="/usr/bin/planted", content=""))
    assert not refused.success and "Read-only" in refused.message, refused
    for path in [outside, "/tmp/none", "/dev/zero"]:
        try:
            await sandbox.read_file(ReadFileRequest(path=path))
        except KeyError:
            continue
        raise AssertionError(f"{path} was read")


async def life():
    sandbox = Sandbox(config(user_id="me", experiment_id="x", memory="512m"))
    await sandbox.start()
    assert await sandbox.is_alive()
    status = await sandbox.get_status()
    assert (status.user_id, status.memory, status.state) == ("me", "512m", "running"), status
    await commands(sandbox)
    await sessions(sandbox)
    await files(sandbox)
    other = Sandbox(config(OTHER))
    await fails(other.attach(sandbox.sandbox_id), "not there")
    same = Sandbox(config())
    await same.attach(sandbox.sandbox_id)
    assert (await same.execute(Command(command=["cat", "/tmp/a/b.txt"]))).stdout.startswith("häm")
    await sandbox.stop()
    await fails(sandbox.get_status(), "not there")
    assert (await sandbox.get_status(include_all_states=True)).state == "stopped"
    await fails(sandbox.execute(Command(command="true")), "not there")


async def wrong():
    for fields, words in [
        ({"image": "no/such:image"}, "image"),
        ({"memory": "lots"}, "512m"),
        ({"sandbox_id": "../up"}, "letters"),
        ({"num_gpus": 1}, "num_gpus"),
    ]:
        await fails(Sandbox(config(**fields)).start(), words)
    await fails(Sandbox(config("x" * 20)).start(), "401")
    first = Sandbox(config(sandbox_id="named"))
    await first.start()
    await fails(Sandbox(config(sandbox_id="named")).start(), "of this name")
    await first.stop()
    group = SandboxGroup(SandboxGroupConfig(base_url=ADDRESS, extra_headers=config().extra_headers, size=4))
    await group.start()
    await group.stop()


async def commits():
    sandbox = Sandbox(config())
    await sandbox.start()
    await sandbox.execute(Command(command="mkdir work && echo kept > work/file && mkfifo work/pipe"))
    # What runs goes on, and its session knows what it knew.
    await sandbox.create_session(CreateBashSessionRequest(session="main"))
    counting = "A=1; (while echo x; do sleep 0.01; done) >> ticks & echo $!"
    await sandbox._run_in_session(BashAction(session="main", command=counting))
    done = await sandbox.commit("saved-one:1", "nobody", "no password", interval=0.1)
    assert done.phase == "SUCCEEDED" and done.exit_code == 0 and done.completed_at, done
    assert (await sandbox.get_commit_status()).image_tag == "saved-one:1"
    ticks = (await sandbox.execute(Command(command="wc -c < ticks"))).stdout
    ran = await sandbox._run_in_session(
        BashAction(session="main", command=f"until [ $(wc -c < ticks) -gt {ticks.strip()} ]; do :; done; echo $A")
    )
    assert ran.output == "1", ran
    await sandbox.stop()
    await fails(sandbox.get_commit_status(), "not there")
    later = Sandbox(config(image="saved-one:1"))
    await later.start()
    await fails(later.get_commit_status(), "never committed")
    ran = await later.execute(Command(command="cat work/file; test -p work/pipe && echo pipe; pgrep -c sleep"))
    assert ran.stdout == "kept\npipe\n0\n", ran
    for name, words in [("other:1", "saved-"), ("saved-../x", "NAME:TAG")]:
        await fails(later.commit(name, "", ""), words)
    done = await later.commit("saved-:", "", "", interval=0.1)
    assert done.phase == "FAILED" and "image name" in done.error_message, done
    await later.stop()


async def restarts():
    sandbox = Sandbox(config(auto_delete_seconds=600))
    await sandbox.start()
    await sandbox.create_session(CreateBashSessionRequest(session="main"))
    await sandbox.execute(Command(command="echo kept > file"))
    await sandbox.stop()
    assert (await sandbox.get_status(include_all_states=True)).state == "stopped"
    await sandbox.restart()
    assert (await sandbox.execute(Command(command="cat file"))).stdout == "kept\n"
    await fails(sandbox._run_in_session(BashAction(session="main", command="true")), "create it")
    await sandbox.delete()
    await fails(sandbox.restart(), "nothing of it is left")
    await fails(Sandbox(config(auto_archive_seconds=9)).start(), "auto_delete_seconds")


asyncio.run(life())
asyncio.run(restarts())
asyncio.run(wrong())
asyncio.run(commits())
print("done")
