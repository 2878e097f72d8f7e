"""The units by systemd's own checker, and what the scripts refuse: `python3 -m unittest discover -s infra/images`."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKER = shutil.which("systemd-analyze")


def verify(unit: str, text: str) -> str:
    """What `systemd-analyze verify` says. It ends with 0 for a setting that it does not know, so its words count."""
    with tempfile.TemporaryDirectory() as folder:
        # The programs are on an instance, not here.
        for program in ("/opt/millrace/venv/bin/nats-server", "/opt/millrace/current/bin/millrace-worker",
                        "/opt/millrace/current/bin/millrace"):
            text = text.replace(program + " ", "/bin/true ").replace(program + "\n", "/bin/true\n")
        path = Path(folder, unit)
        path.write_text(text, encoding="utf-8")
        done = subprocess.run([CHECKER, "verify", "--man=no", path], capture_output=True, text=True, check=False)
        return done.stderr


def script(name: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HERE / name, *words], capture_output=True, text=True, check=False,
                          env={"PATH": os.environ["PATH"], **environment})


@unittest.skipUnless(CHECKER, "no systemd-analyze: the units are not checked")
class Units(unittest.TestCase):
    def test_systemd_has_nothing_to_say(self) -> None:
        units = sorted((HERE / "systemd").iterdir())
        self.assertEqual(len(units), 3)
        for unit in units:
            with self.subTest(unit.name):
                self.assertEqual(verify(unit.name, unit.read_text(encoding="utf-8")), "")

    def test_a_setting_of_a_wrong_name_is_found(self) -> None:
        text = (HERE / "systemd/nats-server.service").read_text(encoding="utf-8")
        self.assertIn("TimeoutStopSecs", verify("nats-server.service", text.replace("StopSec=", "StopSecs=")))

    def test_no_unit_runs_as_root_or_writes_elsewhere(self) -> None:
        for unit in (HERE / "systemd").iterdir():
            lines = unit.read_text(encoding="utf-8").splitlines()
            for line in ("User=millrace", "NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet=",
                         "KillMode=mixed"):
                self.assertIn(line, lines, unit.name)

    def test_a_worker_may_make_control_groups_for_its_sandboxes(self) -> None:
        lines = (HERE / "systemd/millrace-worker@.service").read_text(encoding="utf-8").splitlines()
        self.assertIn("Delegate=memory", lines)
        # It would make the folder of groups one to read.
        self.assertNotIn("ProtectControlGroups=yes", lines)


    def test_all_workers_of_a_machine_share_the_file_that_tells_the_last_one(self) -> None:
        lines = (HERE / "systemd/millrace-worker@.service").read_text(encoding="utf-8").splitlines()
        [lock] = [line.partition("MILLRACE_MACHINE_LOCK=")[2] for line in lines if "MILLRACE_MACHINE_LOCK=" in line]
        [writable] = [line.partition("=")[2] for line in lines if line.startswith("ReadWritePaths=")]
        self.assertTrue(Path(lock).is_relative_to(writable), lock)
        # With PrivateTmp each instance of the unit would have a file of its own there.
        self.assertNotIn("%i", lock)

    def test_a_worker_may_use_gpus(self) -> None:
        keys = {line.partition("=")[0] for line in
                (HERE / "systemd/millrace-worker@.service").read_text(encoding="utf-8").splitlines()}
        # Each of them leaves the unit the devices that it names: ProtectClock= the clock's, for reading.
        self.assertEqual(keys & {"PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock"}, set())

    def test_a_nats_server_waits_until_the_device_of_its_streams_is_mounted(self) -> None:
        lines = (HERE / "systemd/nats-server.service").read_text(encoding="utf-8").splitlines()
        install = (HERE / "install.sh").read_text(encoding="utf-8")
        self.assertIn('state=$root/var/lib/millrace\n', install)
        self.assertIn('mount_data "$device" "$state/nats"\n', install)
        self.assertIn("RequiresMountsFor=/var/lib/millrace/nats", lines)

    def test_metrics_of_a_coordinator_are_at_a_known_port(self) -> None:
        lines = (HERE / "systemd/millrace-coordinator.service").read_text(encoding="utf-8").splitlines()
        self.assertIn("Environment=MILLRACE_HTTP_ADDR=0.0.0.0:9090", lines)


class Node(unittest.TestCase):
    SETTINGS = {"MILLRACE_NODE": "1", "MILLRACE_ADDRESS": "10.0.1.10", "MILLRACE_PEERS": "10.0.0.10,10.0.1.10"}

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.secrets = Path(folder.name, "secrets")
        self.secrets.mkdir()
        for name in ("nats-server.conf", "server.pem", "server.key", "ca.pem"):
            (self.secrets / name).write_text("", encoding="utf-8")

    def node(self, **settings: str) -> subprocess.CompletedProcess[str]:
        return script("nats-node.sh", str(self.secrets), "/streams", **{**self.SETTINGS, **settings})

    def test_a_node_knows_its_peers(self) -> None:
        done = self.node()
        self.assertEqual(done.returncode, 0, done.stderr)
        for words in ('server_name: "nats-1"', '"nats-route://10.0.0.10:6222"', "verify: true", 'store_dir: "/streams"',
                      "max_file_store: "):
            self.assertIn(words, done.stdout)

    def test_a_node_alone_has_no_cluster(self) -> None:
        self.assertNotIn("cluster {", self.node(MILLRACE_PEERS="10.0.1.10").stdout)

    def test_mistakes_are_named(self) -> None:
        self.assertIn("MILLRACE_PEERS=10.0.0.10 does not name", self.node(MILLRACE_PEERS="10.0.0.10").stderr)
        self.assertIn("MILLRACE_NODE is not set", self.node(MILLRACE_NODE="").stderr)
        (self.secrets / "ca.pem").unlink()
        self.assertIn("ca.pem", self.node().stderr)


class Image(unittest.TestCase):
    def test_arguments_are_checked_before_anything_is_started(self) -> None:
        done = script("build-ami.sh", "--image", "ami-1", "--subnet", "subnet-1", "--profile", "p", "--bucket", "b")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--release is missing", done.stderr)
        done = script("build-ami.sh", "--image", "ami-1", "--subnet", "subnet-1", "--profile", "p", "--bucket", "b",
                      "--release", "v1")
        self.assertIn("no sha256", done.stderr)

    def test_the_root_disk_has_the_name_that_the_image_gives_it(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "aws").write_text("""#!/bin/bash
echo "$*" >>"$CALLS"
case "$1 $2" in
"configure get") echo us-east-1 ;;
"ec2 describe-images") echo "$DISK" ;;
"ec2 run-instances") echo i-1 ;;
"ec2 describe-instances") echo stopped ;;
"ec2 create-image") echo ami-2 ;;
esac
""", encoding="utf-8")
            (Path(folder) / "aws").chmod(0o755)
            arguments = ["--image", "ami-1", "--subnet", "subnet-1", "--profile", "p", "--bucket", "b",
                         "--release", "0" * 64]
            variables = {"PATH": f"{folder}:{os.environ['PATH']}", "CALLS": f"{folder}/calls"}
            done = script("build-ami.sh", *arguments, **variables, DISK="/dev/xvda")
            self.assertEqual((done.returncode, done.stdout), (0, "ami-2\n"), done.stderr)
            self.assertIn("DeviceName=/dev/xvda,Ebs={VolumeSize=40", (Path(folder) / "calls").read_text(encoding="utf-8"))
            done = script("build-ami.sh", *arguments, **variables, DISK="None")
            self.assertEqual(done.returncode, 2)
            self.assertIn("--image ami-1 has no root device", done.stderr)


if __name__ == "__main__":
    unittest.main()
