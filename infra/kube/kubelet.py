"""A kubelet: the pods that the scheduler binds to its node run as processes of this computer.

    kubelet.py SETTINGS      JSON: api, folder, node, images

It watches its pods, fills their volumes, starts each container in namespaces of its own, probes it, restarts it when it
ends, and tells the API server. A pod that is deleted gets SIGTERM, its grace, and SIGKILL. `journal.jsonl` has what happened.
What a pod asks for and is not done here is refused, never left out.
"""

import itertools
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from api import CONFLICT, MERGE, NOT_FOUND, Api, Refused
from container import KNOWN, Container, Image, Store, Unknown, environment, network, volume
from probes import Probes

POD_NETWORK = "10.244.0.0/16"
BEAT_S = 10
TICK_S = 0.1
# The first restart is at once; then the pause doubles, up to five minutes.
BACK_OFF_S, MAX_BACK_OFF_S = 10, 300
PARTS = {"containers", "volumes", "restartPolicy", "terminationGracePeriodSeconds", "nodeName", "serviceAccountName",
         "serviceAccount", "securityContext", "schedulerName", "dnsPolicy", "automountServiceAccountToken",
         "enableServiceLinks", "tolerations", "priority", "preemptionPolicy", "hostname", "subdomain",
         "topologySpreadConstraints", "affinity"}


def stamp(at: float | None = None) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


class Kubelet:
    """The node and its pods."""

    def __init__(self, settings: dict):
        server = settings["api"]
        self.api = Api(server["host"], server["port"], Path(server["authority"]), server["token"])
        self.folder, self.node = Path(settings["folder"]), settings["node"]
        self.address = network.CLOUD
        self.images = {repository: Image({place: Path(source) for place, source in image["mounts"].items()},
                                         image["environment"])
                       for repository, image in settings["images"].items()}
        self.pods: dict[str, Pod] = {}
        self.numbers = itertools.count(2)
        self.ended, self.lock = threading.Event(), threading.Lock()

    def note(self, what: str, pod: dict, **facts: object) -> None:
        meta = pod["metadata"]
        entry = {"t": round(time.time(), 3), "what": what, "pod": meta["name"], "uid": meta["uid"], **facts}
        with self.lock, open(self.folder / "journal.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def beat(self) -> None:
        """Registers the node, and keeps it ready. Its sizes are claims: processes are not bounded by them."""
        while not self.ended.is_set():
            try:
                self.register()
            except (OSError, Refused) as error:
                print(f"node: {error!r}", flush=True)
            self.ended.wait(BEAT_S)

    def register(self) -> None:
        labels = {"kubernetes.io/hostname": self.node, "topology.kubernetes.io/zone": "here", "kubernetes.io/os": "linux"}
        try:
            self.api.ask("POST", "/api/v1/nodes", {"kind": "Node", "apiVersion": "v1",
                                                   "metadata": {"name": self.node, "labels": labels}})
        except Refused as error:
            if error.status != CONFLICT:
                raise
        room = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "pods are processes",
                 "lastHeartbeatTime": stamp(), "lastTransitionTime": stamp()}
        status = {"capacity": room, "allocatable": room, "conditions": [ready],
                  "addresses": [{"type": "InternalIP", "address": self.address}]}
        self.api.ask("PATCH", f"/api/v1/nodes/{self.node}/status", {"status": status}, MERGE)

    def run(self) -> None:
        threading.Thread(target=self.beat, daemon=True).start()
        for kind, each in self.api.watch(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.node}", self.ended):
            if kind == "SYNCED":
                for uid in set(self.pods) - each:
                    self.pods[uid].lost()
                continue
            uid = each["metadata"]["uid"]
            if kind == "DELETED":
                if uid in self.pods:
                    self.pods[uid].lost()
            elif uid in self.pods:
                self.pods[uid].changed(each)
            else:
                self.pods[uid] = Pod(self, each, f"10.244.0.{next(self.numbers)}")

    def end(self) -> None:
        """The node goes: what still runs is cut off."""
        self.ended.set()
        for pod in self.pods.values():
            pod.lost()
        for pod in self.pods.values():
            pod.thread.join(10)


class Pod:
    """One pod's life, in a thread."""

    def __init__(self, kubelet: Kubelet, pod: dict, address: str):
        self.kubelet, self.pod, self.address = kubelet, pod, address
        meta = pod["metadata"]
        self.path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        self.folder = kubelet.folder / meta["name"] / meta["uid"]
        self.told: dict | None = None
        self.restarts, self.last_end = 0, None
        self.wake, self.gone = threading.Event(), threading.Event()
        self.deleted_at: float | None = time.monotonic() if meta.get("deletionTimestamp") else None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def changed(self, pod: dict) -> None:
        self.pod = pod
        if pod["metadata"].get("deletionTimestamp") and self.deleted_at is None:
            self.deleted_at = time.monotonic()
            self.wake.set()

    def lost(self) -> None:
        """The API has no such pod any more: nothing may run for it."""
        self.gone.set()
        self.wake.set()

    @property
    def over(self) -> bool:
        return self.deleted_at is not None or self.gone.is_set()

    def run(self) -> None:
        try:
            if not self.over:
                self.live()
        except Unknown as error:
            self.kubelet.note("refused", self.pod, why=str(error))
            self.tell("Pending", {"waiting": {"reason": "CreateContainerConfigError", "message": str(error)}})
            self.wake.wait()
        except Exception as error:  # pylint: disable=broad-except
            # A fault of the kubelet must be seen by the life, whatever it is.
            self.kubelet.note("refused", self.pod, why=repr(error))
            raise
        finally:
            if not self.gone.is_set() and not self.kubelet.ended.is_set():
                self.remove()

    def live(self) -> None:
        spec = self.pod["spec"]
        if unknown := {key for key, value in spec.items() if value} - PARTS:
            raise Unknown(f"pod spec: {sorted(unknown)}")
        if len(spec["containers"]) != 1 or spec["restartPolicy"] != "Always":
            raise Unknown("more than one container, or a restart policy that is not Always")
        container = spec["containers"][0]
        if unknown := {key for key, value in container.items() if value} - KNOWN:
            raise Unknown(f"container: {sorted(unknown)}")
        image = self.kubelet.images.get(container["image"].rsplit(":", 1)[0])
        if image is None:
            raise Unknown(f"image {container['image']}; there are {', '.join(self.kubelet.images)}")
        self.folder.mkdir(parents=True)
        store = Store(self.kubelet.api, self.pod["metadata"]["namespace"])
        variables = environment(self.pod, container, image, self.address, store)
        volumes = {each["name"]: volume(self.folder, each, store) for each in spec.get("volumes") or []}
        mounts = [f"ro {source} {place}\n" for place, source in image.mounts.items()]
        mounts += [f"{'ro' if each.get('readOnly') else 'rw'} {volumes[each['name']]} {each['mountPath']}\n"
                   for each in container.get("volumeMounts") or []]
        read_only = (container.get("securityContext") or {}).get("readOnlyRootFilesystem", False)
        facts = {"HOSTNAME": self.pod["metadata"]["name"], "ADDRESS": self.address,
                 "NETWORKS": f"{network.CLOUD_NETWORK} {POD_NETWORK}", "READ_ONLY": "yes" if read_only else "no"}
        while not self.over:
            self.once(Container(self.folder, container, variables, mounts, facts), container)

    def once(self, process: Container, spec: dict) -> None:
        """From the start of the process to its end, and the pause before the next one."""
        self.kubelet.note("started", self.pod, address=self.address, restarts=self.restarts)
        probes = Probes(spec, self.address, process.ended)
        running = {"running": {"startedAt": stamp(process.started)}}
        while not process.ended.is_set() and not self.over and not probes.failed:
            self.tell("Running", running, ready=probes.ready, started=probes.started)
            self.wake.wait(TICK_S)
        probes.over.set()
        began = time.monotonic()
        own = process.ended.is_set()
        if not own:
            if self.gone.is_set():
                grace = 0
            elif self.over:
                grace = self.pod["metadata"].get("deletionGracePeriodSeconds") or 0
            else:
                grace = self.pod["spec"]["terminationGracePeriodSeconds"]
            self.tell("Running", running, ready=False, started=True)
            in_time = process.stop(grace)
            self.kubelet.note("stopped", self.pod, code=process.code, seconds=round(time.monotonic() - began, 2),
                              in_time=in_time, grace=grace, hook=process.hook,
                              why=probes.failed or ("lost" if self.gone.is_set() else "deleted"))
        else:
            self.kubelet.note("ended", self.pod, code=process.code)
        self.last_end = {"exitCode": process.code, "reason": "Completed" if process.code == 0 else "Error",
                         "startedAt": stamp(process.started), "finishedAt": stamp()}
        if not self.over:
            pause = 0 if self.restarts == 0 else min(BACK_OFF_S * 2 ** (self.restarts - 1), MAX_BACK_OFF_S)
            self.restarts += 1
            self.tell("Running", {"waiting": {"reason": "CrashLoopBackOff"}})
            self.wake.wait(pause)

    def tell(self, phase: str, state: dict, ready: bool = False, started: bool = False) -> None:
        """The pod's status, if it is another one."""
        news = {"phase": phase, "state": state, "ready": ready, "started": started, "restarts": self.restarts}
        if news == self.told or self.gone.is_set():
            return
        container = self.pod["spec"]["containers"][0]
        status = {"name": container["name"], "image": container["image"], "imageID": "process", "state": state,
                  "ready": ready, "started": started, "restartCount": self.restarts}
        if self.restarts and self.last_end:
            status["lastState"] = {"terminated": self.last_end}
        words = {"Initialized": True, "Ready": ready, "ContainersReady": ready, "PodReadyToStartContainers": True}
        conditions = [{"type": name, "status": str(value), "lastTransitionTime": stamp()} for name, value in words.items()]
        whole = {"phase": phase, "startTime": stamp(), "hostIP": self.kubelet.address, "podIP": self.address,
                 "podIPs": [{"ip": self.address}], "conditions": conditions, "containerStatuses": [status]}
        try:
            self.kubelet.api.ask("PATCH", f"{self.path}/status", {"status": whole,
                                                                  "metadata": {"uid": self.pod["metadata"]["uid"]}}, MERGE)
            self.told = news
            if ready:
                self.kubelet.note("ready", self.pod)
        except (OSError, Refused) as error:
            if isinstance(error, Refused) and error.status in (NOT_FOUND, CONFLICT):
                self.lost()
            else:
                print(f"{self.path}: {error!r}; told again", flush=True)

    def remove(self) -> None:
        """Tells how it ended, and that nothing of it runs: only then the API server forgets it."""
        if self.last_end is not None:
            phase = "Succeeded" if self.last_end["exitCode"] == 0 else "Failed"
            self.tell(phase, {"terminated": self.last_end})
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0,
                "preconditions": {"uid": self.pod["metadata"]["uid"]}}
        while not self.gone.is_set() and not self.kubelet.ended.is_set():
            try:
                self.kubelet.api.ask("DELETE", self.path, body)
                return
            except Refused as error:
                if error.status in (NOT_FOUND, CONFLICT):
                    return
                print(f"{self.path}: {error}; again", flush=True)
            except OSError as error:
                print(f"{self.path}: {error!r}; again", flush=True)
            self.gone.wait(1)


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    network.reach(POD_NETWORK)
    kubelet = Kubelet(settings)
    kubelet.folder.mkdir(parents=True, exist_ok=True)

    def end(*_: object) -> None:
        kubelet.end()
        # The watch may hang in a read; nothing of it is left to do.
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    kubelet.run()


if __name__ == "__main__":
    main()
