"""One whole life of a fleet on the fake cloud: `make fleet`.

terraform apply → instances run their user data → submit by the `nats` command → scaling out → FrozenLake learns → spot
notice → a machine lost → scaling in → a worker that hangs → books balanced → second plan empty → terraform destroy →
nothing left. The steps are functions in that order.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from pathlib import Path

from bench import HERE, ROOT, Client, Cloud, Failed, Log, Terraform, until

# More than are done before the last machine is lost: the pools of a run that is over shrink meanwhile.
STEPS = 80
BUDGET_S = 360
GPU, CPU, COORDINATOR = "millrace-gpu", "millrace-cpu", "millrace-coordinator"
NODES = ["10.64.0.10", "10.64.64.10", "10.64.128.10"]
WORKER = "millrace-worker"


class Life:
    """What the steps share."""

    def __init__(self, folder: Path, programs: Path):
        self.folder, self.log = folder, Log(folder / "life.log")
        self.millrace = programs / "millrace"
        self.programs = programs
        self.venv = ROOT / ".venv"
        self.cloud = Cloud(folder, {"/opt/millrace/venv": self.venv}, self.venv / "bin/weed")
        self.log.say("the cloud is up: no instance, no bucket")
        self.terraform: Terraform
        self.client: Client
        self.run = ""

    def status(self) -> dict:
        return self.client.ask("mr.api.status", {"run": self.run}) or {}

    def version(self) -> int:
        return int(self.status().get("version") or 0)

    def steps_on(self, what: str, more: int = 2) -> None:
        """The run goes on: so many further steps."""
        before = self.version()
        until(f"the run goes on {what}", lambda: self.version() >= min(before + more, STEPS), 90)


def prepare(life: Life) -> None:
    """Keys and the release bundle, by the commands of the README."""
    auth = life.folder / "auth"
    hosts = [word for node in NODES for word in ("--host", node)]
    combine = ["--combine", "generate,train_shard,publish_weights", "--combine", "env_step,reward"]
    subprocess.run([life.millrace, "init-auth", "--dir", auth, "--place", "/etc/millrace", *hosts, *combine],
                   check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run([life.millrace, "release", "--bin", life.programs, "--source", ROOT, "--out", life.folder],
                          check=True, capture_output=True, text=True)
    sha256, bundle = done.stdout.split()[-2:]
    life.log.say(f"millrace release: {sha256[:12]}…, {Path(bundle).stat().st_size / 1e6:.0f} MB")
    variables = {"auth": str(auth), "release": bundle, "snapshots": "null", "force_destroy": "true"}
    life.terraform = Terraform(life.folder, life.cloud, variables)


def apply(life: Life) -> None:
    life.terraform.run("init")
    started = time.monotonic()
    _, text = life.terraform.run("apply", "-auto-approve")
    line = next(line for line in text.splitlines() if line.startswith("Apply complete"))
    life.log.say(f"terraform apply, {time.monotonic() - started:.0f} s: {line}")
    started = time.monotonic()
    life.terraform.plan_is_empty()
    life.log.say(f"second plan is empty, {time.monotonic() - started:.0f} s")


def serves_metrics(life: Life, group: str, program: str, metric: str) -> None:
    """A machine of the group has its metrics where Prometheus looks for them."""
    state = life.cloud.state()["machines"]
    address = state[life.cloud.running(group, program)[0]]["address"]

    def page() -> str:
        try:
            with urllib.request.urlopen(f"http://{address}:9090/metrics", timeout=5) as answer:
                return answer.read().decode()
        except OSError:
            return ""

    until(f"{group} serves {metric} at {address}:9090", lambda: metric in page(), 30)


def answers(life: Life) -> None:
    """Three nats-servers form a cluster, two coordinators find it, and the `nats` command reaches them."""
    program = shutil.which("nats") or str(ROOT / "target/tools/nats")
    life.client = Client(life.folder, life.terraform.output("nats_context"), program, life.millrace)
    until("two coordinators run", lambda: len(life.cloud.running(COORDINATOR, "millrace")) == 2, 120)
    until("the API answers", lambda: life.client.ask("mr.api.list", None) is not None, 120)
    serves_metrics(life, COORDINATOR, "millrace", "millrace_leader")
    machines = life.cloud.state()["machines"].values()
    zones = {machine["zone"] for machine in machines if "nats-server" in machine["processes"]}
    if len(zones) != 3:
        raise Failed(f"nats-servers run in {sorted(zones)}, not in three zones")
    life.log.say(f"3 nats-servers in {', '.join(sorted(zones))}; the API answers `nats --context millrace req`")


def submit(life: Life) -> None:
    text = (ROOT / "broker/coordinator/runs/frozen-lake.toml").read_text(encoding="utf-8")
    run = tomllib.loads(text)
    run.update(name="fleet", steps=STEPS)
    run["evaluate"]["prompts"] = 64
    life.run = run["name"]
    answer = life.client.ask("mr.api.submit", run)
    if answer is None or "code" in answer:
        raise Failed(f"the run is refused: {answer}")
    life.log.say(f"submitted: FrozenLake, {STEPS} steps; pools are empty")


def set_desired(life: Life, group: str, wanted: int) -> None:
    """Until the coordinator's autoscaler does it."""
    life.cloud.scaling().set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=wanted)


def scale_out(life: Life) -> None:
    started = time.monotonic()
    if not life.autoscaled:
        # Two would take turns in training, and each redo the steps of the other.
        set_desired(life, GPU, 1)
        set_desired(life, CPU, 2)
    who = "the autoscaler" if life.autoscaled else "a person (SetDesiredCapacity)"
    for group in (GPU, CPU):
        until(f"workers of {group} run", lambda group=group: life.cloud.running(group, WORKER), 120)
        serves_metrics(life, group, WORKER, "millrace_connected")
    life.log.say(f"{who} scales out: the first worker of both pools runs after {time.monotonic() - started:.0f} s")
    until("a step is done", lambda: life.version() >= 1, 180)
    life.log.say(f"step 1 is done: {status_line(life)}")


def learns(life: Life) -> None:
    until("the run has 20 steps", lambda: life.version() >= 20, 180)
    curve = [point["success"] for point in life.status()["curve"]]
    first, last = sum(curve[:5]) / 5, sum(curve[-5:]) / 5
    if last <= first:
        raise Failed(f"it does not learn: success {first:.3f} → {last:.3f}")
    life.log.say(f"it learns: success {100 * first:.0f} % (steps 1 to 5) → {100 * last:.0f} % (steps {len(curve) - 4} "
                 f"to {len(curve)})")


def status_line(life: Life) -> str:
    groups = life.cloud.state()["groups"]
    pools = sorted((name, group["desired"]) for name, group in groups.items() if name != COORDINATOR)
    sizes = ", ".join(f"{name.removeprefix('millrace-')} {desired}" for name, desired in pools)
    return f"step {life.version()}, desired: {sizes}"


def ended_well(life: Life, instance: str) -> None:
    """Its worker drained and ended with 0, and was not started again."""
    console = life.cloud.console(instance)
    if "millrace-worker@0.service: ended with 0" not in console or "starts again" in console:
        raise Failed(f"the worker of {instance} did not end with 0:\n{console}\n"
                     + life.cloud.file(instance, "/var/log/journal/millrace-worker@0.service.log")[-3000:])


def spot(life: Life) -> None:
    """A notice: the worker drains before the deadline, and the group replaces the machine."""
    victim = until("a worker runs on a spot instance", lambda: life.cloud.running(CPU, WORKER), 60)[0]
    started, deadline = time.monotonic(), 30
    life.cloud.do("spot", victim, seconds=deadline)
    until("the worker has drained", lambda: "service: ended with" in life.cloud.console(victim), deadline + 30)
    took = time.monotonic() - started
    ended_well(life, victim)
    if life.drains and took > deadline:
        raise Failed(f"the drain took {took:.0f} s of {deadline}")
    until("the machine is gone", lambda: life.cloud.state()["machines"][victim]["ended"], deadline + 40)
    until("it is replaced", lambda: victim not in life.cloud.members(CPU) and life.cloud.running(CPU, WORKER), 90)
    life.log.say(f"spot notice of {deadline} s: drained with exit 0 after {took:.1f} s, replaced")


def kill(life: Life) -> None:
    """A machine is gone without a word."""
    victim = until("a GPU worker runs", lambda: life.cloud.running(GPU, WORKER), 60)[0]
    started = time.monotonic()
    life.cloud.do("kill", victim)
    until("it is replaced", lambda: [one for one in life.cloud.running(GPU, WORKER) if one != victim], 120)
    took = time.monotonic() - started
    life.steps_on("after a machine was lost")
    life.log.say(f"a GPU machine is lost: another worker serves after {took:.0f} s; {status_line(life)}")


def scale_in(life: Life) -> None:
    """Fewer machines: each waits for its worker's drain."""
    if life.autoscaled:
        return
    until("there are two CPU machines", lambda: len(life.cloud.running(CPU, WORKER)) >= 2, 90)
    started = time.monotonic()
    set_desired(life, CPU, 1)
    begun = until("one is told to go", lambda: [entry for entry in life.cloud.journal("terminating")
                                                if entry["why"] == "scale in" and entry["group"] == CPU], 30)[-1]
    gone = until("it is gone", lambda: life.cloud.journal("terminated", begun["id"]), 150)[-1]
    until("its machine has ended", lambda: life.cloud.state()["machines"][begun["id"]]["ended"], 60)
    ended_well(life, begun["id"])
    if life.drains and not gone["why"].startswith("completed"):
        raise Failed(f"the hook was not completed: {gone}")
    life.log.say(f"scaled in: {begun['id']} drained ({gone['why']}), gone after {time.monotonic() - started:.0f} s")


def stuck(life: Life) -> None:
    """A worker hangs and cannot drain: its machine ends when its hook times out."""
    victim = until("a CPU worker runs", lambda: life.cloud.running(CPU, WORKER), 60)[0]
    life.cloud.do("freeze", victim, process=WORKER)
    hook = {"AutoScalingGroupName": CPU, "LifecycleHookName": "drain"}
    before = life.cloud.scaling().describe_lifecycle_hooks(AutoScalingGroupName=CPU)["LifecycleHooks"][0]
    # The wait of the example is longer than this test has.
    again = {"LifecycleTransition": before["LifecycleTransition"], "DefaultResult": before["DefaultResult"]}
    life.cloud.scaling().put_lifecycle_hook(**hook, **again, HeartbeatTimeout=30)
    started = time.monotonic()
    life.cloud.scaling().terminate_instance_in_auto_scaling_group(InstanceId=victim,
                                                                  ShouldDecrementDesiredCapacity=False)
    gone = until("the hook times out", lambda: life.cloud.journal("terminated", victim), 60)[-1]
    if gone["why"] != "hook timed out":
        raise Failed(f"a worker that hangs did what it cannot: {gone}")
    life.cloud.scaling().put_lifecycle_hook(**hook, **again, HeartbeatTimeout=before["HeartbeatTimeout"])
    until("another serves", lambda: [one for one in life.cloud.running(CPU, WORKER) if one != victim], 90)
    life.log.say(f"a worker hangs: its hook timed out after {gone['waited']:.0f} s, replaced after "
                 f"{time.monotonic() - started:.0f} s")


def finish(life: Life) -> None:
    until("the run is over", lambda: life.status().get("state") in ("finished", "failed", "paused"), 200)
    status = life.status()
    if status["state"] != "finished":
        raise Failed(f"the run is {status['state']}: {status.get('reason')}")
    objects = life.terraform.output("objects")
    access = {"AWS_ENDPOINT_URL": life.cloud.facts["AWS_ENDPOINT_URL_S3"], "AWS_ALLOW_HTTP": "true",
              "AWS_ACCESS_KEY_ID": "AKIAFAKECLOUDADMIN00", "AWS_SECRET_ACCESS_KEY": "fake", "AWS_REGION": "us-east-1"}
    ledger = life.client.command("ledger", life.run, "--audit", "--objects", objects, environment=access)
    if ledger.returncode:
        raise Failed(f"the books do not balance:\n{ledger.stdout}{ledger.stderr}")
    life.log.say(f"finished: {ledger.stdout.splitlines()[0]}")
    for line in ledger.stdout.splitlines()[1:]:
        life.log.say(f"  audit: {line}")


def rest(life: Life) -> None:
    """Without work the pools go to nothing, each machine through its drain."""
    started = time.monotonic()
    if not life.autoscaled:
        for group in (GPU, CPU):
            set_desired(life, group, 0)
    until("the pools are empty", lambda: not life.cloud.state()["groups"][GPU]["members"]
          and not life.cloud.state()["groups"][CPU]["members"], 150)
    who = "the autoscaler" if life.autoscaled else "a person (SetDesiredCapacity)"
    life.log.say(f"{who} scales in: no run, no workers, after {time.monotonic() - started:.0f} s")


def refusals(life: Life) -> None:
    """Nothing that the fleet did was beyond its roles' rights."""
    refused = life.cloud.journal("refused")
    if refused:
        raise Failed(f"{len(refused)} calls were refused for want of a right: "
                     + "; ".join(sorted({f"{entry['who'].split('/')[1]} {entry['action']}" for entry in refused})))
    life.log.say("no call of an instance was refused: the roles' policies suffice")


def again(life: Life) -> None:
    life.terraform.plan_is_empty()
    life.log.say("second plan is still empty")


def destroy(life: Life) -> None:
    started = time.monotonic()
    _, text = life.terraform.run("destroy", "-auto-approve")
    line = next(line for line in text.splitlines() if line.startswith("Destroy complete"))
    life.log.say(f"terraform destroy, {time.monotonic() - started:.0f} s: {line}")
    until("every machine has ended", lambda: all(one["ended"] for one in life.cloud.state()["machines"].values()), 60)
    state = life.cloud.state()
    left = [name for machine in state["machines"].values() for name in machine["processes"]]
    if left:
        raise Failed(f"processes are left: {left}")
    life.log.say(f"{len(state['machines'])} machines ran; 0 processes are left")


LIFE = [prepare, apply, answers, submit, scale_out, learns, spot, kill, scale_in, stuck, finish, rest, refusals,
        again, destroy]


def take_mirror() -> None:
    """Has terraform fetch providers from the folder MILLRACE_TF_MIRROR, if it is set."""
    if mirror := os.environ.get("MILLRACE_TF_MIRROR"):
        config = ROOT / "target/fakecloud/mirror.tfrc"
        config.parent.mkdir(parents=True, exist_ok=True)
        path = json.dumps(str(Path(mirror).resolve()))
        config.write_text("provider_installation {\n  filesystem_mirror { path = %s }\n}\n" % path, "utf-8")
        os.environ["TF_CLI_CONFIG_FILE"] = str(config)


def missing() -> list[str]:
    """What this computer lacks, with the remedy."""
    lacks = []
    if not shutil.which("terraform"):
        lacks.append("terraform 1.11 or newer: https://developer.hashicorp.com/terraform/install")
    home = Path.home()
    mirrors = [os.environ.get("TF_CLI_CONFIG_FILE"), home / ".terraformrc", home / ".terraform.d/plugins"]
    if not any(mirror and Path(mirror).exists() for mirror in mirrors):
        lacks.append("a mirror of the provider aws, for the life has no network: `terraform providers mirror DIR`, and "
                     "MILLRACE_TF_MIRROR=DIR")
    if not (shutil.which("nats") or (ROOT / "target/tools/nats").exists()):
        lacks.append("the nats command: `make tools`, where Go is")
    if not (HERE / "../../target/fakecloud/venv/bin/python").exists() and "moto" not in sys.modules:
        lacks.append("target/fakecloud/venv: `infra/fakecloud/setup.sh`")
    for name in ("unshare", "ip", "curl"):
        if not shutil.which(name):
            lacks.append(f"{name}: apt-get install util-linux iproute2 curl")
    return lacks


def inside() -> int:
    """The life, alone in namespaces."""
    programs = Path(os.environ.get("MILLRACE_PROGRAMS", ROOT / "target/release")).resolve()
    folder = Path(tempfile.mkdtemp(prefix="millrace-fleet-"))
    print(f"fleet: logs are in {folder}", flush=True)
    started = time.monotonic()
    life = Life(folder, programs)
    help_of = lambda *words: subprocess.run(words, capture_output=True, text=True, check=False).stdout  # noqa: E731
    # A build from before these were there is tried too, by the API alone.
    life.autoscaled = "--scale" in help_of(life.millrace, "coordinator", "--help")
    life.drains = "--machine" in help_of(programs / WORKER, "--help")
    try:
        for step in LIFE:
            life.cloud.alive()
            began = time.monotonic()
            step(life)
            print(f"           ({step.__name__}: {time.monotonic() - began:.1f} s)", flush=True)
    except (Failed, subprocess.CalledProcessError, OSError, KeyError) as error:
        life.log.say(f"FAILED in {step.__name__}: {error}")
        return 1
    finally:
        life.cloud.process.terminate()
        life.cloud.process.wait(30)
    took = time.monotonic() - started
    life.log.say(f"the whole life took {took:.0f} s")
    if took > BUDGET_S:
        print(f"fleet: longer than {BUDGET_S} s", flush=True)
    shutil.copy(folder / "life.log", ROOT / "target/fakecloud/life.log")
    if not os.environ.get("FAKECLOUD_KEEP"):
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def main() -> int:
    if "--inside" in sys.argv:
        return inside()
    take_mirror()
    if lacks := missing():
        print("fleet: SKIPPED, nothing was tested. This computer lacks:", *lacks, sep="\n  - ", flush=True)
        return 1 if "--must" in sys.argv else 0
    return subprocess.run([HERE / "alone.sh", sys.executable, __file__, "--inside"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
