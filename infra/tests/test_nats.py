"""The chart's configuration of nats-server, as three servers with TLS and users on this machine: they form a cluster, a
coordinator keeps three copies on it, and a lost server is reported."""

import os
import pathlib
import re
import subprocess
import unittest

import yaml

import live
from test_compose import free_ports

HELM = live.ROOT / "target/tools/helm"
CHART = live.ROOT / "infra/chart"


def rendered():
    command = [HELM, "template", "rl", CHART, "--namespace", "ml", "--kube-version", "1.34.4",
               "--values", CHART / "tests/values/production.yaml"]
    return list(yaml.safe_load_all(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


@live.needs("millrace", "nats-server")
@unittest.skipUnless(HELM.exists(), "no target/tools/helm; infra/dev/checks.sh makes it")
class Cluster(unittest.TestCase):
    def place(self, fleet, manifests):
        """Lays out the Secret's files as the pod mounts them, with the configuration beside them."""
        made = fleet.folder / "auth"
        etc = fleet.folder / "etc"
        subprocess.run([live.program("millrace"), "init-auth", "--dir", made, "--place", etc / "millrace",
                        "--host", "127.0.0.1", "--combine", "train_shard,publish_weights"], check=True, capture_output=True)
        keys = {"nats-server.conf": made / "nats-server.conf", "server.pem": made / "tls/server.pem",
                "server.key": made / "tls/server.key", "ca.pem": made / "tls/ca.pem"}
        stateful = next(m for m in manifests if m["kind"] == "StatefulSet" and m["metadata"]["name"].endswith("-nats"))
        volumes = {volume["name"]: volume for volume in stateful["spec"]["template"]["spec"]["volumes"]}
        for item in volumes["secrets"]["secret"]["items"]:
            target = etc / "millrace" / item["path"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(keys[item["key"]].read_bytes())
        (etc / "nats").mkdir()
        return made, etc

    def test_three_servers_keep_three_copies_and_a_lost_one_is_reported(self):
        manifests = rendered()
        config = next(m for m in manifests if m["kind"] == "ConfigMap" and "nats.conf" in m["data"])["data"]["nats.conf"]
        with live.Fleet() as fleet:
            fleet.nats.stop()
            made, etc = self.place(fleet, manifests)
            clients, routes = free_ports(3), free_ports(3)
            servers = []
            for number in range(3):
                text = config.replace('"0.0.0.0:4222"', f'"127.0.0.1:{clients[number]}"')
                text = text.replace('"0.0.0.0:8222"', '"127.0.0.1:-1"').replace('"0.0.0.0:6222"', f'"127.0.0.1:{routes[number]}"')
                text = text.replace('"/data"', f'"{fleet.folder}/data-{number}"').replace("180G", "8G")
                text = text.replace("/etc/millrace/", f"{etc}/millrace/").replace("/var/run/nats/", f"{fleet.folder}/{number}-")
                for peer in range(3):
                    text = re.sub(rf"nats-route://\S+-{peer}\.\S+:6222", f"nats-route://127.0.0.1:{routes[peer]}", text)
                self.assertNotIn(".svc:", text)
                path = etc / f"nats/nats-{number}.conf"
                path.write_text(text)
                servers.append(fleet._start(f"nats-{number}", [live.program("nats-server"), "--config", path],
                                            POD_NAME=f"rl-millrace-nats-{number}"))
            fleet.url = ",".join(f"tls://127.0.0.1:{port}" for port in clients)
            command = [live.program("millrace"), "coordinator", "--id", "coordinator-0", "--replicas", "3", *fleet.where()]
            secret = {"MILLRACE_NATS_NKEY": str(made / "keys/coordinator.nk"), "MILLRACE_NATS_TLS_CA": str(made / "tls/ca.pem")}

            def leads():
                # Before the cluster has a leader of its own, a coordinator ends, and is started again, as in a pod.
                if not running or running[-1].child.poll() is not None:
                    running.append(fleet._start("coordinator", command, **secret))
                return re.search(r"^millrace_leader 1$", running[-1].metrics(), re.M) and running[-1]

            running = []
            coordinator = live.wait_for("a coordinator leads", leads)
            current = lambda: re.search(r'^millrace_stream_current_copies\{stream="MILLRACE_LOG"\} (\d)$',
                                        coordinator.metrics(), re.M)[1]
            live.wait_for("three copies are current", lambda: current() == "3")
            self.assertIn('millrace_stream_copies{stream="MILLRACE_LOG"} 3', coordinator.metrics())
            servers[0].stop(live.signal.SIGKILL)
            live.wait_for("one copy is away", lambda: current() == "2")


if __name__ == "__main__":
    unittest.main()
