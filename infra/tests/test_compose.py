"""The compose file is what compose-go takes, its containers are guarded, and its commands and variables play a run: the same
words, as processes of this machine, with the addresses of containers replaced. No container is started."""

import os
import re
import socket
import subprocess
import unittest

import yaml

import live

FOLDER = live.ROOT / "infra/compose"
COMPOSE = live.ROOT / "target/tools/compose"
KEYS = {"S3_ACCESS_KEY": "key", "S3_SECRET_KEY": "secret-key"}
PROGRAMS = ("coordinator-0", "coordinator-1", "generate", "env", "train")


def load(**variables):
    environment = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run([COMPOSE, FOLDER / "compose.yaml"], capture_output=True, text=True, env=environment, timeout=60)


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [bound.getsockname()[1] for bound in sockets]
    for bound in sockets:
        bound.close()
    return ports


@unittest.skipUnless(COMPOSE.exists(), "no target/tools/compose; infra/dev/checks.sh makes it")
class Compose(unittest.TestCase):
    def project(self):
        done = load(**KEYS)
        self.assertEqual(done.returncode, 0, done.stderr)
        return yaml.safe_load(done.stdout)

    def test_keys_have_no_default(self):
        done = load()
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("set S3_SECRET_KEY in .env", done.stderr)
        named = set(re.findall(r"^(\w+)=", (FOLDER / "env.example").read_text(), re.M))
        used = set(re.findall(r"\$\{(\w+)", (FOLDER / "compose.yaml").read_text()))
        self.assertLessEqual(set(KEYS), named)
        self.assertLessEqual(named, used)

    def test_our_containers_have_no_privileges(self):
        services = self.project()["services"]
        for name in PROGRAMS:
            with self.subTest(name):
                service = services[name]
                self.assertRegex(service["user"], r"^[1-9]\d*:[1-9]\d*$")
                self.assertTrue(service["read_only"])
                self.assertEqual(service["cap_drop"], ["ALL"])
                self.assertIn("no-new-privileges:true", service["security_opt"])
        for name, service in services.items():
            self.assertNotIn("privileged", service, name)
            for port in service.get("ports", []):
                self.assertEqual(port["host_ip"], "127.0.0.1", name)

    def test_sandboxes_have_the_seccomp_profile_of_the_chart(self):
        services = self.project()["services"]
        [served] = [name for name in PROGRAMS if "reward" in services[name]["environment"].get("MILLRACE_STAGES", "")]
        options = dict(option.split("=") for option in services[served]["security_opt"] if "=" in option)
        self.assertEqual((FOLDER / options["seccomp"]).resolve(), live.ROOT / "infra/chart/files/millrace-sandbox.json")
        # The runtime's profile refuses every mount; one that is not loaded would keep the container from starting.
        self.assertEqual(options["apparmor"], "docker-default")
        loaded = yaml.safe_load(load(**KEYS, MILLRACE_APPARMOR="millrace-sandbox").stdout)["services"][served]
        self.assertIn("apparmor=millrace-sandbox", loaded["security_opt"])

    def test_containers_end_later_than_their_grace(self):
        for name in ("generate", "env", "train"):
            service = self.project()["services"][name]
            stop = int(re.match(r"(\d+)s", service["stop_grace_period"])[1])
            self.assertGreaterEqual(stop - int(service["environment"]["MILLRACE_GRACE"]), 20)

    def test_all_stages_are_served(self):
        services = self.project()["services"]
        served = {stage for name in ("generate", "env", "train")
                  for stage in services[name]["environment"]["MILLRACE_STAGES"].split(",")}
        self.assertEqual(served, {"generate", "env_step", "reward", "train_shard", "publish_weights"})

    def test_what_is_mounted_exists_and_prometheus_knows_the_services(self):
        services = self.project()["services"]
        for name, service in services.items():
            for volume in service.get("volumes", []):
                if volume["type"] == "bind":
                    self.assertTrue(os.path.exists(volume["source"]), f"{name}: {volume['source']}")
        config = yaml.safe_load((live.ROOT / "infra/prometheus/prometheus.yml").read_text())
        targets = {host for job in config["scrape_configs"] for dns in job["dns_sd_configs"] for host in dns["names"]}
        self.assertEqual(targets, set(PROGRAMS))

    @live.needs("millrace", "millrace-worker", "nats-server", "weed")
    def test_its_commands_and_variables_play_a_run(self):
        project = self.project()
        services = project["services"]
        with live.Fleet() as fleet:
            fleet.nats.stop()
            nats_port, s3_port, *others = free_ports(10)
            text = project["configs"]["nats"]["content"].replace("0.0.0.0:4222", f"127.0.0.1:{nats_port}")
            config = fleet.folder / "nats.conf"
            config.write_text(text.replace('"/data"', f'"{fleet.folder}/data"'))
            swap = {"/etc/nats/nats.conf": str(config), "nats://nats:4222": f"nats://127.0.0.1:{nats_port}",
                    "http://s3:8333": f"http://127.0.0.1:{s3_port}", "0.0.0.0:9090": "127.0.0.1:0",
                    "-dir=/data": f"-dir={fleet.folder}/objects", "-ip=s3": "-ip=127.0.0.1",
                    "-ip.bind=0.0.0.0": "-ip.bind=127.0.0.1", "-s3.port=8333": f"-s3.port={s3_port}"}
            local = lambda word: swap.get(word, word)

            def start(name, *more):
                command = [local(word) for word in services[name]["command"]]
                command[0] = live.program(command[0])
                variables = {key: local(value) for key, value in services[name].get("environment", {}).items()}
                return fleet._start(name, [*command, *more], **variables)

            start("nats")
            # All servers of this one get ports of their own, beside each other on this machine.
            names = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port",
                     "filer.port.grpc", "s3.port.grpc", "admin.port")
            services["s3"]["command"].insert(0, "weed")
            grpc = free_ports(1)[0]
            start("s3", *(f"-{name}={port}" for name, port in zip(names, others)), f"-admin.port.grpc={grpc}")
            fleet.url = swap["nats://nats:4222"]
            live.wait_for("S3 listens", lambda: socket.create_connection(("127.0.0.1", s3_port), 1).close() or True)
            processes = [start(name) for name in PROGRAMS]
            fleet.submit("compose", 8)
            live.wait_for("the run ends", lambda: fleet.status("compose")["state"] == "finished")
            pages = [live.fetch(process.address(), "/healthz") for process in processes]
            self.assertTrue(all('"connected":true' in page for page in pages), pages)


class Image(unittest.TestCase):
    def instructions(self):
        text = (FOLDER / "Containerfile").read_text()
        text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.M))
        return [line.split(None, 1) for line in text.splitlines() if line.strip()]

    def test_it_runs_as_a_user_without_rights_and_installs_what_is_named_by_hash(self):
        lines = self.instructions()
        last_stage = max(at for at, (word, _) in enumerate(lines) if word == "FROM")
        users = [rest for word, rest in lines[last_stage:] if word == "USER"]
        self.assertEqual(users, ["10001:10001"])
        self.assertNotIn("ADD", [word for word, _ in lines])
        runs = " ".join(rest for word, rest in lines if word == "RUN")
        self.assertIn("sha256sum --check --strict", runs)
        self.assertIn("--require-hashes", runs)
        # A shell as the first process would not pass SIGTERM on.
        self.assertTrue(all(rest.startswith("[") for word, rest in lines if word in ("CMD", "ENTRYPOINT")))


if __name__ == "__main__":
    unittest.main()
