"""One whole life of the chart on a real Kubernetes: `make kube`.

The control plane and KEDA start → `helm install` → no run, no workers → FrozenLake is submitted: 0 → 1 → a higher
maximum: 1 → 5 → `kubectl delete pod`, `kill -9` → a lower maximum: 5 → 2 → no coordinator: 2 stay → the run's end:
2 → 0 → books balanced → `helm uninstall` → nothing left. The steps are functions in that order.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cluster import Cluster, Failed
from container import first_child
from release import FULL, GENERATE, HERE, NAMESPACE, RELEASE, ROOT, Release, Work, must
from replicas import Replicas, passes

sys.path.insert(0, str(HERE.parent / "fakecloud"))
from bench import Log  # noqa: E402  pylint: disable=wrong-import-position

POOL = "pool-generate"
SCALED = f"/apis/keda.sh/v1alpha1/namespaces/{NAMESPACE}/scaledobjects/{GENERATE}"
# KEDA asks each second, the horizontal autoscaler looks each five, and KEDA finds a new leader within its back-off.
PATIENCE_S = 240
# So long no coordinator answers.
LEADERLESS_S = 35
# Reasons for which the coordinator drops rollouts by its own rules, and that no worker's end causes.
RULES = {"stale", "surplus", "filtered"}


class Life:
    """What the steps share."""

    def __init__(self, folder: Path, tools: Path, programs: Path):
        self.folder, self.log = folder, Log(folder / "life.log")
        venv = ROOT / ".venv"
        torch = next(venv.glob("lib/python*/site-packages/torch/lib")).relative_to(venv)
        # As infra/compose/Containerfile has them.
        path = {"PATH": "/opt/millrace/bin:/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp"}
        millrace = {"mounts": {"/opt/millrace/bin": str(programs), "/opt/millrace/venv": str(venv.resolve())},
                    "environment": {**path, "LD_LIBRARY_PATH": f"/opt/millrace/venv/{torch}"}}
        nats = {"mounts": {"/opt/nats": str(folder / "nats")}, "environment": {"PATH": "/opt/nats:/usr/bin:/bin"}}
        (folder / "nats").mkdir()
        shutil.copy(venv / "bin/nats-server", folder / "nats")
        self.weed = venv / "bin/weed"
        self.cluster = Cluster(folder, tools, {"millrace": millrace, "nats": nats})
        self.release = Release(self.cluster, programs)
        self.work = Work(self.release)
        self.replicas = Replicas(self.cluster)
        # Where in `replicas` the pool was empty for the first time.
        self.empty_at = 0
        self.killed = ""

    def stop(self) -> None:
        """Ends what runs, however far it came."""
        self.work.enough.set()
        self.replicas.ended.set()
        self.cluster.end()

    def wait(self, what: str, condition, patience: float = PATIENCE_S):
        """Waits while all processes live and there is work as planned."""
        def look():
            if self.work.failed:
                raise Failed(self.work.failed)
            return condition()
        return self.cluster.wait(what, look, patience)

    def steps_on(self, what: str, more: int = 2) -> int:
        """So many further steps, of all runs; their number then."""
        before = self.work.steps()
        self.wait(f"the run goes on {what}", lambda: self.work.steps() >= before + more)
        return self.work.steps()

    def scaled_to(self, wanted: int) -> float:
        """Waits until the Deployment has as many replicas, and as many pods are ready; seconds since now."""
        started = time.monotonic()
        self.wait(f"the pool has {wanted} replicas, ready", lambda: self.replicas.now == wanted
                  and len(self.release.ready(POOL)) == wanted and len(self.release.pods(POOL)) == wanted)
        took = time.monotonic() - started
        # From the workers' own notices, and not from the API server.
        self.wait(f"the coordinator counts {wanted} workers", lambda: self.release.live() == wanted, 20)
        self.all_drained()
        return took

    def all_drained(self) -> None:
        """Every worker that got SIGTERM so far ended by itself, with 0."""
        stopped = self.cluster.journal("stopped", GENERATE)
        if bad := [end for end in stopped if end["code"] != 0 or not end["in_time"]]:
            raise Failed(f"{len(bad)} of {len(stopped)} workers did not drain: {bad}")


def begin(life: Life) -> None:
    started = time.monotonic()
    life.cluster.begin()
    life.release.s3(life.weed)
    version = life.cluster.api.ask("GET", "/version")["gitVersion"]
    life.log.say(f"Kubernetes {version}: etcd, API server, controllers, scheduler, one node, {time.monotonic() - started:.1f} s")
    started = time.monotonic()
    life.cluster.keda()
    life.log.say(f"KEDA's operator and metrics adapter serve, {time.monotonic() - started:.1f} s")


def install(life: Life) -> None:
    """`helm install`, and the pool goes to nothing, since there is no run."""
    started = time.monotonic()
    life.release.secrets()
    life.replicas.begin()
    life.release.helm("install")
    for component, count in (("nats", 1), ("coordinator", 2), ("gang", 1), ("pool-env", 1)):
        life.wait(f"{component} is ready", lambda component=component, count=count:
                  len(life.release.ready(component)) == count)
    life.log.say(f"helm install {RELEASE}: nats-server, 2 coordinators, a train worker, an environment worker are ready, "
                 f"{time.monotonic() - started:.1f} s")
    life.scaled_to(0)
    life.empty_at = len(life.replicas.seen) - 1
    life.log.say(f"no run, no generate workers: replicas {' → '.join(map(str, life.replicas.since(0)))}, "
                 f"{time.monotonic() - started:.1f} s")


def submit(life: Life) -> None:
    """0 → 1: KEDA asks the leader, who wants the most that the pool may have."""
    life.work.begin()
    took = life.scaled_to(1)
    life.log.say(f"FrozenLake is submitted, {Work.STEPS} steps: 0 → 1, ready after {took:.1f} s")
    life.wait("a step is done", lambda: life.work.version() >= 1, 600)
    life.log.say("the first step is done")


def grow(life: Life) -> None:
    """1 → 5: a person raises the pool's maximum, and the leader wants more than it."""
    life.release.helm("upgrade", max=5)
    took = life.scaled_to(5)
    steps = life.steps_on("with five workers")
    life.log.say(f"helm upgrade, max 5: 1 → 5, ready after {took:.1f} s; {steps} steps are done")


def delete(life: Life) -> None:
    """`kubectl delete pod`: it drains, and the Deployment has another one."""
    victim = life.release.ready(POOL)[0]["metadata"]["name"]
    started = time.monotonic()
    life.cluster.kubectl("delete", "pod", victim, f"--namespace={NAMESPACE}")
    ended = life.wait("the kubelet tells its end", lambda: life.cluster.journal("stopped", victim))[-1]
    life.all_drained()
    life.wait("the pool has five again", lambda: len(life.release.ready(POOL)) == 5)
    life.log.say(f"kubectl delete pod {victim}: exit {ended['code']} after {ended['seconds']:.1f} s, replaced after "
                 f"{time.monotonic() - started:.1f} s")


def kill(life: Life) -> None:
    """`kill -9`: the kubelet starts the container again, as the pod's restart policy says."""
    pod = life.release.ready(POOL)[0]
    victim, before = pod["metadata"]["name"], restarts(pod)
    life.killed = victim
    started = time.monotonic()
    os.kill(worker_of(victim), signal.SIGKILL)

    def again() -> bool:
        return any(pod["metadata"]["name"] == victim and restarts(pod) > before for pod in life.release.ready(POOL))

    life.wait("its container serves again", again)
    took = time.monotonic() - started
    steps = life.steps_on("after a worker was killed")
    life.log.say(f"kill -9 of {victim}'s process: restarted and ready after {took:.1f} s; {steps} steps are done")


def restarts(pod: dict) -> int:
    return pod["status"]["containerStatuses"][0]["restartCount"]


def worker_of(pod: str) -> int:
    """The number of a pod's worker process."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                words = Path(entry.path, "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            # The process that made the pod's namespaces; the worker is its child.
            if any(f"/pods/{pod}/".encode() in word for word in words) and first_child(int(entry.name)):
                return first_child(int(entry.name))
    raise Failed(f"no process of {pod} is found")


def shrink(life: Life) -> None:
    """5 → 2: a person lowers the maximum."""
    before = {pod["metadata"]["name"] for pod in life.release.pods(POOL)}
    life.release.helm("upgrade", max=2)
    took = life.scaled_to(2)
    left = before - {pod["metadata"]["name"] for pod in life.release.pods(POOL)}
    ends = [life.cluster.journal("stopped", name)[-1] for name in sorted(left)]
    drained = ", ".join(f"exit {end['code']} in {end['seconds']:.1f} s" for end in ends)
    steps = life.steps_on("with two workers")
    life.log.say(f"helm upgrade, max 2: 5 → 2 after {took:.1f} s; drained: {drained}; {steps} steps are done")


def leaderless(life: Life) -> None:
    """No coordinator for a while: nobody says how many workers there are to be, and the pool stays."""
    coordinators = f"statefulset/{FULL}-coordinator"
    life.cluster.kubectl("scale", coordinators, "--replicas=0", f"--namespace={NAMESPACE}")
    life.wait("no coordinator runs", lambda: not life.release.pods("coordinator"))
    hold = LEADERLESS_S + life.cluster.api.ask("GET", SCALED)["spec"]["cooldownPeriod"]
    started, seen = time.monotonic(), len(life.replicas.seen)
    life.wait(f"{hold} s pass", lambda: time.monotonic() - started > hold or len(life.replicas.seen) > seen)
    if len(life.replicas.seen) > seen:
        raise Failed(f"without a coordinator the pool went from 2 to {life.replicas.now} replicas")
    if keda_says(life, "Ready") == "True":
        raise Failed("KEDA did not notice that no coordinator answered")
    life.cluster.kubectl("scale", coordinators, "--replicas=2", f"--namespace={NAMESPACE}")
    life.wait("KEDA gets answers again", lambda: keda_says(life, "Ready") == "True")
    steps = life.steps_on("with coordinators again")
    life.log.say(f"no coordinator for {hold} s: the pool stays at 2; KEDA has answers again after "
                 f"{time.monotonic() - started:.1f} s; {steps} steps are done")


def keda_says(life: Life, condition: str) -> str | None:
    """A condition of the ScaledObject: True, False, Unknown."""
    found = life.cluster.api.ask("GET", SCALED)["status"].get("conditions") or []
    return next((one["status"] for one in found if one["type"] == condition), None)


def finish(life: Life) -> None:
    """2 → 0: the last run is over."""
    life.work.enough.set()
    before = len(life.replicas.seen)
    life.wait("no further run is submitted", life.work.over.is_set)
    over = ("finished", "failed", "paused", "cancelled")
    life.wait("all runs are over", lambda: all(life.release.status(run).get("state") in over for run in life.work.runs), 900)
    took = life.scaled_to(0)
    for run in life.work.runs:
        status = life.release.status(run)
        if status["state"] != "finished":
            raise Failed(f"{run} is {status['state']}: {status.get('reason')}")
        curve = [point["success"] for point in status["curve"]]
        first, last = sum(curve[:5]) / 5, sum(curve[-5:]) / 5
        if last <= first:
            raise Failed(f"{run} does not learn: success {first:.3f} → {last:.3f}")
        life.log.say(f"{run} is finished. It learned: success {100 * first:.0f} % (steps 1 to 5) → {100 * last:.0f} % "
                     f"(the last five of {len(curve)})")
    numbers = [2] + life.replicas.since(before)
    life.log.say(f"no run is left: {' → '.join(map(str, numbers))}, {took:.1f} s after the last one's end")


def sequence(life: Life) -> None:
    """What was told to the Deployment between an empty pool and an empty pool.

    An HPA never goes below 1. At the end it is there first, or KEDA, which takes all. A number between two of these is
    fine on the way from one to the other: the leader may ask for three before it has measured that it needs five."""
    seen = life.replicas.since(life.empty_at)
    times = [f"{at - life.log.start:.0f} s" for at, _ in life.replicas.seen[life.empty_at:]]
    if not passes(seen, [0, 1, 5, 2, 0]):
        raise Failed(f"replicas were {seen} at {times}, and not 0, 1, 5, 2, 0")
    life.log.say(f"replicas of the Deployment: {' → '.join(map(str, seen))} at {', '.join(times)}")


def drains(life: Life) -> None:
    """Every worker that was told to go drained: exit 0 within its grace. One was killed, and no other ended before its pod:
    one that the coordinator asks to leave stands by, not ready, and its pod is among the first that go. Where Kubernetes
    kept it nevertheless, it was recalled, and served again in the same process."""
    if refused := life.cluster.journal("refused"):
        raise Failed(f"the kubelet refused pods: {refused}")
    life.all_drained()
    stopped = life.cluster.journal("stopped", GENERATE)
    ended = [(end["pod"], end["code"]) for end in life.cluster.journal("ended")]
    if ended != [(life.killed, 128 + signal.SIGKILL)]:
        raise Failed(f"containers ended by themselves: {ended}; only {life.killed} was killed")
    asked = recalled = 0
    for end in stopped:
        entries = logged(life, end)
        left = sum(entry.get("message") == "left" and entry.get("settled") is True for entry in entries)
        again = sum(entry.get("message", "").startswith("needed again") for entry in entries)
        if left != 1 + again:
            raise Failed(f"{end['pod']} left {left} times with everything settled, and was needed again {again} times")
        recalled += again
        asked += any(entry.get("why") == "drain request" for entry in entries)
    seconds = max(end["seconds"] for end in stopped)
    life.log.say(f"{len(stopped)} generate workers got SIGTERM, {asked} of them after the coordinator's request to leave, "
                 f"{recalled} recalled before; all drained with exit 0 and everything settled, the slowest after {seconds:.1f} s of {stopped[0]['grace']} s")


def logged(life: Life, end: dict) -> list[dict]:
    """What a pod's worker wrote into its log."""
    lines = (life.folder / "pods" / end["pod"] / end["uid"] / "log").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def books(life: Life) -> None:
    for run in life.work.runs:
        text = must(life.release.command("ledger", run, "--audit"), "the books do not balance")
        life.log.say(f"{run}: {'; '.join(line.strip() for line in text.splitlines())}")
        dropped = life.release.status(run)["ledger"]["dropped"]
        if lost := {why: count for why, count in dropped.items() if why not in RULES and count}:
            raise Failed(f"rollouts of {run} were lost: {lost}")


def uninstall(life: Life) -> None:
    started = time.monotonic()
    life.cluster.helm("uninstall", RELEASE, f"--namespace={NAMESPACE}")
    life.wait("no pod is left", lambda: not life.release.pods())
    took = time.monotonic() - started
    bad = [end for end in life.cluster.journal("stopped") if end["code"] != 0 or not end["in_time"]]
    if bad:
        raise Failed(f"pods did not end in time, with 0: {bad}")
    life.log.say(f"helm uninstall: 0 pods after {took:.1f} s, each ended with 0")


def end(life: Life) -> None:
    if left := pods_running():
        raise Failed(f"processes of pods are left: {left}")
    life.stop()
    left = others()
    if left:
        raise Failed(f"processes are left: {left}")
    life.log.say("0 processes are left")


def others() -> list[str]:
    """Command lines of all processes of this namespace but this one and those above it."""
    above, pid = {1}, os.getpid()
    while pid > 1:
        above.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) not in above:
            try:
                words = Path(entry.path, "cmdline").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            found.append(words.replace("\0", " ").strip())
    return list(filter(None, found))


def pods_running() -> list[str]:
    programs = {"millrace", "millrace-worker", "nats-server", "pod.sh", "namespaces.py"}
    return [line for line in others() if programs & {Path(word).name for word in line.split()}]


LIFE = [begin, install, submit, grow, delete, kill, shrink, leaderless, finish, sequence, drains, books, uninstall, end]


def inside(tools: Path, programs: Path) -> int:
    """The life, alone in namespaces."""
    folder = Path(tempfile.mkdtemp(prefix="millrace-kube-"))
    print(f"kube: logs are in {folder}", flush=True)
    life = Life(folder, tools, programs)
    step = begin
    try:
        for step in LIFE:
            began = time.monotonic()
            step(life)
            print(f"           ({step.__name__}: {time.monotonic() - began:.1f} s)", flush=True)
    except (Failed, subprocess.SubprocessError, OSError, LookupError, ValueError) as error:
        life.log.say(f"FAILED in {step.__name__}: {type(error).__name__} {error}")
        return 1
    finally:
        life.stop()
        target = ROOT / "target/kube"
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "life.log", target / "life.log")
    if not os.environ.get("KUBE_KEEP"):
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def missing(programs: Path) -> list[str]:
    """What this computer lacks, with the remedy."""
    lacks = [f"{name}: apt-get install util-linux iproute2 openssl hostname" for name in
             ("unshare", "nsenter", "mount", "ip", "openssl", "hostname") if not shutil.which(name)]
    lacks += [f"{programs / name}: `make programs`, or MILLRACE_BIN" for name in ("millrace", "millrace-worker")
              if not (programs / name).is_file()]
    lacks += [f".venv/bin/{name}: `make setup`" for name in ("nats-server", "weed")
              if not (ROOT / ".venv/bin" / name).is_file()]
    return lacks


def main() -> int:
    programs = Path(os.environ.get("MILLRACE_BIN") or ROOT / "target/release").resolve()
    if sys.argv[1:2] == ["--inside"]:
        return inside(Path(sys.argv[2]), programs)
    if lacks := missing(programs):
        print("kube: nothing was tested. This computer lacks:", *lacks, sep="\n  - ", flush=True)
        return 1
    built = subprocess.run([HERE / "tools.sh"], stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode:
        return built.returncode
    alone = HERE.parent / "fakecloud/alone.sh"
    return subprocess.run([alone, sys.executable, __file__, "--inside", built.stdout.strip()], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
