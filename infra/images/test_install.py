"""install.sh, run for real in a folder, with programs in place of those that change a machine or need a network."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
SWITCH = "proc/sys/kernel/apparmor_restrict_unprivileged_userns"
SECRET = {name: "content" for name in ("user.nk", "ca.pem", "nats-server.conf", "server.pem", "server.key")}
KEYS = {"AccessKeyId": "ASIA", "SecretAccessKey": "secret", "Token": "token"}
# Each notes its words in the file `calls`. `fail NAME TIMES` ends with 1 at its first so many calls.
NOTE = '''#!/bin/bash
echo "$(basename "$0") $*" >>"$MILLRACE_ROOT/calls"
fail() {
    local left=$MILLRACE_ROOT/fail-$1
    [[ -s $left && $(<"$left") != 0 ]] || return 0
    echo "$(($(<"$left") - 1))" >"$left"
    exit 1
}
'''
PROGRAMS = {
    "apt-get": 'fail apt-get',
    "blkid": 'exit 2',
    "chown": "",
    "curl": f'''[[ $* != *--config* ]] || cat >/dev/null
case ${{*: -1}} in
*/api/token) echo token ;;
*/security-credentials/) echo role ;;
*/security-credentials/role) echo '{json.dumps(KEYS)}' ;;
*) echo '{json.dumps({"SecretString": json.dumps(SECRET)})}' ;;
esac''',
    # Whoever runs the tests owns everything.
    "install": '''words=()
while (($#)); do
    case $1 in -o | -g) shift ;; *) words+=("$1") ;; esac
    shift
done
exec /usr/bin/install "${words[@]}"''',
    "mkfs.ext4": "",
    "mount": '''stat -c "mounted over %a" "$1" >>"$MILLRACE_ROOT/calls"
touch "$MILLRACE_ROOT/mounted"''',
    "mountpoint": '[[ -e $MILLRACE_ROOT/mounted ]]',
    "nvidia-smi": 'for ((n = 0; n < ${GPUS:-0}; n++)); do echo "GPU $n: H100"; done',
    "shutdown": "",
    "sleep": "",
    "systemctl": '[[ $1 != is-active ]]',
    "useradd": "",
}
# The interpreter of the distribution, which makes virtual environments, and that of the environment, which has pip.
PYTHON = f'''[[ $1 == -m ]] || exec {sys.executable} "$@"
mkdir -p "$4/bin" && cp "$(dirname "$0")/of-venv" "$4/bin/python"'''
OF_VENV = '''[[ $1 == -m ]] || exit 0
fail pip
venv=$MILLRACE_ROOT/opt/millrace/venv
mkdir -p "$venv/lib/python3.11/site-packages/torch/lib"
touch "$venv/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so"
printf '#!/bin/bash\\n' >"$venv/bin/nats-server" && chmod +x "$venv/bin/nats-server"'''


class Install(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for place in ("bin", "etc/millrace", "etc/systemd/system", "dev", "var/lib/millrace", "proc/sys/kernel"):
            (self.root / place).mkdir(parents=True)
        for name, text in {**PROGRAMS, "python3": PYTHON, "of-venv": OF_VENV}.items():
            path = self.root / "bin" / name
            path.write_text(NOTE + text + "\n", encoding="utf-8")
            path.chmod(0o755)

    def install(self, *words: str, settings: dict[str, str] | None = None,
                **environment: str) -> subprocess.CompletedProcess[str]:
        lines = {"AWS_REGION": "us-east-1", "MILLRACE_SECRET": "own", **(settings or {})}
        (self.root / "etc/millrace/instance.env").write_text(
            "".join(f"{name}={value}\n" for name, value in lines.items()), encoding="utf-8")
        return subprocess.run([HERE / "install.sh", *words], capture_output=True, text=True, check=False, timeout=60,
                              env={"PATH": f"{self.root}/bin:{os.environ['PATH']}", "MILLRACE_ROOT": str(self.root),
                                   **environment})

    def worker(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.install(settings={"MILLRACE_ROLE": "worker"}, **environment)

    def node(self, **settings: str) -> subprocess.CompletedProcess[str]:
        return self.install(settings={"MILLRACE_ROLE": "nats", "MILLRACE_NODE": "0", "MILLRACE_ADDRESS": "10.0.0.10",
                                      "MILLRACE_PEERS": "10.0.0.10", **settings})

    def fails(self, program: str, times: int) -> None:
        (self.root / f"fail-{program}").write_text(str(times), encoding="utf-8")

    def calls(self, program: str) -> list[str]:
        lines = (self.root / "calls").read_text(encoding="utf-8").splitlines()
        return [line.removeprefix(program).strip() for line in lines if line.split()[:1] == [program]]

    def text(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8")


class Workers(Install):
    def test_users_may_make_namespaces_for_sandboxes(self) -> None:
        for words in ([], ["--image-only"]):
            with self.subTest(words):
                (self.root / SWITCH).write_text("1\n", encoding="utf-8")
                done = self.install(*words, settings={"MILLRACE_ROLE": "worker"})
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(self.text(SWITCH).strip(), "0")
                later = self.root / "etc/sysctl.d/60-millrace.conf"
                self.assertEqual(later.read_text(encoding="utf-8"), "kernel.apparmor_restrict_unprivileged_userns = 0\n")
                later.unlink()

    def test_a_kernel_without_the_switch_and_other_roles_are_left_alone(self) -> None:
        self.assertEqual(self.worker().returncode, 0)
        self.assertFalse((self.root / "etc/sysctl.d/60-millrace.conf").exists())
        (self.root / SWITCH).write_text("1\n", encoding="utf-8")
        done = self.node()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.text(SWITCH), "1\n")

    def test_each_worker_of_a_machine_has_its_metrics_at_a_port_of_its_own(self) -> None:
        done = self.worker(GPUS="12")
        self.assertEqual(done.returncode, 0, done.stderr)
        for copy in range(12):
            text = self.text(f"etc/systemd/system/millrace-worker@{copy}.service.d/http.conf")
            self.assertEqual(text, f"[Service]\nEnvironment=MILLRACE_HTTP_ADDR=0.0.0.0:{9090 + copy}\n")
        self.assertIn("enable --now millrace-worker@11.service", self.calls("systemctl"))


class Retries(Install):
    def test_an_index_that_fails_twice_is_asked_again(self) -> None:
        self.fails("pip", 2)
        done = self.worker()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len([call for call in self.calls("python") if call.startswith("-m pip")]), 3)
        self.assertEqual(self.calls("sleep"), ["2", "4"])
        self.assertIn("enable --now millrace-worker@0.service", self.calls("systemctl"))
        self.assertEqual(self.calls("shutdown"), [])

    def test_packages_are_asked_for_again(self) -> None:
        self.fails("apt-get", 2)
        # A machine without Python has no virtual environments either.
        without = NOTE + "[[ $2 != 'import ensurepip' ]] || exit 1\n" + PYTHON
        (self.root / "bin/python3").write_text(without, encoding="utf-8")
        done = self.worker()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([call.split()[0] for call in self.calls("apt-get")], ["update", "update", "update", "install"])
        for call in self.calls("apt-get"):
            self.assertIn("DPkg::Lock::Timeout=", call)

    def test_an_instance_that_cannot_install_itself_gives_its_place_to_another(self) -> None:
        self.fails("pip", 1000)
        for role in ("worker", "image"):
            with self.subTest(role):
                (self.root / "calls").write_text("", encoding="utf-8")
                done = self.worker() if role == "worker" else self.install("--image-only")
                self.assertEqual(done.returncode, 1)
                self.assertIn("gave up after", done.stderr)
                self.assertEqual(len(self.calls("shutdown")), int(role == "worker"), done.stderr)
                self.assertGreaterEqual(sum(map(int, self.calls("sleep"))), 600)

    def test_a_worker_that_serves_outlives_a_later_run_that_fails(self) -> None:
        self.fails("pip", 1000)
        (self.root / "bin/systemctl").write_text(NOTE, encoding="utf-8")
        self.assertEqual(self.worker().returncode, 1)
        self.assertEqual(self.calls("shutdown"), [])

    def test_a_nats_server_that_nobody_would_replace_is_tried_for_longer(self) -> None:
        self.fails("pip", 40)
        done = self.node()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(sum(map(int, self.calls("sleep"))), 1200)


class Streams(Install):
    def test_nothing_is_written_where_the_device_is_not_mounted(self) -> None:
        (self.root / "dev/data").touch()
        done = self.node(MILLRACE_DATA_DEVICE=f"{self.root}/dev/data")
        self.assertEqual(done.returncode, 0, done.stderr)
        place = self.root / "var/lib/millrace/nats"
        self.assertEqual(self.calls("mounted"), ["over 700"])
        self.assertIn(f"-d -m 0700 -o root -g root {place}", self.calls("install"))
        self.assertEqual(place.stat().st_mode & 0o777, 0o750)
        self.assertIn(f"millrace:millrace {place}", self.calls("chown"))
        line = self.text("etc/fstab").split()
        self.assertEqual(line[:3], [f"{self.root}/dev/data", str(place), "ext4"])
        self.assertEqual(set(line[3].split(",")) & {"nofail", "x-systemd.device-timeout=0"},
                         {"nofail", "x-systemd.device-timeout=0"})
        # systemd reads the table of mounts before the server starts.
        calls = self.text("calls").splitlines()
        later = calls[calls.index(f"mkfs.ext4 -q -L millrace {self.root}/dev/data"):]
        self.assertLess(later.index("systemctl daemon-reload"), later.index("systemctl enable --now nats-server.service"))
        done = self.node(MILLRACE_DATA_DEVICE=f"{self.root}/dev/data")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((len(self.calls("mount")), place.stat().st_mode & 0o777), (1, 0o750))

    def test_a_server_without_a_device_of_its_own_starts_too(self) -> None:
        done = self.node()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.calls("mount"), [])
        self.assertIn(f"-d -m 0750 -o millrace -g millrace {self.root}/var/lib/millrace/nats", self.calls("install"))

    def test_the_bound_of_the_store_follows_the_disk_and_not_what_it_holds(self) -> None:
        store, free = self.root / "var/lib/millrace/nats", self.root / "free"
        df = self.root / "bin/df"
        df.write_text('#!/bin/bash\nprintf "Avail\\n%s\\n" "$(<"$MILLRACE_ROOT/free")"\n', encoding="utf-8")
        df.chmod(0o755)
        free.write_text(str(10 << 30), encoding="utf-8")
        self.assertEqual(self.node().returncode, 0)
        before = self.bound()
        self.assertAlmostEqual(before, 9 << 30, delta=1 << 20)
        (store / "block").write_bytes(os.urandom(64 << 20))
        free.write_text(str((10 << 30) - (64 << 20)), encoding="utf-8")
        self.assertEqual(self.node().returncode, 0)
        self.assertAlmostEqual(self.bound(), before, delta=1 << 20)

    def bound(self) -> int:
        lines = self.text("etc/millrace/nats-server.conf").splitlines()
        return next(int(line.split(":")[1]) for line in lines if "max_file_store" in line)


if __name__ == "__main__":
    unittest.main()
