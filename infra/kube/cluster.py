"""A Kubernetes cluster of one node on this computer: etcd, the control plane, KEDA, and our kubelet and names.

Each is a real process of its own program, but for the kubelet and the names, which are of this folder. It must run alone
(`infra/fakecloud/alone.sh`): it takes fixed addresses and ports, and /etc/resolv.conf."""

import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from api import Api, Refused
from container import network
from kubelet import POD_NETWORK
from names import Names

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "fakecloud"))
from bench import Failed, until  # noqa: E402  pylint: disable=wrong-import-position

ADDRESS = network.CLOUD
PORT, ETCD, ADAPTER = 6443, "http://127.0.0.1:2379", 6444
NODE, KEDA = "here", "keda"
# How often the horizontal autoscaler looks. A cluster's default is 15 seconds.
HPA_PERIOD_S = 5
ADMIN, KUBELET = "admin-token", "kubelet-token"
TOKENS = f'{ADMIN},admin,admin,"system:masters"\n{KUBELET},system:node:{NODE},node,"system:nodes"\n'


class Cluster:
    """The processes, and clients of the API as an administrator."""

    def __init__(self, folder: Path, tools: Path, images: dict[str, dict]):
        self.folder, self.tools, self.images = folder, tools, images
        self.processes: dict[str, subprocess.Popen] = {}
        self.kubeconfig = folder / "kubeconfig"
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "KUBECONFIG": str(self.kubeconfig)}
        self.api = Api("127.0.0.1", PORT, folder / "ca.crt", ADMIN)
        self.names: Names | None = None

    def start(self, name: str, *words: Any, program: str | None = None, **variables: str) -> None:
        """A process whose log is NAME.log."""
        command = [program or str(self.tools / name), *map(str, words)]
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder,
                                                    env={**self.environment, **variables})

    def alive(self) -> None:
        for name, process in self.processes.items():
            if process.poll() is not None:
                tail = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")[-1500:]
                raise Failed(f"{name} ended with {process.returncode}:\n{tail}")

    def wait(self, what: str, condition, patience: float = 60) -> Any:
        """Waits while all processes live. A request that fails counts as not yet."""
        def look() -> Any:
            self.alive()
            try:
                return condition()
            except (OSError, Refused, KeyError, IndexError, ValueError):
                return None
        return until(what, look, patience)

    def kubectl(self, *words: Any, stdin: str | None = None) -> str:
        return self._command([self.tools / "kube", "kubectl", *words], stdin)

    def helm(self, *words: Any) -> str:
        return self._command([self.tools / "helm", *words])

    def _command(self, words: list, stdin: str | None = None) -> str:
        done = subprocess.run([str(word) for word in words], input=stdin, capture_output=True, text=True,
                              env=self.environment, cwd=self.folder, timeout=300, check=False)
        if done.returncode:
            raise Failed(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def apply(self, *objects: dict) -> None:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.kubectl("apply", "--server-side", "--filename=-", stdin=text)

    # ---- start, in order

    def begin(self) -> None:
        network.start()
        network.reach(POD_NETWORK)
        self.certificates()
        self.control_plane()
        self.node()

    def openssl(self, *words: Any) -> None:
        subprocess.run(["openssl", *map(str, words)], cwd=self.folder, check=True, capture_output=True)

    def certificates(self) -> None:
        """An authority, and what it signs: the API server, the way from it to KEDA's adapter, KEDA."""
        self.openssl("genrsa", "-out", "accounts.key", "2048")
        self.openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", 2, "-subj", "/CN=kube", "-keyout", "ca.key",
                     "-out", "ca.crt")
        (self.folder / "keda").mkdir()
        (self.folder / "keda/ca.crt").write_bytes((self.folder / "ca.crt").read_bytes())
        for file, name in (("server", "kube-apiserver"), ("front", "front-proxy"), ("keda/tls", "keda-operator")):
            alternatives = ["DNS:localhost", f"DNS:keda-operator.{KEDA}.svc", f"DNS:keda-metrics-apiserver.{KEDA}.svc",
                            "IP:127.0.0.1", f"IP:{ADDRESS}"]
            (self.folder / "san").write_text(f"subjectAltName={','.join(alternatives)}\n", encoding="utf-8")
            self.openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{file}.key", "-out",
                         f"{file}.csr")
            self.openssl("x509", "-req", "-in", f"{file}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                         "-days", 2, "-extfile", "san", "-out", f"{file}.crt")

    def control_plane(self) -> None:
        (self.folder / "tokens.csv").write_text(TOKENS, encoding="utf-8")
        server = {"server": f"https://127.0.0.1:{PORT}", "certificate-authority": str(self.folder / "ca.crt")}
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "here",
                  "clusters": [{"name": "here", "cluster": server}],
                  "users": [{"name": "admin", "user": {"token": ADMIN}}],
                  "contexts": [{"name": "here", "context": {"cluster": "here", "user": "admin"}}]}
        self.kubeconfig.write_text(json.dumps(config), encoding="utf-8")
        self.start("etcd", "--data-dir=etcd", f"--listen-client-urls={ETCD}", f"--advertise-client-urls={ETCD}",
                   "--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
                   "--initial-cluster=default=http://127.0.0.1:2380", "--unsafe-no-fsync")
        kube = str(self.tools / "kube")
        self.start("apiserver", "apiserver", f"--etcd-servers={ETCD}", "--bind-address=127.0.0.1",
                   f"--advertise-address={ADDRESS}", f"--secure-port={PORT}", "--endpoint-reconciler-type=none",
                   "--tls-cert-file=server.crt", "--tls-private-key-file=server.key", "--client-ca-file=ca.crt",
                   "--token-auth-file=tokens.csv", "--authorization-mode=Node,RBAC",
                   "--enable-admission-plugins=NodeRestriction", "--service-cluster-ip-range=10.96.0.0/16",
                   f"--service-account-issuer=https://127.0.0.1:{PORT}", "--service-account-key-file=accounts.key",
                   "--service-account-signing-key-file=accounts.key", "--requestheader-client-ca-file=ca.crt",
                   "--requestheader-allowed-names=front-proxy", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
                   "--requestheader-group-headers=X-Remote-Group", "--requestheader-username-headers=X-Remote-User",
                   "--proxy-client-cert-file=front.crt", "--proxy-client-key-file=front.key", program=kube)
        self.wait("the API server is ready", lambda: self.ready("/readyz"))
        common = [f"--kubeconfig={self.kubeconfig}", "--bind-address=127.0.0.1", "--leader-elect=false"]
        self.start("controller-manager", "controller-manager", *common, "--root-ca-file=ca.crt",
                   "--service-account-private-key-file=accounts.key",
                   f"--horizontal-pod-autoscaler-sync-period={HPA_PERIOD_S}s", program=kube)
        self.start("scheduler", "scheduler", *common, program=kube)

    def ready(self, path: str) -> bool:
        with self.api.open("GET", path, None, "text/plain", 5) as answer:
            return answer.read() == b"ok"

    def node(self) -> None:
        """The node with its kubelet, and the names."""
        api = {"host": "127.0.0.1", "port": PORT, "authority": str(self.folder / "ca.crt"), "token": KUBELET}
        settings = {"api": api, "folder": str(self.folder / "pods"), "node": NODE, "images": self.images}
        (self.folder / "kubelet.json").write_text(json.dumps(settings), encoding="utf-8")
        self.start("kubelet", HERE / "kubelet.py", self.folder / "kubelet.json", program=sys.executable)
        self.names = Names(self.api, ADDRESS)
        resolve = self.folder / "resolv.conf"
        resolve.write_text(f"nameserver {ADDRESS}\nsearch cluster.local\noptions ndots:5\n", encoding="utf-8")
        subprocess.run(["mount", "--bind", resolve, os.path.realpath("/etc/resolv.conf")], check=True)
        self.wait("the node is ready", lambda: any(
            one["type"] == "Ready" and one["status"] == "True"
            for one in self.api.ask("GET", f"/api/v1/nodes/{NODE}")["status"]["conditions"]))

    def keda(self) -> None:
        """KEDA's resources, operator and metrics adapter, as its release runs them."""
        self.kubectl("apply", "--server-side", f"--filename={(self.tools / 'keda-crds').resolve()}")
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "keda-metrics-apiserver", "namespace": KEDA},
                   "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": ADAPTER}]}}
        authority = base64.b64encode((self.folder / "ca.crt").read_bytes()).decode()
        metrics = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
                   "metadata": {"name": "v1beta1.external.metrics.k8s.io"},
                   "spec": {"group": "external.metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100,
                            "versionPriority": 100, "caBundle": authority,
                            "service": {"name": "keda-metrics-apiserver", "namespace": KEDA, "port": ADAPTER}}}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": KEDA}}, service, metrics)
        certificates = self.folder / "keda"
        own = {"POD_NAMESPACE": KEDA, "POD_NAME": "keda-0", "KEDA_CLUSTER_OBJECT_NAMESPACE": KEDA, "WATCH_NAMESPACE": ""}
        self.start("keda-operator", f"--kubeconfig={self.kubeconfig}", f"--cert-dir={certificates}",
                   f"--ca-dir={certificates}", "--enable-cert-rotation=false", "--enable-webhook-patching=false",
                   "--enable-apiservice-patching=false", "--leader-elect=false", "--metrics-bind-address=127.0.0.1:8080",
                   "--health-probe-bind-address=127.0.0.1:8081", "--metrics-service-bind-address=127.0.0.1:9666",
                   "--zap-log-level=info", **own)
        kubeconfigs = [f"--{prefix}kubeconfig={self.kubeconfig}"
                       for prefix in ("", "lister-", "authentication-", "authorization-")]
        self.start("keda-adapter", *kubeconfigs, "--bind-address=127.0.0.1", f"--secure-port={ADAPTER}", "--port=8082",
                   "--metrics-service-address=localhost:9666", f"--metrics-service-grpc-authority=keda-operator.{KEDA}.svc",
                   f"--cert-dir={certificates}", f"--tls-cert-file={certificates}/tls.crt",
                   f"--tls-private-key-file={certificates}/tls.key", f"--client-ca-file={self.folder}/ca.crt", **own)
        self.wait("KEDA's metrics are available", lambda: any(
            one["type"] == "Available" and one["status"] == "True" for one in
            self.api.ask("GET", "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.external.metrics.k8s.io")
            ["status"]["conditions"]), 90)

    # ---- what is there

    def journal(self, what: str | None = None, pod: str = "") -> list[dict]:
        """What the kubelet did."""
        path = self.folder / "pods/journal.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        entries = [json.loads(line) for line in lines if line.endswith("}")]
        return [each for each in entries if what in (None, each["what"]) and each["pod"].startswith(pod)]

    def end(self) -> None:
        """Ends what was started: KEDA first, etcd last."""
        if self.names:
            self.names.ended.set()
        for name in reversed(list(self.processes)):
            process = self.processes[name]
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
