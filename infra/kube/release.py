"""What a person does with the chart: the Secrets, `helm install` and `helm upgrade`, and `millrace` commands from outside."""

import base64
import json
import os
import subprocess
import threading
import time
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
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
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


class Replicas:
    """Every number of replicas that the pool's Deployment was told, with its time, as the API server tells them."""

    def __init__(self, cluster: Cluster):
        self.cluster, self.ended = cluster, threading.Event()
        self.seen: list[tuple[float, int]] = []
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        base = BASE.rpartition("/")[0]
        for kind, each in self.cluster.api.watch(f"{base}?fieldSelector=metadata.name%3D{GENERATE}", self.ended):
            if kind in ("ADDED", "MODIFIED"):
                wanted = each["spec"]["replicas"]
                if not self.seen or self.seen[-1][1] != wanted:
                    self.seen.append((time.monotonic(), wanted))

    @property
    def now(self) -> int | None:
        return self.seen[-1][1] if self.seen else None

    def since(self, at: int) -> list[int]:
        """The numbers from the ``at``-th on."""
        return [wanted for _, wanted in self.seen[at:]]


def must(done: subprocess.CompletedProcess[str], what: str) -> str:
    """The output of a command that succeeds."""
    if done.returncode:
        raise Failed(f"{what}:\n{done.stdout}{done.stderr}")
    return done.stdout
