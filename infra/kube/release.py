"""What a person does with the chart: the Secrets, `helm install` and `helm upgrade`, and `millrace` commands from outside."""

import base64
import json
import os
import re
import socket
import subprocess
import threading
import tomllib
import urllib.request
from pathlib import Path

from cluster import ADDRESS, Cluster, Failed

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CHART = HERE.parent / "chart"
NAMESPACE, RELEASE = "rl", "rl"
FULL = f"{RELEASE}-millrace"
GENERATE = f"{FULL}-generate"
NATS_HOST = f"{FULL}-nats-0.{FULL}-nats.{NAMESPACE}.svc"
# Secrets of the values, by the names of their users' keys.
ROLES = {"coordinator": "coordinator", "generate": "generate", "env_step-reward": "env-step-reward",
         "train_shard-publish_weights": "train-shard-publish-weights"}
S3 = {"AWS_ACCESS_KEY_ID": "millrace", "AWS_SECRET_ACCESS_KEY": "a-key-of-this-life"}
BASE = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{GENERATE}"


class Release:
    """One release of the chart in a cluster."""

    def __init__(self, cluster: Cluster, programs: Path):
        self.cluster, self.programs, self.folder = cluster, programs, cluster.folder
        self.bounds = {"min": 0, "max": 1}

    def secrets(self) -> None:
        """Keys and certificates as the chart's README makes them, and what the cluster's owner provides: a volume."""
        auth = self.folder / "auth"
        words = ["--combine", "env_step,reward", "--combine", "train_shard,publish_weights", "--host", NATS_HOST]
        subprocess.run([self.programs / "millrace", "init-auth", "--dir", auth, "--place", "/etc/millrace", *words],
                       check=True, stdout=subprocess.DEVNULL)
        authority = auth / "tls/ca.pem"
        files = {"nats": {"nats-server.conf": auth / "nats-server.conf", "server.pem": auth / "tls/server.pem",
                          "server.key": auth / "tls/server.key", "ca.pem": authority}}
        files |= {name: {"user.nk": auth / f"keys/{key}.nk", "ca.pem": authority} for key, name in ROLES.items()}
        encode = lambda data: base64.b64encode(data).decode()  # noqa: E731
        secrets = [secret(f"millrace-{name}", {key: encode(path.read_bytes()) for key, path in each.items()})
                   for name, each in files.items()]
        keys = secret("s3-keys", {key: encode(value.encode()) for key, value in S3.items()})
        # Pods that do not meet the restricted standard are refused.
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {
            "name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
        room = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "streams"}, "spec": {
            "capacity": {"storage": "100Gi"}, "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": str(self.folder / "streams")}}}
        self.cluster.apply(space, room, *secrets, keys)

    def s3(self, weed: Path) -> None:
        """SeaweedFS on the node, with keys and a bucket."""
        ports = ["s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc",
                 "filer.port", "filer.port.grpc", "admin.port", "admin.port.grpc"]
        self.cluster.start("weed", "mini", f"-dir={self.folder}/objects", "-bucket=millrace", f"-ip={ADDRESS}",
                           f"-ip.bind={ADDRESS}", "-master.telemetry=false", "-admin.ui=false", "-webdav=false",
                           "-s3.port.iceberg=0", "-s3.port.lance=0",
                           *(f"-{name}={8333 + at}" for at, name in enumerate(ports)), program=str(weed), **S3)

    def helm(self, verb: str, **bounds: int) -> None:
        """Installs or upgrades with other bounds of the pool `generate`."""
        self.bounds |= bounds
        words = [f"--set=pools.generate.scaling.{name}={value}" for name, value in self.bounds.items()]
        self.cluster.helm(verb, RELEASE, CHART, f"--namespace={NAMESPACE}", f"--values={HERE / 'values.yaml'}", *words)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`millrace` of a person who may submit runs and read."""
        access = {"NATS_URL": f"tls://{NATS_HOST}:4222", "MILLRACE_NATS_NKEY": str(self.folder / "auth/keys/submitter.nk"),
                  "MILLRACE_NATS_TLS_CA": str(self.folder / "auth/tls/ca.pem"), "MILLRACE_OBJECTS": "s3://millrace/objects",
                  "AWS_ENDPOINT": f"http://{ADDRESS}:8333", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1", **S3}
        return subprocess.run([self.programs / "millrace", *words], capture_output=True, text=True, timeout=60, check=False,
                              env={**os.environ, "HOME": str(self.folder), **access})

    def status(self, run: str) -> dict:
        """The run as `millrace status --json` tells it; empty while no coordinator answers."""
        done = self.command("status", run, "--json")
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def live(self) -> int | None:
        """Generate workers that the leader counts: those that live and do not leave. ``None`` while nobody leads.

        The leader alone listens for KEDA."""
        for pod in self.ready("coordinator"):
            address = pod["status"]["podIP"]
            try:
                socket.create_connection((address, 6000), 1).close()
                with urllib.request.urlopen(f"http://{address}:9090/metrics", timeout=5) as answer:
                    text = answer.read().decode()
            except OSError:
                continue
            found = re.search(r'^millrace_scale_live_workers\{pool="generate"\} (\S+)$', text, re.M)
            return int(float(found[1])) if found else None
        return None

    def pods(self, component: str = "") -> list[dict]:
        """The pods of a part of the release that are not about to go."""
        pods = self.cluster.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods")
        label = "app.kubernetes.io/component"
        return [pod for pod in pods if component in ("", pod["metadata"]["labels"].get(label))]

    def ready(self, component: str = "") -> list[dict]:
        return [pod for pod in self.pods(component) if is_ready(pod) and not pod["metadata"].get("deletionTimestamp")]


def secret(name: str, data: dict[str, str]) -> dict:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE}, "data": data}


def is_ready(pod: dict) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions") or [])


class Work:
    """FrozenLake, run after run, for as long as the pool is to have work: on a fast computer one run is soon over."""

    # Of a run; and so many before its end, the next one is submitted.
    STEPS, OVERLAP = 16, 4
    # In a batch: twice the file's, so that five workers of one turn at a time are needed on a fast computer too.
    GROUPS = 64

    def __init__(self, release: Release):
        self.release, self.runs, self.failed = release, [], ""
        self.enough, self.over = threading.Event(), threading.Event()
        self.text = (ROOT / "broker/coordinator/runs/frozen-lake-surroundings.toml").read_text(encoding="utf-8")

    def submit(self) -> None:
        """The next run, with a seed of its own."""
        own = tomllib.loads(self.text)
        # An evaluation of all its prompts by one worker would be most of the life.
        prompts = f"\nprompts = {own['evaluate']['prompts']}\n"
        groups = f"groups_per_step = {own['rollout']['groups_per_step']} "
        number = len(self.runs) + 1
        name = f"frozen-lake-{number}"
        text = self.text
        for old, new in ((f'name = "{own["name"]}"', f'name = "{name}"'), (f"\nseed = {own['seed']} ", f"\nseed = {number} "),
                         (f"\nsteps = {own['steps']} ", f"\nsteps = {self.STEPS} "),
                         (groups, f"groups_per_step = {self.GROUPS} "), (prompts, "\nprompts = 64\n")):
            if text.count(old) != 1:
                raise Failed(f"the run file has no line {old!r}")
            text = text.replace(old, new)
        path = self.release.folder / f"{name}.toml"
        path.write_text(text, encoding="utf-8")
        must(self.release.command("submit", str(path)), "the run is refused")
        self.runs.append(name)

    def begin(self) -> None:
        self.submit()
        threading.Thread(target=self._go_on, daemon=True).start()

    def _go_on(self) -> None:
        try:
            while not self.enough.wait(1):
                if self.version() >= self.STEPS - self.OVERLAP:
                    self.submit()
        except (Failed, OSError, subprocess.SubprocessError, ValueError) as error:
            self.failed = f"no further run could be submitted: {error!r}"
        self.over.set()

    def version(self) -> int:
        """Steps of the newest run; 0 while no coordinator answers."""
        return int(self.release.status(self.runs[-1]).get("version") or 0)

    def steps(self) -> int:
        """Steps of all runs."""
        return sum(int(self.release.status(run).get("version") or 0) for run in self.runs)


def must(done: subprocess.CompletedProcess[str], what: str) -> str:
    """The output of a command that succeeds."""
    if done.returncode:
        raise Failed(f"{what}:\n{done.stdout}{done.stderr}")
    return done.stdout
